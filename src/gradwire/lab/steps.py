"""What encodes a step: a codec itself, or what one that learns may have come to."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Codec


def steps_of(codec: Codec, numel: int, device: torch.device | str = "cpu") -> list[Codec]:
    """For `numel` values on `device`; of a codec that learns its examples, the best first."""
    if not isinstance(codec, AdaptiveCodec):
        return [codec]
    return [_moved(step, torch.device(device)) for step in codec.examples(numel)]


def _moved(codec: Any, device: torch.device) -> Codec:
    """The same with what was learned on `device`."""
    learned = {field.name: getattr(codec, field.name) for field in fields(codec)}
    tensors = {name: x.to(device) for name, x in learned.items() if isinstance(x, Tensor)}
    moved: Codec = replace(codec, **tensors) if device.type != "cpu" else codec
    return moved
