"""The file that a server can be started again from: whole, or the one before it."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradwire.algorithms.asynchronous.descent import Descent
from gradwire.algorithms.asynchronous.settings import Usual, check_count

_logger = logging.getLogger(__name__)

_KEYS = {"version", "starts", "parameters", "usual", "delays", "model", "optimizer", "scheduler"}


class Checkpoint:
    """The file of one server, if it has one, and what is in it.

    starts: how often a server was started from it. Keys are made of that number, so none is used
        again for other values.
    """

    def __init__(self, path: Path | None, every: int, model: nn.Module, descent: Descent) -> None:
        check_count("checkpoint_every", every, 1)
        self._path, self._every = path, every
        self._model, self._descent = model, descent
        self.starts = 0
        if path is not None:
            self._resume(path)
            self.save()  # a mark that this server was started

    def save(self) -> None:
        """Write it beside the old one and put it in its place, once it is on the disk."""
        if self._path is None:
            raise ValueError("there is no file to save to; give `checkpoint=` to the server.")
        path = self._path
        draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with draft.open("wb") as file:
                torch.save(self._state(), file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(path.parent)

    def after_step(self) -> None:
        """Save if it is time to."""
        if self._path is not None and self._descent.version % self._every == 0:
            self.save()

    def at_end(self) -> None:
        """Save, unless training has diverged: then the one before is worth more."""
        if self._path is not None and self._descent.is_sound():
            self.save()

    def _state(self) -> dict[str, Any]:
        descent = self._descent
        return {
            "version": descent.version,
            "starts": self.starts,
            "parameters": _parameters(self._model),
            "usual": [descent.usual.mean, descent.usual.seen],
            "delays": dict(descent.delays),
            "model": self._model.state_dict(),
            "optimizer": descent.optimizer.state_dict(),
            "scheduler": None if descent.scheduler is None else descent.scheduler.state_dict(),
        }

    def _resume(self, path: Path) -> None:
        """Stand where `save` was called, if it was."""
        if not path.exists():
            return
        state, descent = _read(path), self._descent
        if state["parameters"] != _parameters(self._model):
            raise ValueError(
                f"{path} is of another model; name another `checkpoint`, or move it away."
            )
        self._model.load_state_dict(state["model"])
        descent.optimizer.load_state_dict(state["optimizer"])
        if descent.scheduler is not None and state["scheduler"] is not None:
            descent.scheduler.load_state_dict(state["scheduler"])
        descent.version = state["version"]
        descent.usual = Usual(*state["usual"])
        descent.delays = Counter(state["delays"])
        descent.refresh()
        self.starts = 1 + int(state["starts"])
        _logger.info("goes on from %s at version %d", path, descent.version)


def _sync_folder(folder: Path) -> None:
    """Let the new name be on the disk too."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _read(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(state, dict) or not state.keys() >= _KEYS:
        raise ValueError(f"{path} is no checkpoint of an asynchronous server; move it away.")
    return state


def _parameters(model: nn.Module) -> list[list[Any]]:
    return [[name, list(param.shape)] for name, param in model.named_parameters()]
