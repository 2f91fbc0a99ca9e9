"""What a bug report should say of a machine."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import gradwire
from gradwire.lab.probe.run import machine

PACKAGES = ("torch", "triton", "numba", "llvmlite", "numpy", "zstandard")


def about(device: str) -> dict[str, Any]:
    """Versions, the processor, and the device with its driver."""
    return {
        "gradwire": gradwire.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "system": platform.platform(),
        "processor": machine(),
        "device": device,
        **(_gpu() if device == "cuda" else {}),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> dict[str, Any]:
    return {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "driver": _driver(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
        "gpus": [
            str(torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())
        ],
    }


def _driver() -> str | None:
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
