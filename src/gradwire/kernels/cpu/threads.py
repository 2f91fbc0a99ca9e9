"""The threads of kernel calls. Kernels release the GIL, so large calls are cut into spans."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from gradwire.kernels.formats.layout import TILE

_PIECE = 1 << 16
"""Vectors below two pieces of this many values are not worth a second thread."""


class _Threads:
    """The pool that runs the spans of large calls; none at the start."""

    count = 1
    pool: ThreadPoolExecutor | None = None


def set_num_threads(count: int) -> None:
    """Let each kernel call use up to `count` threads (1 at the start)."""
    if count < 1:
        raise ValueError(f"the number of codec threads must be at least 1, got {count}.")
    _Threads.count = count
    _Threads.pool = ThreadPoolExecutor(count, "gradwire-kernel") if count > 1 else None


def get_num_threads() -> int:
    """How many threads a kernel call may use."""
    return _Threads.count


def over_threads(numel: int, block: int, run: Callable[[int, int], None]) -> None:
    """Call `run(first value, last)` once, or once per thread on spans of whole blocks and tiles."""
    grain = max(block, TILE)
    threads = min(_Threads.count, max(1, numel // max(grain, _PIECE)))
    if threads == 1 or _Threads.pool is None:
        run(0, numel)
        return
    grains = -(-numel // grain)
    cuts = [min(grains * i // threads * grain, numel) for i in range(threads + 1)]
    for task in [_Threads.pool.submit(run, a, b) for a, b in pairwise(cuts)]:
        task.result()
