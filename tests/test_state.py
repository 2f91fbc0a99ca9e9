"""Checkpoints: per rank, of plain data, for `torch.save` and for DCP; resuming changes no bit."""

import io
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.reduction.checkpoint import pack, unpack
from laws import TWO_OF_EACH
from world import data, only_first_warns

POLICY = gw.Policy(
    codecs={
        "3.weight": gw.NDQSG(levels=3, block=1024, max_failures=0.005),
        "2.weight": gw.Cast("fp16"),
    }
)
LEARNING = "gradiveq:slice=128,warmup_steps=1,train_steps=8,compress_steps=9,inner=fp16"


def attached(spec, policy=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Linear(128, 100))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
    return ddp, gw.attach(ddp, gw.parse(spec), policy=policy)


def gradients(ddp, rank, steps):
    """The mean gradients of every step.

    Inputs lie in three dimensions, for GradiVeQ, and nearly agree among ranks, for NDQSG.
    """
    rows = []
    for step in steps:
        ddp.zero_grad()
        x = (data(9, 24, seed=step) + 0.01 * data(rank, 24, seed=step)).view(8, 3)
        ddp(x @ data(9, 3 * 128).view(3, 128)).square().mean().backward()
        rows.append(torch.cat([p.grad.reshape(-1) for p in ddp.parameters()]))
    return rows


def resumed(rank, spec, policy, cut, steps):
    """`steps` steps at once, and the same with a checkpoint after `cut` of them."""
    whole, one = attached(spec, policy)
    expected = gradients(whole, rank, range(steps))
    one.close()  # or the next one would draw other random numbers
    first, two = attached(spec, policy)
    gradients(first, rank, range(cut))
    file = io.BytesIO()
    torch.save(two.state_dict(), file)
    file.seek(0)
    second, three = attached(spec, policy)
    three.load_state_dict(torch.load(file, weights_only=True))
    got = gradients(second, rank, range(cut, steps))
    for handle in (two, three):
        handle.close()
    return all(torch.equal(a, b) for a, b in zip(expected[cut:], got, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("spec", TWO_OF_EACH)
def test_resume_is_bit_identical_with_every_codec(worlds, spec):
    assert worlds[2].run(resumed, spec, None, 2, 4) == [True, True]


def test_resume_is_bit_identical_with_a_policy_and_in_the_middle_of_a_phase(worlds):
    assert worlds[2].run(resumed, LEARNING, POLICY, 11, 14) == [True, True]


def checkpointed(rank, folder, steps):
    """Train and save by DCP; the state, and the gradients of the three steps that follow."""
    ddp, handle = attached(LEARNING, POLICY)
    gradients(ddp, rank, range(steps))
    dcp.save({"gradwire": handle}, checkpoint_id=folder)
    state = handle.state_dict()
    rows = gradients(ddp, rank, range(steps, steps + 3))
    handle.close()
    return state, rows


def restored(rank, folder, steps, partial=False):
    """Load by DCP into a fresh attachment; its state, gradients, and what was warned of."""
    ddp, handle = attached(LEARNING, POLICY)
    planner = dcp.DefaultLoadPlanner(allow_partial_load=partial)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dcp.load({"gradwire": handle}, checkpoint_id=folder, planner=planner)
    state = handle.state_dict()
    rows = gradients(ddp, rank, range(steps, steps + 3))
    handle.close()
    texts = [str(w.message) for w in caught]
    return state, rows, [text for text in texts if text.startswith("the state is of")]


def test_every_rank_gets_its_own_state_back_from_dcp(worlds, tmp_path):
    saved = worlds[2].run(checkpointed, tmp_path, 11)
    loaded = worlds[2].run(restored, tmp_path, 11)
    owed = [state[f"rank{rank}"]["residuals"]["2.weight"] for rank, (state, _) in enumerate(saved)]
    assert not torch.equal(*owed)
    for rank, ((_, rows), (state, again, texts)) in enumerate(zip(saved, loaded, strict=True)):
        assert torch.equal(state[f"rank{rank}"]["residuals"]["2.weight"], owed[rank])
        (agreement,) = (
            each["3.weight"] for each in unpack(state["learned"]).values() if "3.weight" in each
        )
        assert agreement["failure_rate"] is not None
        assert all(torch.equal(a, b) for a, b in zip(rows, again, strict=True))
        assert texts == []


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
def test_another_number_of_workers_keeps_what_is_shared_and_warns(worlds, tmp_path, before, after):
    """DCP refuses keys that a checkpoint lacks, as those of new ranks, unless told otherwise."""
    saved = worlds[before].run(checkpointed, tmp_path, 11)
    loaded = worlds[after].run(restored, tmp_path, 11, after > before)
    learned = unpack(saved[0][0]["learned"])
    for rank, (state, rows, texts) in enumerate(loaded):
        assert state["step"] == 11
        assert state["world"] == after
        again = unpack(state["learned"])
        assert list(again) == list(learned)
        assert [each for each in again.values() if "3.weight" in each] == []
        assert any("3.weight" in each for each in learned.values())
        basis, expected = (each[LEARNING]["0.weight"]["basis"] for each in (again, learned))
        assert torch.equal(basis, expected)
        local = state[f"rank{rank}"]
        assert all(residual.abs().max() == 0 for residual in local["residuals"].values())
        assert all(torch.equal(a, b) for a, b in zip(rows, loaded[0][1], strict=True))
        said = f"the state is of {before} workers and there are {after} now"
        assert [said in text for text in texts] == [True] * (rank == 0)


def load_wrongly(rank):
    _, handle = attached("fp16")
    state = handle.state_dict()
    other = {**state, f"rank{1 - rank}": state[f"rank{rank}"]}
    del other[f"rank{rank}"]
    with pytest.raises(
        ValueError, match=f"is of rank{1 - rank} of 2, but this worker is rank{rank}"
    ):
        handle.load_state_dict(other)
    state[f"rank{rank}"]["residuals"]["gone"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"the state is of unknown parameters: \['gone'\]"):
        handle.load_state_dict(state)
    handle.close()


def test_states_of_others_are_refused_with_a_sentence(worlds):
    worlds[2].run(load_wrongly)


def flat(state):
    """Everything in a state, to be compared."""
    rank = next(key for key in state if key.startswith("rank"))
    owed = {name: residual.tolist() for name, residual in state[rank]["residuals"].items()}
    return {**state, rank: owed}


def spoiled_states(state, rank):
    """States that do not fit, and what is said of them."""
    own = f"rank{rank}"

    def with_residual(residual):
        residuals = {**state[own]["residuals"], "2.weight": residual}
        return {**state, "step": 50, own: {**state[own], "residuals": residuals}}

    expected = r"the residual of '2.weight' must be float32 of shape \(16384,\), got"
    yield with_residual(torch.ones(3)), rf"{expected} \(torch.float32, \(3,\)\)"
    yield with_residual(torch.ones(128, 128)), rf"{expected} \(torch.float32, \(128, 128\)\)"
    yield with_residual(torch.ones(16384).double()), rf"{expected} \(torch.float64, \(16384,\)\)"
    yield with_residual(None), rf"{expected} None"
    yield {**state, "step": -1}, r"'step' of the state must be in \[0, 2\*\*32\), got -1"
    yield {**state, "step": 50, "stream": "a"}, "'stream' of the state must be in"
    yield {**state, "step": 50, "scale": 0.0}, "'scale' of the state must be positive, got 0.0"
    for key in ("world", "step", "modules", "stream", "scale", "learned"):
        yield {k: v for k, v in state.items() if k != key}, f"it has no '{key}'"
    learned = unpack(state["learned"])
    learned[LEARNING]["gone"] = learned[LEARNING]["0.weight"]
    yield {**state, "step": 50, "learned": pack(learned)}, r"unknown parameters: \['gone'\]"
    yield {**state, "step": 50, "learned": pack({})}, "the state was learned by no codec"


def load_what_does_not_fit(rank):
    ddp, handle = attached(LEARNING, POLICY)
    gradients(ddp, rank, range(11))
    state = handle.state_dict()
    for spoiled, text in spoiled_states(state, rank):
        with pytest.raises(ValueError, match=text):
            handle.load_state_dict(spoiled)
        assert flat(handle.state_dict()) == flat(state), text
    handle.close()
    return state[f"rank{rank}"]["residuals"]["2.weight"].abs().max().item()


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(worlds):
    assert all(owed > 0 for owed in worlds[2].run(load_what_does_not_fit))


def load_without_feedback(rank):
    """What was owed is dropped here, and that is said; where nothing is owed, nothing is said."""
    first, one = attached("fp16")
    nothing_owed = one.state_dict()
    gradients(first, rank, range(2))
    state = one.state_dict()
    one.close()
    _, two = attached("qsgd")
    words = "have no error feedback here: what is owed of them is dropped"
    with only_first_warns(rank, words):
        two.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        two.load_state_dict(nothing_owed)
    two.close()
    return two.state_dict()[f"rank{rank}"]["residuals"], two.stats().residual_bytes


def test_residuals_that_nothing_takes_up_are_spoken_of(worlds):
    assert worlds[2].run(load_without_feedback) == [({}, 0)] * 2
