"""What of a model is exchanged."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradwire.adaptive import Layout
from gradwire.codec import FLOAT_DTYPES
from gradwire.reduction.parameters import Parameter


def tensors_of(model: nn.Module, fragments: int) -> list[Parameter]:
    """Parameters that are trained, and buffers of floats that are saved with the model.

    Other buffers, such as counts and masks, each worker keeps to itself. A tied weight is there
    once. Names are those of the model as written: `torch.compile` adds nothing to them.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch module, got {type(model).__name__}.")
    saved = set(model.state_dict(keep_vars=True))
    found: list[tuple[str, Tensor]] = []
    found += [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    num_trained = len(found)
    found += [(n, b) for n, b in model.named_buffers() if n in saved and b.is_floating_point()]
    for name, value in found:
        _check(name, value)
    if num_trained < fragments:
        raise ValueError(
            f"`fragments` must be at most {num_trained}, as many as there are parameters to train, "
            f"got {fragments}; no parameter is cut."
        )
    return [
        Parameter(
            name.replace("_orig_mod.", ""),
            number,
            value,
            Layout.of(torch.empty(value.shape, device="meta")),  # not in the order of its strides
            is_trained=number < num_trained,
            is_sparse=False,
        )
        for number, (name, value) in enumerate(found)
    ]


def _check(name: str, value: Tensor) -> None:
    if value.device.type != "cpu":
        raise NotImplementedError(
            f"gradwire trains on CPU tensors so far, but {name!r} is on {value.device}; move it "
            "with `.cpu()`."
        )
    if type(value) not in (Tensor, nn.Parameter) or value.dtype not in FLOAT_DTYPES:
        kind = str(value.dtype) if value.dtype not in FLOAT_DTYPES else type(value).__name__
        raise TypeError(
            f"outer steps keep weights in float32, for tensors of float32, float16 or bfloat16, "
            f"but {name!r} is {kind}; convert the model (`model.float()`), and shard nothing."
        )
