"""Lightning: `Trainer(strategy="ddp", callbacks=[Compress(gw.QSGD(bits=4))])`.

`ModelParallelStrategy`, which leaves `fully_shard` (FSDP2) to `configure_model`, will do too.
Lightning's own `DDPStrategy(ddp_comm_hook=...)` is ignored, without a word, unless the device is
CUDA, and keeps no state.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from gradwire.adapters.handle import Handle
from gradwire.codec import Codec
from gradwire.integrations.workers import attach_if_many


class Compress(Callback):
    """Attaches `codec` for as long as `fit` runs, on any device. `options` are `gw.attach`'s.

    Lightning writes a checkpoint on rank 0 alone, but each rank owes residuals of its own. So rank
    0 gathers the state of all, and holds it until it is written. `handle` is that of the last fit,
    or None if there was a single process, which a warning says.
    """

    def __init__(self, codec: Codec | str, **options: Any) -> None:
        self.codec = codec
        self.options = options
        self.handle: Handle | None = None
        self._loaded: list[dict[str, Any]] | None = None
        self._is_fitting = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the model, which the strategy wraps anew for every fit."""
        self.handle = attach_if_many(trainer.strategy.model, self.codec, **self.options)
        self._is_fitting = True
        self._go_on()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the threads; statistics and state stay."""
        if self._is_fitting and self.handle is not None:
            self.handle.close()
        self._is_fitting = False

    def state_dict(self) -> dict[str, Any]:
        """The state of every rank on rank 0, which alone writes it; nothing on the others."""
        if self.handle is None:
            return {}
        states: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(self.handle.state_dict(), states)
        return {"ranks": states} if states else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the state of a checkpoint, at once or when `fit` has wrapped the model."""
        self._loaded = state_dict["ranks"]
        if self._is_fitting:
            self._go_on()

    def _go_on(self) -> None:
        """A rank that did not exist then takes up what all ranks shared, from rank 0."""
        states, self._loaded = self._loaded, None
        if self.handle is not None and states is not None:
            rank = dist.get_rank()
            self.handle.load_state_dict(states[rank if rank < len(states) else 0])
