"""Buckets and chunks do not change a bit of what is coded, whichever way floats are added."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from test_gradiveq import CYCLE, SPEC, Planted, means

LAYOUTS = [(None, 25.0), (10_000, 25.0), (None, 0.06), (3000, 0.1)]
"""`chunk` and `bucket_cap_mb`."""


def coded(rank, spec, steps, chunk, cap):
    """The mean gradients of three parameters that are coded, and where they stood in the end."""
    ddp = DistributedDataParallel(Planted(), bucket_cap_mb=cap)
    handle = gw.attach(ddp, gw.parse(spec), chunk=chunk)
    rows = means(ddp, rank, range(steps))
    handle.close()
    return torch.stack([torch.cat([g.reshape(-1) for g in row[:3]]) for row in rows])


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        ("fp16", 3),
        ("bf16", 3),
        ("global-qsgd:norm=l2", 3),
        ("global-qsgd:norm=max-l2,dither=subtractive", 3),
        ("powersgd", 3),
        ("powersgd:rank=2,inner=global-qsgd:norm=l2;dither=subtractive", 3),
        (SPEC, 18),  # through all phases
        (f"{CYCLE},inner=fp16", 18),
        (f"{CYCLE},inner=global-qsgd:norm=l2;dither=exponential", 18),
    ],
)
def test_the_mean_does_not_depend_on_buckets_or_chunks(worlds, spec, steps):
    """Among three workers; a ring of three adds in an order that depends on the place."""
    first = worlds[3].run(coded, spec, steps, *LAYOUTS[0])
    for layout in LAYOUTS[1:]:
        for rank, got in enumerate(worlds[3].run(coded, spec, steps, *layout)):
            assert torch.equal(got, first[rank]), layout
    assert all(torch.equal(got, first[0]) for got in first)


def test_the_test_of_layouts_rejects_a_ring(worlds):
    """`none` is summed by the backend, as in plain DDP, and there the last bit does depend."""
    one, other = (worlds[3].run(coded, "none", 3, *layout)[0] for layout in LAYOUTS[:3:2])
    assert not torch.equal(one, other)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
