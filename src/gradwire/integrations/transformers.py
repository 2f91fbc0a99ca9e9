"""The Hugging Face Trainer: `CompressedTrainer(..., codec=gw.QSGD(bits=4))`.

For another trainer, such as TRL's, put the mixin in front: `class Mine(Compressed, SFTTrainer)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from gradwire.adapters.handle import Handle
from gradwire.codec import Codec
from gradwire.integrations.workers import attach_if_many, load_from, save_to


class Compressed:
    """A mixin for `Trainer`: attaches `codec` when training begins, and keeps its state.

    `attach_options` are those of `gw.attach`. Each checkpoint gets a file of state from every rank,
    and `train(resume_from_checkpoint=...)` goes on from it. `handle` is there once training has
    begun; with a single process it stays None, and a warning says so.
    """

    args: TrainingArguments
    handle: Handle | None = None

    def __init__(
        self,
        *args: Any,
        codec: Codec | str,
        attach_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.codec = codec
        self.attach_options = dict(attach_options or {})
        self.resume_folder: str | None = None
        self.add_callback(_Events(self))  # type: ignore[attr-defined]

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train as `Trainer.train` does."""
        folder = resume_from_checkpoint or None
        self.resume_folder = get_last_checkpoint(self.args.output_dir) if folder is True else folder
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]


class CompressedTrainer(Compressed, Trainer):
    """`Trainer` whose gradients travel through a codec."""


class _Events(TrainerCallback):
    """What happens when; callbacks are called on every rank."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Attach to the wrapped model, which is kept and wrapped no more if it trains again."""
        trainer = self.trainer
        if trainer.handle is None:
            trainer.handle = attach_if_many(
                trainer.model_wrapped, trainer.codec, **trainer.attach_options
            )
        if trainer.handle is not None and trainer.resume_folder is not None:
            load_from(trainer.resume_folder, trainer.handle)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, *rest: Any, **kwargs: Any
    ) -> None:
        """Add to a checkpoint that can be resumed, which those of a search cannot."""
        if self.trainer.handle is None or args.save_only_model or state.is_hyper_param_search:
            return
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        save_to(folder, self.trainer.handle)
