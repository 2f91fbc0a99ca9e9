"""Hugging Face Accelerate: `attach(accelerator, model, codec)` once the model is prepared.

Accelerate's `DistributedDataParallelKwargs(comm_hook=...)` takes the names of PyTorch's own hooks
and no others, but what `prepare` returns is a DDP or FSDP2 module like any other.
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from torch import nn

from gradwire.adapters.handle import Handle
from gradwire.codec import Codec
from gradwire.integrations.workers import attach_if_many, load_from, save_to


def attach(
    accelerator: Accelerator, model: nn.Module, codec: Codec | str, **options: Any
) -> Handle | None:
    """Reduce the gradients of `model`, as `accelerator.prepare` returned it, through `codec`.

    `options` are those of `gw.attach`. `accelerator.save_state` and `load_state` include the state,
    one file for each rank. With a single process there is nothing to attach: that is a warning,
    and the result is None.
    """
    handle = attach_if_many(model, codec, **options)
    if handle is None:
        return None

    def name(models: list[nn.Module]) -> str:
        """Tell the models of one accelerator apart by their order, as its own files do.

        Of FSDP there is one alone, which is not among those to be loaded.
        """
        known, own = [accelerator.unwrap_model(m) for m in models], accelerator.unwrap_model(model)
        place = known.index(own) if own in known else 0
        return f"gradwire_model{place}" if place else "gradwire"

    def save(models: list[nn.Module], weights: Any, folder: str) -> None:
        save_to(folder, handle, name(models))

    def load(models: list[nn.Module], folder: str) -> None:
        load_from(folder, handle, name(models))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return handle
