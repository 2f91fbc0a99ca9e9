"""What a codec is asked for on a GPU before training starts, so that nothing fails in the middle.

Its kernels are compiled here, too: the first step takes no longer than others.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradwire import scratch
from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Codec
from gradwire.collectives import COLLECTIVES, Collective
from gradwire.key import Key
from gradwire.scratch import Scratch
from gradwire.transport.device import Device

_NUMEL = 9001
"""Two whole groups of tiles, and some values more."""
_MATRIX = 1 << 20
"""Of so many values factors of any rank are shorter."""
_GLOO = "or reduce over gloo, on the CPU: `process_group=dist.new_group(backend='gloo')`"


def check_sizes(codec: Codec, device: Device) -> None:
    """Over NCCL, workers must know what they will be sent without asking the GPU."""
    if device.memory.type == "cpu":
        return
    if codec.host_only:
        raise NotImplementedError(
            f"{codec!r} {codec.host_only}, got gradients on {device.memory} over nccl; use "
            f"another codec, such as `EDEN`, {_GLOO}."
        )
    if not codec.fixed_size:
        raise ValueError(
            f"payloads of {codec!r} differ in size, which workers on {device.memory} would have to "
            f"tell each other, and wait; use `wire=packed` if it has that, {_GLOO}."
        )


def rehearse(codec: Codec, collective: Collective, world: int, device: Device) -> None:
    """Refuse a codec that will not do on `device`: nothing but the CPU has all kernels."""
    check_sizes(codec, device)
    if device.memory.type == "cpu":
        return
    with device.entered(), scratch.using(Scratch()):  # that of the thread may be of another queue
        for each, by, numel in _ways(codec, collective):
            by.rehearse(each, [torch.zeros(numel, device=device.memory)] * world, Key())


def _ways(codec: Codec, collective: Collective) -> Iterator[tuple[Codec, Collective, int]]:
    """What encodes steps, how it travels, and of how many values."""
    if not isinstance(codec, AdaptiveCodec):
        yield codec, collective, _NUMEL
        return
    for each in codec.examples(_MATRIX):
        yield each, COLLECTIVES.get(each.collective or "", collective), _MATRIX
