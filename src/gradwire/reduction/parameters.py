"""The parameters of a model by name and number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.adaptive import Layout


@dataclass(frozen=True)
class Parameter:
    """One of them. DDP reduces it only if it `is_trained`; its gradient may be sparse."""

    name: str
    number: int
    value: Tensor
    layout: Layout
    is_trained: bool
    is_sparse: bool


def num_reduced(module: DistributedDataParallel) -> int:
    """How many parameters DDP reduces in a step: those that were trained when it was made."""
    facts: dict[str, Any] = module._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return int(facts["num_parameter_tensors"])


def parameters_of(module: DistributedDataParallel) -> list[Parameter]:
    """All of them, frozen ones too, so that numbers outlast freezing; a tied weight is there once.

    Names are those of the model as written: `torch.compile` adds nothing to them.
    """
    sparse = {
        id(layer.weight)
        for layer in module.modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse
    }
    return [
        Parameter(
            name.replace("_orig_mod.", ""),
            number,
            value,
            Layout.of(value),
            is_trained=value.requires_grad and name not in module.parameters_to_ignore,
            is_sparse=id(value) in sparse,
        )
        for number, (name, value) in enumerate(module.module.named_parameters())
    ]
