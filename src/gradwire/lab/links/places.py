"""Where workers are and where they meet: all on loopback, or each at the end of a link of its own.

They find each other through a store in memory that any namespace can open, so that nothing but
training goes over the links, and no file is left behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from gradwire.lab.links.namespaces import IFACE, enter, network
from gradwire.lab.links.shape import Shape


@dataclass(frozen=True)
class Place:
    """The store where a worker finds the others, and its namespace, None for that of its parent."""

    store: str
    namespace: str | None = None

    def join(self, rank: int, num_workers: int, backend: str = "gloo") -> None:
        """Go there, as a fresh process, and set up the process group."""
        if self.namespace is None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        else:
            enter(self.namespace)
            os.environ["GLOO_SOCKET_IFNAME"] = IFACE
        store = dist.FileStore(self.store, num_workers)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=num_workers)


@contextmanager
def places(num_workers: int, shape: Shape | None) -> Iterator[list[Place]]:
    """Yield a place for every worker; without a shape they are on loopback."""
    file = os.memfd_create("gradwire")
    store = f"/proc/{os.getpid()}/fd/{file}"
    try:
        if shape is None:
            yield [Place(store)] * num_workers
            return
        with network(num_workers, shape) as made:
            yield [Place(store, worker.path) for worker in made.workers]
    finally:
        os.close(file)
