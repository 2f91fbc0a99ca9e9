"""One link: its namespaces, a worker in each, and what rank 0 says of every variant."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gradwire.lab.links.namespaces import IFACE, address, network
from gradwire.lab.links.shape import Shape
from link_results import Link, Row, rows_of

WORKER = Path(__file__).with_name("link_worker.py")
PORT = 29777
STEADY = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_MAX_": "0"}
"""Let the allocator keep what is freed: it is in no variant's way whether memory is handed back to
the system, which moved the step of compute alone between 38 and 64 ms from run to run."""


class Progress:
    """Which variant, of how many."""

    def __init__(self, total: int) -> None:
        self.total, self.begun = total, 0

    def begin(self, what: str) -> None:
        self.begun += 1
        print(f"[{self.begun}/{self.total}] {what} ...", end=" ", file=sys.stderr, flush=True)

    def end(self, outcome: str) -> None:
        print(outcome, file=sys.stderr, flush=True)


def measure(
    link: Link, variants: Sequence[str], arguments: Sequence[str], progress: Progress
) -> list[Row]:
    """All variants on one link, in order; `arguments` are for the worker."""
    with ExitStack() as stack:
        iface, master, prefixes = "lo", "127.0.0.1", [[]] * link.workers
        if link.rate != "loopback":
            made = stack.enter_context(network(link.workers, Shape.parse(link.rate)))
            iface, master = IFACE, address(0)
            prefixes = [made.command(rank) for rank in range(link.workers)]
        common = [sys.executable, str(WORKER), "--world", str(link.workers), "--model", link.model]
        common += ["--iface", iface, "--master", f"{master}:{PORT}", *arguments, *variants]
        processes = [
            stack.enter_context(worker([*prefix, *common, "--rank", str(rank)], iface))
            for rank, prefix in enumerate(prefixes)
        ]
        rows = listen(processes[0], link, variants, progress)
        if any(process.wait() for process in processes):
            sys.exit("A worker failed; its error is above.")
    return rows


@contextmanager
def worker(command: list[str], iface: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that ends with this block; with this process, if it is killed: stdin closes."""
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **STEADY}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True,
        env=os.environ | quiet | {"GLOO_SOCKET_IFNAME": iface},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def listen(
    process: subprocess.Popen[str], link: Link, variants: Sequence[str], progress: Progress
) -> list[Row]:
    """Rank 0 prints a JSON object for the link itself, and one for each variant."""
    assert process.stdout is not None
    reached_bps, found = 0.0, []
    progress.begin(f"{link}: {variants[0]}")
    for line in process.stdout:
        said = json.loads(line)
        if "reached_bps" in said:
            reached_bps = said["reached_bps"]
            continue
        found.append(said)
        progress.end(f"{statistics.median(said['seconds']):.3f} s")
        if len(found) < len(variants):
            progress.begin(f"{link}: {variants[len(found)]}")
    if len(found) < len(variants):
        progress.end("failed")
        return []
    return rows_of(link, reached_bps, found)
