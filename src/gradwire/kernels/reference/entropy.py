"""Payloads of values in steps, made one thing after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.formats.layout import MOST as ZERO
from gradwire.kernels.formats.layout import TILE, num_blocks, packed_nbytes
from gradwire.kernels.formats.sample import BINS, LEAST, LOWEST, MOST, PARTS, TILES
from gradwire.kernels.reference.dithered import dequantize_dithered, quantize_dithered
from gradwire.kernels.reference.huffman import huffman_decode, huffman_encode
from gradwire.kernels.reference.scales import block_steps, moments
from gradwire.key import Key


def count_ratios(
    x: Tensor, counts: Tensor, limits: Tensor, *, segment: int | None, block: int | None
) -> None:
    if not x.numel():
        return
    peaks, rms = moments(x, block)
    for s, start in enumerate(range(0, x.numel(), segment or x.numel())):
        part = x[start : start + segment if segment else None].float()
        every = -(-part.numel() // (TILE * TILES))
        for k, at in enumerate(range(0, max(part.numel() // TILE, 1) * TILE, TILE * every)):
            values = part[at : at + TILE].abs()
            owners = (start + at + torch.arange(len(values))) // (block or x.numel())
            bins = _parts(values / rms[owners]) - LOWEST * PARTS
            bins[~values.isfinite() | rms[owners].isnan()] = 0
            counts[s, k] = torch.bincount(bins.clamp(0, BINS - 1), minlength=BINS)
            limits[s, k] = (_parts(peaks / (ZERO * rms))[owners[0]] + 1).clamp(LEAST, MOST)


def _parts(ratios: Tensor) -> Tensor:
    """Which part of an octave they are in, from 1 on."""
    return (ratios.view(torch.int32) >> 20) - 127 * PARTS


def encode_dithered(
    x: Tensor,
    ratios: Tensor,
    out: Tensor,
    *,
    segment: int | None,
    block: int | None,
    key: Key,
    offset: int = 0,
) -> int:
    steps = torch.empty(num_blocks(x.numel(), block))
    codes = torch.empty(packed_nbytes(x.numel(), 8), dtype=torch.uint8)
    block_steps(x, ratios, steps, segment=segment, block=block)
    quantize_dithered(x, steps, codes, zero=ZERO, block=block, key=key, offset=offset)
    out[: steps.nbytes] = steps.view(torch.uint8)
    return steps.nbytes + huffman_encode(codes, out[steps.nbytes :], zero=ZERO)


def decode_dithered(
    payload: Tensor,
    out: Tensor,
    *,
    block: int | None,
    key: Key,
    offset: int = 0,
    weight: float = 1.0,
    accumulate: bool = False,
) -> bool:
    nbytes = 4 * num_blocks(out.numel(), block)
    codes = torch.empty(packed_nbytes(out.numel(), 8), dtype=torch.uint8)
    if payload.numel() < nbytes or not huffman_decode(payload[nbytes:], codes, zero=ZERO):
        return False
    dequantize_dithered(
        payload[:nbytes].clone().view(torch.float32), codes, out, zero=ZERO, width=8, block=block,
        key=key, offset=offset, weight=weight, accumulate=accumulate,
    )  # fmt: skip
    return True
