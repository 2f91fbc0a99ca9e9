"""A world of real worker processes over gloo that runs functions of the tests on every rank."""

import multiprocessing
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_TIMEOUT_S = 120
_PRELOADED = ["torch", "torch.distributed.fsdp", "torch.nn.parallel", "gradwire.kernels.cpu"]
"""Imported once, by the process that workers are forked from: it takes seconds and starts no
threads."""


class World:
    """`size` processes, joined in a process group. A task that fails or hangs ends them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._workers: list[tuple[Any, Connection]] = []

    def run(self, task: Callable[..., Any], *args: Any) -> list[Any]:
        """`task(rank, *args)` on every rank; their results, or the first error."""
        if not self._workers:
            self._start()
        for _, pipe in self._workers:
            pipe.send((task, args))
        answers = [self._answer(rank, pipe) for rank, (_, pipe) in enumerate(self._workers)]
        errors = [answer for ok, answer in answers if not ok]
        if errors:
            self.close()
            raise AssertionError("\n".join(errors))
        return [answer for _, answer in answers]

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        store = Path(tempfile.mkdtemp()) / "store"
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, store, theirs))
            process.start()
            self._workers.append((process, ours))

    def _answer(self, rank: int, pipe: Connection) -> tuple[bool, Any]:
        try:
            if pipe.poll(_TIMEOUT_S):
                return pipe.recv()
        except EOFError:
            return False, f"rank {rank} of {self.size} died"
        return False, f"rank {rank} of {self.size} did not answer within {_TIMEOUT_S} s"

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.close()
            process.terminate()
            process.join()
        self._workers = []


def _serve(rank: int, size: int, store: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    while True:
        try:
            task, args = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, task(rank, *args))
        except Exception:
            answer = (False, f"rank {rank}:\n{traceback.format_exc()}")
        pipe.send(answer)


def data(rank: int, numel: int, seed: int = 0) -> torch.Tensor:
    """Gaussian values, other ones on every rank."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(numel, generator=generator)


@contextmanager
def only_first_warns(rank: int, words: str) -> Iterator[None]:
    """In here rank 0 warns with these words, once, and the others do not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert sum(words in str(warning.message) for warning in caught) == (rank == 0)
