"""Checkpoints of FSDP2: per rank, for `torch.save` and for DCP; resuming changes no bit."""

import io

import pytest
import torch
import torch.distributed.checkpoint as dcp

import gradwire as gw
from test_fsdp import equal, residuals_of, shard, shard_hybrid, train_step
from world import only_first_warns

OPTIONS = {"error_feedback": True, "seed": 1, "weights": gw.QSGD(bits=8)}
COUNTS = ("steps", "bytes_sent", "bytes_per_step", "bits_per_value", "weight_bytes")


def attached():
    module = shard()
    return module, gw.attach(module, gw.QSGD(bits=2), **OPTIONS)


def hybrid():
    return shard_hybrid(gw.QSGD(bits=4), **OPTIONS)[:2]


def counts(handle):
    return [getattr(handle.stats(), name) for name in COUNTS]


def by_torch_save(one, other, folder):
    """Each rank a file of its own."""
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))


def by_dcp(one, other, folder):
    dcp.save({"gradwire": one}, checkpoint_id=folder)
    dcp.load({"gradwire": other}, checkpoint_id=folder)


def resume(rank, make, carry, folder):
    """Six steps at once, and three, a checkpoint, and three more in a new module."""
    whole, all_at_once = make()
    first, one = make()
    second, other = make()
    expected = [train_step(whole, rank, step) for step in range(6)]
    for step in range(3):
        train_step(first, rank, step)
    second.load_state_dict(first.state_dict())
    carry(one, other, folder)
    owed = [residuals_of(each, rank) for each in (one, other)]
    resumed = [train_step(second, rank, step) for step in range(3, 6)]
    return expected[3:], resumed, owed, counts(all_at_once), counts(other)


@pytest.mark.parametrize("carry", [by_torch_save, by_dcp])
@pytest.mark.parametrize(("make", "size"), [(attached, 2), (hybrid, 4)])
def test_resume_is_bit_identical_and_counts_since_attach(worlds, tmp_path, make, size, carry):
    answers = worlds[size].run(resume, make, carry, str(tmp_path))
    for expected, resumed, (saved, loaded), counted, again in answers:
        assert all(map(equal, expected, resumed))
        assert set(saved) == set(loaded) == {"0", "2", "4"}
        assert all(torch.equal(saved[name], loaded[name]) for name in saved)
        assert (counted[0], again[0]) == (6, 3)
        assert again[1:] == [counted[1] // 2, *counted[2:4], again[-1]]
        assert 0 < again[-1] < counted[-1]
    assert not torch.equal(answers[0][2][0]["0"], answers[1][2][0]["0"])


def refuse(rank):
    """What does not fit is refused, and leaves everything as it was."""
    module, handle = attached()
    for step in range(2):
        train_step(module, rank, step)
    good, own = handle.state_dict(), f"rank{rank}"
    before = {name: residual.clone() for name, residual in good[own]["residuals"].items()}
    short = {**before, "within/4": before["within/4"][:-2]}
    others = {
        f"is of rank{1 - rank} of 2, but this worker is rank{rank}": {
            **{key: good[key] for key in good if key != own}, f"rank{1 - rank}": good[own],
        },
        r"differ in what they have: \['gone'\]": {
            **good, "modules": {**good["modules"], "gone": 1},
        },
        r"is of unknown parameters: \['between/gone'\]": {
            **good, own: {"residuals": {**before, "between/gone": torch.zeros(2)}},
        },
        r"residual of 'within/4' must be float32 of shape \(16384,\), got .*\(16382,\)": {
            **good, own: {"residuals": short},
        },
    }  # fmt: skip
    train_step(module, rank, 2)
    now, counted = handle.state_dict(), handle.stats()
    for words, state in others.items():
        with pytest.raises(ValueError, match=words):
            handle.load_state_dict({**state, "scale": 7.0})
        assert handle.state_dict()["modules"] == now["modules"]
        assert handle.state_dict()["scale"] == 1.0
        assert handle.stats() == counted
        for name, residual in residuals_of(handle, rank).items():
            assert torch.equal(residual, now[own]["residuals"][f"within/{name}"])
    some = {n: before[n] for n in ("within/0", "within/2")}
    with only_first_warns(rank, "the state has no residuals of 'within/4'"):
        handle.load_state_dict({**good, own: {"residuals": some}})
    found = residuals_of(handle, rank)
    assert torch.equal(found["0"], before["within/0"])
    assert not found["4"].any()
    plain = gw.attach(shard(), gw.QSGD(bits=2))
    with only_first_warns(rank, "the state has residuals of 'within/0', 'within/2', 'within/4'"):
        plain.load_state_dict(good)


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(worlds):
    worlds[2].run(refuse)


def take_over(rank, state):
    """Of the state of two workers three keep the steps."""
    module, handle = attached()
    train_step(module, rank, 0)
    with only_first_warns(rank, "the state is of 2 workers and there are 3 now"):
        handle.load_state_dict(state)
    zero = [bool((r == 0).all()) for r in residuals_of(handle, rank).values()]
    train_step(module, rank, 4)
    return handle.state_dict()["modules"], zero, handle.stats().steps


def save(rank):
    module, handle = attached()
    for step in range(4):
        train_step(module, rank, step)
    return handle.state_dict()


def test_another_number_of_workers_keeps_the_steps(worlds):
    state = worlds[2].run(save)[0]
    for steps, zero, counted in worlds[3].run(take_over, state):
        assert steps == {"": 5, "0": 5, "2": 5, "4": 5}
        assert zero == [True] * 3
        assert counted == 2
