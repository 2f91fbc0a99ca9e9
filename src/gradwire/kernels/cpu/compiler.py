"""How kernels are compiled, and where they are kept for later runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite import binding as llvm
from numba import njit
from numba.core import config as numba_config

config: Any = numba_config
inline = njit(nogil=True, inline="always")

_NOT_COMPILED = ("gpu", "protocol", "reference")
"""The folders of kernels/ that no compiled function has anything of."""


def cache_dir(folder: Path = Path(__file__).parents[1]) -> str:
    """Where compiled kernels are kept: a place for each state of what they are compiled from.

    That is every source in `folder` whose functions or constants may be compiled in, the compiler,
    and the processor that it compiles for. Numba looks at the file of a function alone, and would
    go on using one whose callee, or a constant, in another file has changed.
    """
    digest = hashlib.sha256(repr(_compiler()).encode())
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if name.parts[0] not in _NOT_COMPILED:
            digest.update(repr((name.parts, path.read_bytes())).encode())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return str(Path(config.CACHE_DIR or home / "gradwire") / digest.hexdigest()[:16])


def _compiler() -> tuple[str, ...]:
    """The compiler, and the processor as it is told to take it or finds it."""
    name, features = config.CPU_NAME, config.CPU_FEATURES
    if name is None:
        name = llvm.get_host_cpu_name()
    if features is None:
        features = llvm.get_host_cpu_features().flatten()
    return numba.__version__, llvmlite.__version__, name, features


def has_feature(name: str) -> bool:
    """Does the processor that kernels are compiled for have it? `name` is LLVM's."""
    return f"+{name}" in _compiler()[3].split(",")


_CACHE_DIR = cache_dir()


def jit(function: Callable[..., Any]) -> Any:
    """Compile `function` when it is first called, without the GIL, and keep it for later runs."""
    others, config.CACHE_DIR = config.CACHE_DIR, _CACHE_DIR
    try:
        return njit(nogil=True, cache=True)(function)
    finally:
        config.CACHE_DIR = others
