"""What a codec is asked for on a GPU before training starts, so that nothing fails in the middle.

Its kernels are compiled here, too: the first step takes no longer than others.
"""

from __future__ import annotations

import torch

from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Codec
from gradwire.collectives import Collective
from gradwire.kernels.formats.debt import Debt
from gradwire.key import Key
from gradwire.transport.device import Device

_NUMEL = 9001
"""Two whole groups of tiles, and some values more."""
_GLOO = "or reduce over gloo, on the CPU: `process_group=dist.new_group(backend='gloo')`"


def check_sizes(codec: Codec, device: Device) -> None:
    """Over NCCL, workers must know what they will be sent without asking the GPU."""
    if device.memory.type == "cpu":
        return
    if isinstance(codec, AdaptiveCodec):
        raise NotImplementedError(
            f"{codec!r} decides from step to step by numbers that only the CPU works out so far, "
            f"got gradients on {device.memory} over nccl; use a codec without memory, such as "
            f"`DQSG`, {_GLOO}."
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
    try:
        with device.entered():
            vectors = [torch.zeros(_NUMEL, device=device.memory)] * world
            mean = collective.simulate(codec, vectors, Key())
            payload = codec.encode(vectors[0], Key())
            codec.subtract(payload, mean, Key())
            debt = Debt(mean, vectors[0], vectors[0][:2])
            codec.encode_owing_into(vectors[0], debt, payload, Key())
    except TypeError as error:  # what torch says of memory that has no array
        raise NotImplementedError(
            f"{codec!r} reads its messages on the CPU so far, got gradients on {device.memory} "
            f"over nccl ({error}); use another codec, such as `EDEN`, {_GLOO}."
        ) from error
