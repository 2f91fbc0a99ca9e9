"""What a result depends on beside its settings: the machine, the versions, the exact command."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path

import torch

import gradwire as gw


def about() -> dict[str, str]:
    """Where this process runs, in words."""
    return {
        "command": shlex.join(["gradwire", *sys.argv[1:]]),
        "machine": f"{_processor()}, {_cores()}, {_memory()}",
        "versions": (
            f"gradwire {gw.__version__}, Python {platform.python_version()}, "
            f"torch {torch.__version__}, {platform.system()} {platform.release()}"
        ),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return platform.machine()


def _cores() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{cores} core{'' if cores == 1 else 's'} for all workers"


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
