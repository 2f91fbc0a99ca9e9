"""The process groups and threads of an attachment: made among its own members, and given back."""

import gc
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from test_ddp_use import Net, batch


def gradient(rank, group=None, step=0):
    """Attach, make a step and close; the mean gradient."""
    ddp = DistributedDataParallel(Net(), process_group=group)
    handle = gw.attach(ddp, gw.QSGD(bits=8))
    ddp(batch(rank, step)).square().sum().backward()
    handle.close()
    return torch.cat([p.grad.reshape(-1) for p in ddp.parameters()])


def among_leaders(rank):
    """Ranks 0 and 1 train one model, 2 and 3 another; 0 and 2 belong to one more group."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    leaders = dist.new_group([0, 2], use_local_synchronization=True)
    found = [gradient(rank, pairs[rank // 2], step) for step in range(2)]
    if leaders is not None and rank in (0, 2):
        found.append(gradient(rank, leaders))
    found.append(gradient(rank, pairs[rank // 2], 2))
    return found


def test_members_may_belong_to_other_groups_and_attach_again(worlds):
    first, second, third, fourth = worlds[4].run(among_leaders)
    for mine, theirs in ((first, second), (third, fourth)):
        assert len(mine) == len(theirs) + 1
        for a, b in zip([*mine[:2], mine[3]], theirs, strict=True):
            assert torch.equal(a, b)
            assert a.abs().max() > 0
    assert torch.equal(first[2], third[2])
    assert not torch.equal(first[0], third[0])


def held():
    """Threads and open files of this process."""
    return [len(list(Path("/proc/self", kind).iterdir())) for kind in ("task", "fd")]


def held_after(before):
    """The same, once threads that have ended are gone from the system's list."""
    deadline = time.monotonic() + 20
    while any(a > b for a, b in zip(held(), before, strict=True)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held()


def forget(rank, how):
    """What there is before an attachment, with it, and after nobody has it any more."""
    gradient(rank)  # what is made once
    dist.barrier()
    before = held()
    ddp = DistributedDataParallel(Net())
    handle = gw.attach(ddp, gw.QSGD(bits=2), error_feedback=True)
    if how == "logging":
        handle.log_to(None, every=10, nmse=True)
    ddp(batch(rank, 0)).square().sum().backward()
    threads = [t for t in threading.enumerate() if t.name.startswith("gradwire")]
    during = held()
    del ddp
    gc.collect()
    kept = [t.is_alive() for t in threads]
    handle._stream.close()  # or other tests that share this process would draw other numbers
    del handle
    gc.collect()
    for thread in threads:
        thread.join(60)
    del threads, thread
    dist.barrier()
    return before, during, kept, held_after(before)


@pytest.mark.parametrize("how", ["training", "logging"])
def test_an_attachment_that_nobody_has_any_more_gives_everything_back(worlds, how):
    for before, during, kept, after in worlds[2].run(forget, how):
        assert during[0] >= before[0] + 6
        assert during[1] >= before[1] + 6
        assert kept == [True] * 3
        assert after[0] <= before[0]
        assert after[1] <= before[1]


class Failing(gw.QSGD):
    """Fails on rank 1 alone."""

    def encode_into(self, x, out, key, offset=0):
        if key.rank == 1:
            raise ValueError("out of ink")
        return super().encode_into(x, out, key, offset)


def fail_and_go_on(rank):
    """Nobody closes anything before all have raised their errors."""
    ddp = DistributedDataParallel(Net())
    handle = gw.attach(ddp, Failing(bits=4), collective="all_gather")
    with pytest.raises(RuntimeError, match="out of ink"):
        ddp(batch(rank, 0)).square().sum().backward()
    dist.barrier()
    handle.close()


def test_a_lane_that_has_failed_lets_the_others_go_before_it_is_closed(worlds):
    worlds[3].run(fail_and_go_on)
