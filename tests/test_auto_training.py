"""`gw.attach(ddp, "auto")` among real workers, whose link is made up: decisions, not clocks."""

import io
import itertools
import logging
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.adapters.ddp.auto import course, survey
from gradwire.planner.auto.decide import shortlist, verdict
from gradwire.planner.auto.facts import RAW
from gradwire.planner.auto.forecast import Forecast
from gradwire.planner.network import Network
from gradwire.reduction.checkpoint import unpack
from test_ddp_steps import Bucket
from test_ddp_use import SCENES, Net, batch, flat

SLOW, FAST = 1e5, 1e15
MOST_STEPS = 80


@contextmanager
def link_of(*rates):
    """A link of these rates, one for each look; steps take what is predicted for them."""
    left = iter(rates)

    def found_there(facts, auto, before=None):
        made = replace(
            facts, network=Network.ideal(facts.network.workers, next(left), 0.0), job_s=1e-3,
            buckets=tuple(replace(each, at_s=0.0) for each in facts.buckets), outside_s=0.0,
            cost_s=0.0,
        )  # fmt: skip
        plan = RAW if before is None else before.plan
        return shortlist(replace(made, span_s=Forecast(made).span_s(plan)), auto, before)

    def as_predicted(found, before, seconds):
        return verdict(found, before, [each.step_s for each in found.tried[: len(seconds)]])

    with (
        mock.patch.object(survey, "shortlist", found_there),
        mock.patch.object(course, "verdict", as_predicted),
    ):
        yield


class Run:
    """Steps with gradients that differ from rank to rank and from step to step."""

    def __init__(self, rank, spec="auto", make=Net, policy=None, **options):
        self.rank, self.step = rank, 0
        self.ddp = DistributedDataParallel(make(), **{"bucket_cap_mb": 0.1, **options})
        self.handle = gw.attach(self.ddp, spec, policy=policy)

    def gradient(self, factor=1.0):
        """The mean gradient of the next step."""
        self.ddp.zero_grad()
        loss = self.ddp(batch(self.rank, self.step), self.step).square().mean()
        (loss * factor).backward()
        self.step += 1
        found = [p.grad for p in self.ddp.parameters() if p.grad is not None]
        return torch.cat([(g.to_dense() if g.is_sparse else g).double().view(-1) for g in found])

    def settled(self):
        """Go on until the plan is settled; the gradients and where it stood after each step."""
        gradients, notes = [], []
        while not notes or not self.handle.plan().is_settled:
            assert len(notes) < MOST_STEPS
            gradients.append(self.gradient())
            notes.append(self.handle.plan().note)
        return gradients, notes

    def codecs(self):
        return {row.parameter: row.codec for row in self.handle.plan().rows}


def phases_of(notes):
    """What was done, one after the other."""
    return [key for key, _ in itertools.groupby(note.split()[1].rstrip(",") for note in notes)]


def through_all_phases(rank):
    """Measure, try, hold, look again, and go back to raw."""
    errors = []
    with link_of(SLOW, FAST):
        run = Run(rank, "auto:every=20")
        gradients, notes = run.settled()
        plans = [run.codecs()]
        run.handle.log_to(Errors(errors), every=1, nmse=True)
        while run.handle.plan().is_settled:
            gradients.append(run.gradient())
        more, later = run.settled()
        plans.append(run.codecs())
        gradients += [*more, run.gradient()]
    run.handle.close()
    return gradients, phases_of(notes), phases_of(later), plans, errors


class Errors:
    """A writer that keeps the errors of messages."""

    def __init__(self, found):
        self.found = found

    def add_scalar(self, tag, value, step):
        if tag == "gradwire/nmse":
            self.found.append(value)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_are_equal_in_every_phase_and_errors_keep_to_the_budget(worlds, size):
    first, *others = worlds[size].run(through_all_phases)
    gradients, phases, later, (coded, raw), _ = first
    assert phases[:2] == ["measuring", "trying"]
    assert later[:2] == ["measuring", "trying"]
    assert all(codec.startswith("dqsg") for name, codec in coded.items() if "weight" in name)
    assert all(codec.startswith("raw") for codec in raw.values())
    for theirs, *_, plans, _ in others:
        assert plans == [coded, raw]
        assert len(theirs) == len(gradients)
        assert all(torch.equal(a, b) for a, b in zip(gradients, theirs, strict=True))
    for *_, errors in (first, *others):
        assert len(errors) >= 19
        assert 0 < max(errors[:19]) <= 0.15


def out_of_the_way(rank):
    """Gradients and bytes of every step, on a link where nothing pays; and those of plain DDP."""
    with link_of(FAST):
        run = Run(rank)
        gradients, notes = run.settled()
        before = run.handle.stats()
        gradients += [run.gradient() for _ in range(3)]
        after = run.handle.stats()
    run.handle.close()
    other = Run(rank, "none")
    plain = [other.gradient() for _ in gradients]
    stats = other.handle.stats()
    other.handle.close()
    equal = all(torch.equal(a, b) for a, b in zip(gradients, plain, strict=True))
    return equal, phases_of(notes), after.bytes_sent - before.bytes_sent, 3 * stats.bytes_per_step


def test_where_nothing_pays_it_is_plain_ddp_bit_for_bit_and_byte_for_byte(worlds):
    for equal, phases, sent, expected in worlds[2].run(out_of_the_way):
        assert equal
        assert "trying" not in phases
        assert sent == expected


def saved(handle):
    """The state, by way of a file."""
    file = io.BytesIO()
    torch.save(handle.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(rank, phase):
    """Save in the middle of a phase and go on with a fresh attachment."""
    with link_of(*[SLOW] * 4):
        run = Run(rank, "auto:every=60")
        while phase not in run.handle.plan().note:
            run.gradient()
        run.gradient()
        state, plan, step = saved(run.handle), run.codecs(), run.step
        expected = [run.gradient() for _ in range(3)]
        run.handle.close()
        other = Run(rank, "auto:every=60")
        other.handle.load_state_dict(state)
        other.step = step
        loaded = other.codecs()
        got = [other.gradient() for _ in range(3)]
        other.settled()
        settled = other.codecs()
    other.handle.close()
    equal = all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    return equal, plan, loaded, settled, got


@pytest.mark.parametrize("phase", ["about", "measuring", "trying", "next look"])
def test_resume_in_every_phase(worlds, phase):
    """What is settled goes on bit for bit; measuring and trying begin anew, from raw gradients."""
    (equal, plan, loaded, settled, got), (*_, theirs) = worlds[2].run(resumed, phase)
    assert all(torch.equal(a, b) for a, b in zip(got, theirs, strict=True))
    assert settled["first.weight"].startswith("dqsg")
    if phase == "next look":
        assert equal
        assert loaded == plan == settled
    else:
        assert all(codec.startswith("raw") for codec in loaded.values())


def reloaded(rank):
    """Go back to an early state, and then to a later one, with the same attachment."""
    with link_of(*[SLOW] * 3):
        run = Run(rank)
        early = saved(run.handle)
        run.settled()
        late, plan = saved(run.handle), run.codecs()
        run.handle.load_state_dict(early)
        fresh = run.codecs(), run.handle.plan().note
        run.gradient()
        measuring = run.handle.plan().note
        run.handle.load_state_dict(late)
        again, note = run.codecs(), run.handle.plan().note
        run.gradient()
        held = run.handle.plan().note
    run.handle.close()
    return fresh, measuring, again == plan, held == note


def test_a_state_says_all_there_is_to_say(worlds):
    for (codecs, note), measuring, is_same, holds in worlds[2].run(reloaded):
        assert all(codec.startswith("raw") for codec in codecs.values())
        assert (note, measuring) == ("auto: about to measure", "auto: measuring")
        assert is_same
        assert holds


def state_of(rank):
    with link_of(SLOW):
        run = Run(rank)
        run.settled()
    state = saved(run.handle)
    run.handle.close()
    return state


def load_elsewhere(rank, states):
    """Into more workers, another model and another codec."""
    run = Run(rank)
    mine = dict(states[0], **{f"rank{rank}": {"residuals": {}}})
    run.handle.load_state_dict(mine)
    assert run.handle.plan().note == "auto: about to measure"
    assert run.handle.state_dict()["step"] == states[0]["step"]
    run.handle.close()
    other = Run(rank, "qsgd:bits=4")
    with pytest.raises(ValueError, match="was learned by auto, but of the codecs attached no"):
        other.handle.load_state_dict(mine)
    other.handle.close()


def test_a_state_of_other_workers_is_planned_anew(worlds):
    states = worlds[2].run(state_of)
    plan = unpack(states[0]["learned"])["auto"]["plan"]
    assert set(plan) == {"first.weight", "maybe.weight", "last.weight"}
    assert states[0]["learned"] == states[1]["learned"]
    worlds[3].run(load_elsewhere, states)


def with_policy(rank):
    policy = gw.Policy(skip=("first.*",), codecs={"maybe.*": "qsgd:bits=8"}, warmup_steps=4)
    with link_of(SLOW):
        run = Run(rank, policy=policy)
        notes = [(run.gradient(), run.handle.plan().note)[1] for _ in range(5)]
        run.settled()
    plan = run.codecs()
    run.handle.close()
    return notes, plan


def test_a_policy_holds(worlds):
    for notes, plan in worlds[2].run(with_policy):
        assert ["measuring" in note for note in notes] == [False] * 3 + [True] * 2
        assert plan["first.weight"] == "raw, skipped"
        assert plan["maybe.weight"] == "qsgd:bits=8"
        assert plan["last.weight"].startswith("dqsg")
        assert plan["last.bias"] == "raw, small"


def use(rank, scene):
    """A plan is found, and kept for a step; its gradient and the plan."""
    make, options = SCENES[scene]
    with link_of(SLOW):
        run = Run(rank, make=make, **options)
        run.settled()
        found = run.gradient(), run.codecs()
    run.handle.close()
    return found


@pytest.mark.parametrize(
    "scene", ["static_graph", "find_unused", "mixed dtypes", "sparse", "gradient_as_bucket_view"]
)
def test_uses_of_ddp(worlds, scene):
    (mine, plan), (theirs, other) = worlds[2].run(use, scene)
    assert torch.equal(mine, theirs)
    assert plan == other
    assert plan["first.weight"].startswith("dqsg")
    if scene == "mixed dtypes":
        assert plan["last.weight"] == "raw, float64"
    if scene == "sparse":
        assert plan["embed.weight"] == "raw, sparse"


def uneven(rank):
    """Rank 1 is through while it measures; the others go on, and accumulate now and then."""
    with link_of(SLOW):
        run = Run(rank)
        with run.ddp.join():
            for step in range(4 if rank else MOST_STEPS):
                if step % 3 == 0:
                    with run.ddp.no_sync():
                        run.ddp(batch(rank, step)).sum().backward()
                run.gradient()
    settled, plan = run.handle.plan().is_settled, run.codecs()
    run.handle.close()
    return settled, plan, flat(run.ddp)


def test_workers_that_are_through_still_do_their_part(worlds):
    (settled, plan, mine), (also, other, theirs) = worlds[2].run(uneven)
    assert settled and also
    assert plan == other
    assert plan["first.weight"].startswith("dqsg")
    assert torch.equal(mine, theirs)


def spoiled(rank):
    """Steps that overflow while it measures, and one that is given up."""
    with link_of(*[SLOW] * 5):
        run = Run(rank)
        for _ in range(8):
            run.gradient(factor=float("inf") if rank else 1.0)
        measuring = run.handle.plan().note
        run.handle.hook()(None, Bucket(rank, run.ddp.module.last.parameters()))
        run.settled()
    plan, last = run.codecs(), run.gradient()
    run.handle.close()
    return measuring, plan, last


def test_gradients_that_are_not_finite_are_measured_again(worlds):
    (measuring, plan, mine), (_, other, theirs) = worlds[2].run(spoiled)
    assert measuring == "auto: measuring"
    assert plan == other
    assert plan["first.weight"].startswith("dqsg")
    assert torch.equal(mine, theirs)


def alone(rank):
    groups = [dist.new_group([each]) for each in range(2)]
    run = Run(rank, process_group=groups[rank])
    run.gradient()
    plan = run.handle.plan()
    run.handle.close()
    return plan.is_settled, plan.note, run.handle.stats().bytes_sent


def test_a_single_worker_has_nothing_to_plan(worlds):
    assert worlds[2].run(alone) == [(True, "auto: nothing to plan", 0)] * 2


def logged(rank):
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("gradwire")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with link_of(SLOW):
            run = Run(rank)
            run.settled()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    run.handle.close()
    return heard


def test_one_rank_says_what_was_found_and_decided(worlds):
    (trying, decided), others = worlds[2].run(logged)
    assert others == []
    assert trying.startswith("auto: step ")
    assert "800 kbit/s link" in trying
    assert "from now on" in decided
    assert "Next look at step" in decided


def refused(rank):
    ddp = DistributedDataParallel(Net())
    for options, said in (
        ({"collective": "all_gather"}, "`auto` chooses the collective"),
        ({"error_feedback": True}, "`auto` chooses among unbiased codecs"),
    ):
        with pytest.raises(ValueError, match=said):
            gw.attach(ddp, "auto", **options)
    with pytest.raises(ValueError, match=r"`codec` is 'auto' on rank 0 and 'auto:error=0\.1'"):
        gw.attach(ddp, gw.Auto(error=0.1) if rank else gw.Auto())
    with pytest.raises(ValueError, match="'auto' is no codec"):
        gw.attach(torch.distributed.fsdp.fully_shard(Net()), "auto")
    with pytest.raises(ValueError, match="'auto' is no codec"):
        gw.all_reduce(torch.zeros(8), "auto")


def test_what_makes_no_sense_is_refused_with_a_sentence(worlds):
    worlds[2].run(refused)
