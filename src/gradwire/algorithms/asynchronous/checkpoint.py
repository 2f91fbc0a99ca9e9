"""The file that a server can be started again from: whole, or the one before it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradwire.algorithms.asynchronous.descent import Descent
from gradwire.algorithms.asynchronous.settings import Usual

_KEYS = {"version", "starts", "parameters", "usual", "delays", "model", "optimizer", "scheduler"}


def save(path: Path, model: nn.Module, descent: Descent, starts: int) -> None:
    """Write it beside the old one and put it in its place, once it is on the disk."""
    state = {
        "version": descent.version,
        "starts": starts,
        "parameters": _parameters(model),
        "usual": [descent.usual.mean, descent.usual.seen],
        "delays": dict(descent.delays),
        "model": model.state_dict(),
        "optimizer": descent.optimizer.state_dict(),
        "scheduler": None if descent.scheduler is None else descent.scheduler.state_dict(),
    }
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path, model: nn.Module, descent: Descent) -> int:
    """Stand where `save` was called; how often a server was started from this file."""
    state = _read(path)
    if state["parameters"] != _parameters(model):
        raise ValueError(f"{path} is of another model; name another `checkpoint`, or move it away.")
    model.load_state_dict(state["model"])
    descent.optimizer.load_state_dict(state["optimizer"])
    if descent.scheduler is not None and state["scheduler"] is not None:
        descent.scheduler.load_state_dict(state["scheduler"])
    descent.version = state["version"]
    descent.usual = Usual(*state["usual"])
    descent.delays = Counter(state["delays"])
    return int(state["starts"])


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
