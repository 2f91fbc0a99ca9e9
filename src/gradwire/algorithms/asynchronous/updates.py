"""The way from the weights that a worker holds to those of the server, eq. (3)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradwire.algorithms.asynchronous.layout import ALIGN, Layout
from gradwire.codecs.cast import Identity
from gradwire.key import Key
from gradwire.wire import WireError

Factors = npt.NDArray[np.float32]
SMALL = 1e-30


def encode_update(layout: Layout, key: Key, weights: Tensor, held: Tensor) -> bytes:
    """What leads `held` towards `weights`; `held` goes that way, as the worker's will.

    Sections that travel raw have the weights themselves, so that they are exact.
    """
    way = weights - held
    for part in _raw(layout):
        way[part] = weights[part]
    messages = layout.encode(way, key)
    said = torch.empty_like(way)
    layout.decode(memoryview(messages), key, said)
    factors = np.zeros(_num_factors(layout), np.float32)
    for section in layout.sections:
        part = slice(section.start, section.stop)
        factors[section.number] = _factor(way[part], said[part])
    _go(layout, held, said, factors)
    return factors.tobytes() + messages


def follow_update(layout: Layout, key: Key, body: memoryview, held: Tensor) -> None:
    """Let `held` go the way that `body` says. `WireError` leaves it as it was."""
    start = 4 * _num_factors(layout)
    if len(body) < start:
        raise WireError(f"an update has at least {start} bytes, got {len(body)}.")
    factors = np.frombuffer(body[:start], np.float32)
    if not np.isfinite(factors).all():
        raise WireError("the factors of an update are not finite.")
    said = torch.empty_like(held)
    layout.decode(body[start:], key, said)
    _go(layout, held, said, factors)


def max_update_nbytes(layout: Layout) -> int:
    """The most that an update takes."""
    return 4 * _num_factors(layout) + layout.max_nbytes


def _go(layout: Layout, held: Tensor, said: Tensor, factors: Factors) -> None:
    """The same on both sides, to the bit."""
    for part in _raw(layout):
        held[part] = 0.0
    for section in layout.sections:
        said[section.start : section.stop].mul_(float(factors[section.number]))
    held.add_(said)


def _raw(layout: Layout) -> list[slice]:
    return [
        slice(section.start, section.stop)
        for section in layout.sections
        if isinstance(section.codec, Identity)
    ]


def _factor(way: Tensor, said: Tensor) -> float:
    """How far to go along what was said, so that least is left."""
    # bits: one side computes it, and sends it to the other
    product, square = float(torch.dot(way, said)), float(torch.dot(said, said))
    if not SMALL < square < math.inf or not math.isfinite(product):
        along, energy = way.double(), said.double()
        # bits: as above, for values whose squares float32 does not have
        product, square = float(torch.dot(along, energy)), float(torch.dot(energy, energy))
    return product / square if square > 0 else 0.0


def _num_factors(layout: Layout) -> int:
    """One a section, and a few more so that messages are aligned."""
    return -(-4 * len(layout.sections) // ALIGN) * ALIGN // 4
