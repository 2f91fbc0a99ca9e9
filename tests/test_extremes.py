"""Finite values decode to finite values, however large they are."""

import pytest
import torch

import gradwire as gw
from gradwire import kernels
from gradwire.kernels import reference
from laws import EXAMPLES, roundtrip

KEY = gw.Key(seed=3, step=5, tensor=2, rank=1)
LARGEST = torch.finfo(torch.float32).max
EXTREMES = {
    "positive": torch.full((1100,), LARGEST),
    "negative": torch.full((1100,), -LARGEST),
    "mixed": torch.tensor([LARGEST, -LARGEST, 1.0, 0.7 * LARGEST]).repeat(275),
    "spike": torch.nn.functional.pad(torch.tensor([LARGEST]), (700, 399)),
    "square": torch.randn(1100, generator=torch.Generator().manual_seed(0)) * 1e30,
}
OUT_OF_RANGE = {"fp16", "bf16", "fft"}
"""Float32's largest value is beyond theirs; and a spectrum of such values is beyond float32."""
STOCHASTIC = [s for s in EXAMPLES if gw.parse(s).unbiased and s not in ("none", "lossless")]


def in_range(spec):
    """Neither the codec nor the one within it is out of range."""
    inner = gw.parse(spec).settings().get("inner") or ""
    return not {spec.split(":")[0], inner} & OUT_OF_RANGE


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("spec", [spec for spec in EXAMPLES if in_range(spec)])
def test_finite_values_decode_to_finite_values(spec, extreme, monkeypatch):
    """However large, in payloads and in means, and the same bits from both backends."""
    codec, x = gw.parse(spec), EXTREMES[extreme]
    y = roundtrip(codec, x, KEY)
    assert y.isfinite().all()
    vectors = [x, -x.flip(0), x]
    assert all(gw.simulate(codec, vectors[:n], KEY).isfinite().all() for n in (1, 2, 3))
    monkeypatch.setattr(kernels, "for_device", lambda device: reference)
    assert torch.equal(roundtrip(codec, x, KEY).view(torch.int32), y.view(torch.int32))


@pytest.mark.parametrize("spec", STOCHASTIC)
def test_values_beyond_the_largest_scale_are_clipped_to_it(spec):
    """Too small by half at most; those below it are on average what they were."""
    codec = gw.parse(spec)
    x = torch.tensor([LARGEST, -LARGEST, 0.25 * LARGEST, -0.25 * LARGEST]).repeat(150)
    draws = [roundtrip(codec, x, gw.Key(seed=9, step=step)).double() for step in range(60)]
    mean = (torch.stack(draws).view(60, 150, 4) / LARGEST).mean((0, 1))
    torch.testing.assert_close(
        mean, torch.tensor([0.5, -0.5, 0.25, -0.25]).double(), rtol=0, atol=0.01
    )
