"""Outer steps: their laws, with real workers that all see other data."""

import io
import time
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import gradwire as gw
from gradwire.algorithms import OuterSteps
from gradwire.algorithms.outer.fragments import split
from gradwire.algorithms.outer.model import tensors_of
from gradwire.algorithms.outer.settings import OuterSettings
from world import data

WIDTH = 24
SPARSE = "fft:drop=0.9,domain=time,block=64"


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))


def backward(model, rank, step):
    model.zero_grad()
    model(data(rank, 16 * WIDTH, seed=step).view(16, WIDTH)).square().mean().backward()


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


class Worker:
    """Trains with AdamW and outer steps; everything goes through the codec."""

    def __init__(self, rank, codec="qsgd:bits=4", model=None, **settings):
        self.rank = rank
        self.model = network() if model is None else model
        self.outer = OuterSteps(self.model, codec, **{"min_numel": 0, **settings})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def inner_step(self, step):
        backward(self.model, self.rank, step)
        self.optimizer.step()

    def train(self, steps, **options):
        for step in steps:
            self.inner_step(step)
            self.outer.step(**options)
        return weights(self.model)

    def agreed(self):
        """The weights that all workers agree on."""
        with self.outer.global_weights():
            return weights(self.model)

    def owed(self):
        residuals = self.outer.state_dict()[f"rank{self.rank}"]["residuals"]
        named = dict(self.model.named_parameters())
        return torch.cat([residuals.get(name, torch.zeros(p.numel())) for name, p in named.items()])


def gathered(tensor):
    """That of every rank."""
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, tensor)
    return torch.stack(rows)


# The outer step


def averaged_at_every_step(rank):
    """The weights after steps of SGD with plain averaging, and after synchronous SGD."""
    model, other = network(), network()
    outer = OuterSteps(model, "none", every=1, lr=1.0, momentum=0.0)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other)]
    for step in range(5):
        backward(model, rank, step)
        optimizers[0].step()
        outer.step()
        backward(other, rank, step)
        for p in other.parameters():
            p.grad = gathered(p.grad).mean(0)
        optimizers[1].step()
    outer.close()
    return weights(model), weights(other)


def test_averaging_after_every_step_of_sgd_is_synchronous_sgd(worlds):
    """But for rounding: the weights are averaged, and not the gradients."""
    start = weights(network())
    for averaged, synchronous in worlds[3].run(averaged_at_every_step):
        assert (synchronous - start).abs().max() > 1e-3
        torch.testing.assert_close(averaged, synchronous, rtol=0, atol=3e-7)


def outer_steps(rank, lr, momentum):
    """The agreed weights after three rounds, and those that torch's own optimizer makes."""
    worker = Worker(rank, "none", every=4, lr=lr, momentum=momentum)
    expected = nn.Parameter(worker.agreed().double())
    nesterov = torch.optim.SGD([expected], lr=lr, momentum=momentum, nesterov=momentum > 0)
    rows = []
    for step in range(12):
        worker.inner_step(step)
        if step % 4 == 3:
            mean = gathered(weights(worker.model).double()).mean(0)
            expected.grad = expected.detach() - mean
            nesterov.step()
        worker.outer.step()
        if step % 4 == 3:
            rows.append((worker.agreed(), weights(worker.model), expected.detach().clone()))
    worker.outer.close()
    return rows


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.0), (0.5, 0.6)])
def test_the_outer_step_is_nesterovs(worlds, lr, momentum):
    for rows in worlds[3].run(outer_steps, lr, momentum):
        for agreed, own, expected in rows:
            assert torch.equal(agreed, own)
            torch.testing.assert_close(agreed.double(), expected, rtol=0, atol=2e-6)


def agreements(rank, codec, settings, late):
    """The agreed weights after each inner step, and the model's after the last."""
    worker, rows = Worker(rank, codec, every=4, **settings), []
    for step in range(12):
        worker.inner_step(step)
        if late and rank == step % 3:
            time.sleep(0.02)  # whoever comes first or last, steps land where they should
        worker.outer.step()
        rows.append(worker.agreed())
    own = weights(worker.model)
    worker.outer.finish()
    rows.append(weights(worker.model))
    worker.outer.close()
    return torch.stack(rows), own


@pytest.mark.parametrize("codec", ["none", "qsgd:bits=4", "global-qsgd", "dqsg:step=1.2", SPARSE])
@pytest.mark.parametrize("settings", [{}, {"fragments": 2, "overlap": 3, "feedback": 1.0}])
def test_ranks_agree_to_the_bit_at_every_step(worlds, codec, settings):
    collective = {"feedback": None} if codec in ("dqsg:step=1.2", "global-qsgd") else {}
    found = worlds[3].run(agreements, codec, {**settings, **collective}, False)
    again = worlds[3].run(agreements, codec, {**settings, **collective}, True)
    (first, own), *others = found
    for rows, other_own in others:
        assert torch.equal(rows, first)
        assert torch.equal(other_own, own) == (settings == {})
    for one, two in zip(found, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    changed = [not torch.equal(a, b) for a, b in pairwise(first[:-1])]
    lands = [3, 5, 7, 9] if settings else [2, 6, 10]
    assert [i for i, differs in enumerate(changed) if differs] == lands


def carried(rank):
    """How far the weights moved when a fragment landed, by that and by the inner steps."""
    worker = Worker(rank, every=4, overlap=2)
    worker.train(range(4))
    began = weights(worker.model)
    worker.train(range(4, 5))
    worker.inner_step(5)
    learned = weights(worker.model) - began
    worker.outer.step()
    landed = weights(worker.model) - worker.agreed()
    worker.outer.close()
    return learned, landed


def test_what_was_learned_while_a_fragment_was_on_its_way_is_kept(worlds):
    for learned, landed in worlds[2].run(carried):
        assert learned.abs().max() > 1e-3
        torch.testing.assert_close(landed, learned, rtol=0, atol=1e-6)


# Error feedback


def accounts(rank, codec, feedback):
    """Of each round: the outer gradient, what is owed before and after it, and the mean sent."""
    worker, rows = Worker(rank, codec, every=3, lr=1.0, momentum=0.0, feedback=feedback), []
    for start in range(0, 12, 3):
        agreed, owed = worker.agreed(), worker.owed()
        for step in range(start, start + 3):
            worker.inner_step(step)
            if step < start + 2:
                worker.outer.step()
        change = agreed - weights(worker.model)
        worker.outer.step()
        rows.append((change, owed, worker.owed(), agreed - worker.agreed()))
    worker.outer.close()
    return rows


@pytest.mark.parametrize(("codec", "feedback"), [(SPARSE, None), (SPARSE, 0.5), ("qsgd:bits=2", 1)])
def test_what_was_sent_and_what_is_owed_make_up_the_outer_gradients(worlds, codec, feedback):
    """A worker sends its outer gradient and what it kept of what it owed, less what it owes now."""
    kept = 1.0 if feedback is None else feedback
    everyone = worlds[2].run(accounts, codec, feedback)
    for number, rounds in enumerate(zip(*everyone, strict=True)):
        changes, before, after, sent = (torch.stack(each) for each in zip(*rounds, strict=True))
        assert torch.equal(sent[0], sent[1])
        expected = (changes + kept * before - after).mean(0)
        torch.testing.assert_close(sent[0], expected, rtol=0, atol=1e-6)
        assert after.abs().max() > 1e-4
        if kept < 1 and number:
            twin = (changes + before - after).mean(0)
            assert (sent[0] - twin).abs().max() > 1e-4


def test_an_unbiased_codec_owes_nothing_unless_it_is_asked_to(worlds):
    for rounds in worlds[2].run(accounts, "qsgd:bits=2", None):
        assert all(not owed.any() for _, _, owed, _ in rounds)


# Workers that miss a round


def with_one_missing(rank, missing, codec, settings):
    """Changes, the mean step, and the own weights, of a round that `missing` have no part in."""
    worker = Worker(rank, codec, every=3, lr=1.0, momentum=0.0, **settings)
    worker.train(range(3))
    owed = worker.owed()
    for step in range(3, 6):
        worker.inner_step(step)
        if step < 5:
            worker.outer.step()
    agreed = worker.agreed()
    change = agreed - weights(worker.model)
    worker.outer.step(participate=rank not in missing)
    found = change, agreed - worker.agreed(), weights(worker.model), worker.agreed()
    kept = torch.equal(owed, worker.owed())
    stats = worker.outer.stats()
    worker.outer.close()
    return *found, kept, stats.counts["left_out"]


@pytest.mark.parametrize("missing", [[1], [0, 2], []])
def test_a_worker_that_misses_a_round_is_left_out_and_rejoins(worlds, missing):
    found = worlds[4].run(with_one_missing, missing, "none", {})
    changes = torch.stack([change for change, *_ in found])
    here = [rank for rank in range(4) if rank not in missing]
    mean, diluted = changes[here].mean(0), changes[here].sum(0) / 4
    for rank, (_, moved, own, agreed, _, left_out) in enumerate(found):
        torch.testing.assert_close(moved, mean, rtol=0, atol=1e-6)
        assert (moved - diluted).abs().max() > 1e-3 or not missing
        assert torch.equal(own, agreed)
        assert left_out == (rank in missing)


def test_what_a_missing_worker_owes_it_still_owes(worlds):
    found = worlds[2].run(with_one_missing, [1], SPARSE, {})
    assert [kept for *_, kept, _ in found] == [False, True]
    assert torch.equal(found[0][3], found[1][3])


def test_nothing_moves_if_everyone_misses_a_round(worlds):
    for _, moved, own, agreed, kept, _ in worlds[2].run(with_one_missing, [0, 1], SPARSE, {}):
        assert not moved.any()
        assert torch.equal(own, agreed)
        assert kept


def diverged(rank):
    worker = Worker(rank, every=2, momentum=0.0)
    if rank == 1:
        nn.init.constant_(worker.model[0].weight, float("nan"))
    worker.outer.step()
    worker.outer.step()
    worker.outer.close()
    return weights(worker.model), worker.outer.stats().counts["left_out"]


def test_a_worker_whose_weights_are_not_finite_is_left_out(worlds):
    found = worlds[3].run(diverged)
    for own, _ in found:
        assert torch.equal(own, weights(network()))
    assert [left_out for _, left_out in found] == [0, 1, 0]


# What is exchanged


class Odd(nn.Module):
    """Buffers of all kinds, a frozen parameter and a tied one."""

    def __init__(self, rank):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.tied = self.layer.weight
        self.frozen = nn.Parameter(torch.full((3,), 1.0 + rank), requires_grad=False)
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        self.register_buffer("cache", torch.full((2,), 1.0 + rank), persistent=False)


def exchange_once(rank):
    """The buffers of every rank before an exchange, and this one's after it."""
    model = Odd(rank)
    outer = OuterSteps(model, "none", every=1)
    for _ in range(rank + 1):
        model.norm(data(rank, 16 * WIDTH).view(16, WIDTH))
    before = gathered(torch.cat([model.norm.running_mean, model.norm.running_var]))
    outer.step()
    after = torch.cat([model.norm.running_mean, model.norm.running_var])
    outer.close()
    counted = int(model.norm.num_batches_tracked)
    return before, after, counted, model.mask, model.cache, model.frozen, outer.plan()


def test_buffers_of_floats_are_averaged_and_others_are_the_workers_own(worlds):
    for rank, found in enumerate(worlds[3].run(exchange_once)):
        before, after, counted, mask, cache, frozen, plan = found
        torch.testing.assert_close(after, before.mean(0), rtol=0, atol=1e-6)
        assert counted == rank + 1
        assert mask.tolist() == [0.0, float("-inf")]
        assert cache.tolist() == [1.0 + rank] * 2
        assert frozen.tolist() == [1.0 + rank] * 3
        names = {row.parameter for row in plan.rows}
        assert names == {"norm.weight", "norm.bias", "tied", "layer.bias",
                         "norm.running_mean", "norm.running_var", "mask"}  # fmt: skip


def of_every_rank(rank):
    """The weights that a worker starts with, after one without and one with outer steps."""
    model = network(seed=rank)
    outer = OuterSteps(model, "none")
    outer.close()
    return weights(model)


def test_everyone_starts_with_the_weights_of_rank_0(worlds):
    for own in worlds[2].run(of_every_rank):
        assert torch.equal(own, weights(network(seed=0)))


def small_steps(rank):
    """Outer steps of 2**-12 a round, of which bfloat16 has no half."""
    model = nn.Linear(4, 4, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    outer = OuterSteps(model, "none", every=1, lr=2.0**-4, momentum=0.0)
    for _ in range(33):
        with torch.no_grad():
            model.weight.sub_(2.0**-8)
        outer.step()
    outer.close()
    return model.weight.detach(), outer.state_dict()["outer"]["weights"]["weight"]


def test_agreed_weights_are_finer_than_a_model_of_bfloat16(worlds):
    for own, agreed in worlds[2].run(small_steps):
        assert own.tolist() == [[1 - 2.0**-7] * 4] * 4
        assert agreed.tolist() == [1 - 33 * 2.0**-12] * 16


def moments(rank):
    """The optimizer's state before and after an outer step."""
    worker = Worker(rank, every=3)
    worker.train(range(2))
    worker.inner_step(2)
    own = [each["exp_avg"].clone() for each in worker.optimizer.state.values()]
    worker.outer.step()
    after = [each["exp_avg"] for each in worker.optimizer.state.values()]
    worker.outer.close()
    return all(map(torch.equal, own, after)), own[0]


def test_the_moments_of_adamw_stay_local(worlds):
    (same, first), (also, second) = worlds[2].run(moments)
    assert same
    assert also
    assert not torch.equal(first, second)


def counted(rank, codec, every, steps):
    worker = Worker(rank, codec, every=every, min_numel=10_000)
    worker.train(range(steps))
    worker.outer.finish()
    worker.outer.finish()  # there is nothing left
    worker.outer.close()
    return worker.outer.stats()


@pytest.mark.parametrize(("steps", "exchanges"), [(8, 2), (9, 3)])
def test_bytes_are_those_of_the_exchanges(worlds, steps, exchanges):
    numel = sum(p.numel() for p in network().parameters())
    for stats in worlds[3].run(counted, "none", 4, steps):
        ring, roll_call = 2 * 2 * 4 * numel // 3, 2 * 8
        assert stats.bytes_sent == exchanges * (ring + roll_call)
        assert stats.steps == steps
        assert stats.counts == {"outer_steps": exchanges, "left_out": 0}
        assert stats.raw == tuple(name for name, _ in network().named_parameters())


def seeded(rank):
    """The weights of runs with seeds 0, 0 and 1, the second while the first is open."""
    workers = [Worker(rank, every=2, seed=seed) for seed in (0, 0, 1)]
    found = [worker.train(range(2)) for worker in workers]
    for worker in workers:
        worker.outer.close()
    again = Worker(rank, every=2)
    same = again.train(range(2))
    again.outer.close()
    return *found, same


def test_runs_that_are_open_at_once_draw_different_numbers(worlds):
    for first, second, third, again in worlds[2].run(seeded):
        assert torch.equal(first, again)
        assert not torch.equal(first, second)
        assert not torch.equal(first, third)


# Checkpoints


def resumed(rank, codec, settings, cut, by_dcp):
    """The weights of a run of 14 steps, and of one that was saved after `cut` of them."""
    whole = Worker(rank, codec, every=6, **settings)
    expected = whole.train(range(14))
    whole.outer.close()
    first = Worker(rank, codec, every=6, **settings)
    first.train(range(cut))
    parts = {"model": first.model, "optimizer": first.optimizer, "outer": first.outer}
    in_flight = len(first.outer._course.flights)
    file = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    if by_dcp is not None:
        dcp.save({"outer": first.outer}, checkpoint_id=by_dcp)
    first.train(range(cut, cut + 2))  # what was saved is no part of what goes on
    first.outer.close()
    second = Worker(rank, codec, every=6, **settings)
    second.model.load_state_dict(saved["model"])
    second.optimizer.load_state_dict(saved["optimizer"])
    if by_dcp is None:
        second.outer.load_state_dict(saved["outer"])
    else:
        dcp.load({"outer": second.outer}, checkpoint_id=by_dcp)
    got = second.train(range(cut, 14))
    second.outer.close()
    return expected, got, in_flight


@pytest.mark.parametrize("by_dcp", [False, True])
@pytest.mark.parametrize(
    ("codec", "settings", "cut", "in_flight"),
    [
        ("qsgd:bits=2", {"feedback": 1.0}, 8, 0),
        (SPARSE, {"fragments": 2, "overlap": 4, "feedback": 0.9}, 12, 2),
    ],
)
def test_a_run_resumes_to_the_bit_also_in_flight(
    worlds, tmp_path, codec, settings, cut, in_flight, by_dcp
):
    folder = str(tmp_path) if by_dcp else None
    found = worlds[2].run(resumed, codec, settings, cut, folder)
    for expected, got, flights in found:
        assert torch.equal(expected, got)
        assert flights == in_flight
    assert not torch.equal(found[0][0], found[1][0])


def joined(rank, cut):
    """Rank 1 has lost its state and joins the others; what it stands with, and what comes of it."""
    settings = {"every": 6, "overlap": 4}
    old = Worker(rank, SPARSE, **settings)
    old.train(range(cut))
    saved = old.outer.state_dict()
    own, agreed = weights(old.model), old.agreed()
    old.outer.close()
    new = Worker(rank, SPARSE, **settings)
    if rank != 1:
        new.model.load_state_dict(old.model.state_dict())
        new.outer.load_state_dict(saved)
    new.outer.join(known=rank != 1)
    expected = agreed if rank == 1 else own
    started = torch.equal(weights(new.model), expected) and torch.equal(new.agreed(), agreed)
    new.train(range(cut, 12))
    step = new.outer.state_dict()["outer"]["inner_step"]
    new.outer.finish()
    new.outer.close()
    return started, step, weights(new.model)


@pytest.mark.parametrize("cut", [8, 11])
def test_a_worker_that_lost_everything_joins_with_the_current_weights(worlds, cut):
    found = worlds[3].run(joined, cut)
    for started, step, own in found:
        assert started
        assert step == 12
        assert torch.equal(own, found[0][2])


def refused_to_join(rank):
    worker = Worker(rank, every=6)
    worker.train(range(3))
    states = [worker.outer.state_dict()]
    worker.train(range(3, 4))
    states.append(worker.outer.state_dict())
    worker.outer.load_state_dict(states[rank])
    with pytest.raises(ValueError, match="must join at one inner step, got rank 0 at 3, rank 1 at"):
        worker.outer.join(known=True)
    worker.outer.close()


def test_workers_do_not_join_at_different_steps(worlds):
    worlds[2].run(refused_to_join)


def bad_states(rank):
    outer = OuterSteps(network(), SPARSE, fragments=2, every=4)
    state = outer.state_dict()
    weight = {**state["outer"]["weights"], "0.weight": torch.zeros(3)}
    for bad, match in [
        ({}, "no state of outer steps: it has no 'inner_step'"),
        ({**state, "outer": {**state["outer"], "weights": weight}}, "another model: '0.weight'"),
        ({**state, "outer": {**state["outer"], "exchanged": [0]}}, "give `fragments=1`"),
    ]:
        with pytest.raises(ValueError, match=match):
            outer.load_state_dict(bad)
    outer.close()


def test_a_state_that_does_not_fit_is_refused(worlds):
    worlds[2].run(bad_states)


# Settings


def test_fragments_take_turns_and_are_about_as_large():
    settings = OuterSettings(every=7, fragments=3)
    due = [settings.due(step) for step in range(1, 15)]
    assert [len(each) for each in due] == [0, 1, 0, 1, 0, 0, 1] * 2
    tensors = tensors_of(nn.Sequential(*[nn.Linear(20, 20) for _ in range(6)]), 3)
    fragments = split(tensors, 3)
    assert [fragment.trained for fragment in fragments] == [840, 840, 840]
    assert sorted(s.tensor.number for f in fragments for s in f.slots) == list(range(12))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"every": 0}, "`every` must be an integer of at least 1, got 0"),
        ({"every": 3, "fragments": 4}, "`fragments` must be an integer from 1 to 3, since a round"),
        ({"every": 3, "overlap": 3}, "`overlap` must be an integer from 0 to 2, since a round"),
        ({"lr": float("inf")}, "`lr` must be at least 0, and finite, got inf"),
        ({"momentum": 1.5}, "`momentum` must be from 0 to 1, got 1.5"),
        ({"feedback": -0.1}, "`feedback` must be from 0 to 1, got -0.1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        OuterSettings(**settings)


@pytest.mark.parametrize(
    ("model", "fragments", "match"),
    [
        (torch.zeros(3), 1, "`model` must be a torch module, got Tensor"),
        (network().double(), 1, "'0.weight' is torch.float64; convert the model"),
        (network(), 5, "`fragments` must be at most 4"),
        (network().to("meta"), 1, "'0.weight' is on meta"),
    ],
)
def test_models_that_do_not_fit_are_refused(model, fragments, match):
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=match):
        tensors_of(model, fragments)


def disagree(rank):
    with pytest.raises(ValueError, match="`every` is 30 on rank 0 and 31 on rank 1"):
        OuterSteps(network(), "none", every=30 + rank)
    with pytest.raises(ValueError, match="need each other to be decoded, so none says what was"):
        OuterSteps(network(), gw.NDQSG(), feedback=1.0)


def test_ranks_with_different_settings_are_told(worlds):
    worlds[2].run(disagree)
