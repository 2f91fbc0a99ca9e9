"""A process group, and the account of everything that is handed to it.

All bytes that gradwire sends go through a `Link`, so what it has counted is what was sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire import scratch
from gradwire.transport import groups
from gradwire.transport.account import Account, ring_nbytes
from gradwire.transport.device import HOST, Device
from gradwire.transport.tickets import Ticket

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
_FEW = 8
"""Up to so many workers, a small message is sent to each; among more it would be too many."""


class LinkError(RuntimeError):
    """Another worker did not answer: it has died, left or stopped."""


def share_over(links: Sequence[Link], rows: Sequence[Sequence[Tensor]]) -> None:
    """`share`, over several links at once: one list of rows for each."""
    with ExitStack() as stack:
        works: list[dist.Work | None] = []
        for link, own in zip(links, rows, strict=True):
            others = [(link.rank + hop) % link.size for hop in range(1, link.size)]
            stack.enter_context(link._sending(len(others) * own[link.rank].nbytes))
            works += _batched(link, own, others) if link.batches else _one_by_one(link, own, others)
        for work in works:
            assert work is not None
            work.wait()


def _one_by_one(link: Link, own: Sequence[Tensor], others: list[int]) -> list[dist.Work | None]:
    """Every message on its way when it can be."""
    group, mine = link.group, own[link.rank]
    return [
        *(dist.irecv(own[i], group=group, group_src=i) for i in reversed(others)),
        *(dist.isend(mine, group=group, group_dst=i) for i in others),
    ]


def _batched(link: Link, own: Sequence[Tensor], others: list[int]) -> list[dist.Work]:
    """All at once: with NCCL a message may wait for one after it. What is empty is not sent."""
    rows = [(dist.irecv, own[i], i) for i in others] + [
        (dist.isend, own[link.rank], i) for i in others
    ]
    ops = [
        dist.P2POp(op, row, group=link.group, group_peer=i) for op, row, i in rows if row.numel()
    ]
    return dist.batch_isend_irecv(ops) if ops else []


def add_in_order(rows: Tensor) -> Tensor:
    """The sum of the rows, added one after the other.

    >>> add_in_order(torch.tensor([[2.0**24], [1.0], [1.0]]))
    tensor([16777216.])
    """
    total = rows[0].clone()
    for row in rows[1:]:
        total.add_(row)
    return total


class Link:
    """Collectives over one process group, counted and timed.

    They block: on the CPU the thread, on a GPU the queue, so that there a call returns when what is
    to be done is queued. Its scratch memory, on `device`, is for whoever uses it, the codecs in
    their thread too.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: Device = HOST) -> None:
        self.device = device
        self.batches = device.memory.type != "cpu"
        self._entered = [group]  # shared with `holding`: who leaves leaves for all
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.account = Account()
        self._is_direct = 2 < self.size <= _FEW and dist.get_backend(group) == "gloo"
        self.scratch = scratch.Scratch()
        self._ticket: Ticket | None = None

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The process group; None is that of all workers, or none any more."""
        return self._entered[0]

    def leave(self) -> None:
        """Close the connections of the group: workers that wait for this one fail at once."""
        group = self.group
        self._entered[:] = [None]
        if group is not None:
            groups.leave(group)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, this thread works for the link: on its device, with its memory."""
        with self.device.entered(), scratch.using(self.scratch):
            yield

    def room(self, name: str, nbytes: int) -> Tensor:
        """`nbytes` bytes of scratch memory called `name`; what they held before is lost."""
        return self.scratch.take(name, nbytes, torch.uint8, self.device.memory)

    def floats(self, name: str, numel: int) -> Tensor:
        """Scratch memory for `numel` float32 values."""
        return self.room(name, 4 * numel).view(torch.float32)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        """Combine `tensor` over the workers, in place.

        A ring, the backend's own way, sends it twice less a share, in 2 (n - 1) steps one after
        the other. Maxima, which are few, are sent to everyone instead over gloo, in one step.
        """
        if self.size == 1:
            return
        if op == "max" and self._is_direct:
            torch.amax(self._shared("maxima", tensor), 0, out=tensor)
        else:
            with self._sending(ring_nbytes(tensor.nbytes, self.size)):
                dist.all_reduce(tensor, _OPS[op], group=self.group)

    def holding(self, ticket: Ticket) -> Link:
        """This link, for one job of several that share the wire in the order of their tickets."""
        link = copy(self)
        link._ticket = ticket
        return link

    def in_turn(self) -> AbstractContextManager[None]:
        """Inside, messages are sent when those before them are off the wire."""
        return nullcontext() if self._ticket is None else self._ticket

    def sum_in_order(self, tensor: Tensor) -> None:
        """Sum `tensor` over the workers, in place: each value is added in the order of ranks.

        A ring adds in an order that depends on the place in the message. Among few workers each
        sends its own to everyone; among more, owners of shards add and send the sums.
        """
        if self.size > _FEW:
            self.sum_by_owners(tensor)
        else:
            self._sum_everywhere(tensor)

    def sum_by_owners(self, tensor: Tensor) -> None:
        """The same with the bytes of a ring, and in two steps however many workers there are.

        A ring takes 2 (n - 1), one after the other: on a link that other messages fill, or with a
        delay, a small sum would take longer than they do. Between two workers one step is enough.
        """
        if self.size <= 2:
            self._sum_everywhere(tensor)
            return
        shards = tensor.tensor_split(self.size)
        sizes, mine = [shard.nbytes for shard in shards], shards[self.rank]
        received = self.room("sums", self.size * mine.nbytes)
        sent = tensor.view(torch.uint8)  # any type, also one that the backend cannot add
        self.all_to_all(received, sent, [mine.nbytes] * self.size, sizes)
        mine.copy_(add_in_order(received.view(tensor.dtype).view(self.size, mine.numel())))
        self.share(shards)

    def _sum_everywhere(self, tensor: Tensor) -> None:
        """The same by every worker."""
        if self.size > 1:
            tensor.copy_(add_in_order(self._shared("sums", tensor)))

    def all_reduce_sparse(self, tensor: Tensor) -> Tensor:
        """The sum of the sparse tensors of all workers; each sends its own to every other."""
        own = tensor._indices().nbytes + tensor._values().nbytes
        with self._sending((self.size - 1) * own):
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def share(self, rows: Sequence[Tensor]) -> None:
        """Send the row of this worker's rank to every other, and fill the others with theirs.

        As `all_gather`, but rows may differ in length, and each goes straight to its receivers.
        """
        share_over([self], [rows])

    def _shared(self, room: str, tensor: Tensor) -> Tensor:
        """Every worker's `tensor`, a row for each rank, in memory called `room`."""
        rows = self.room(room, self.size * tensor.nbytes).view(tensor.dtype).view(self.size, -1)
        rows[self.rank].copy_(tensor)
        self.share(list(rows))
        return rows

    def all_gather(self, out: Tensor, tensor: Tensor) -> None:
        """Fill `out` with every worker's `tensor`, in the order of ranks."""
        with self._sending((self.size - 1) * tensor.nbytes):
            dist.all_gather_single(out, tensor, group=self.group)

    def all_to_all(
        self, out: Tensor, tensor: Tensor, out_sizes: list[int], sizes: list[int]
    ) -> None:
        """Send a stretch of `tensor` to each worker and get one of each, of these sizes."""
        with self._sending((sum(sizes) - sizes[self.rank]) * tensor.element_size()):
            dist.all_to_all_single(out, tensor, out_sizes, sizes, group=self.group)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Fill `tensor` with that of rank `source`.

        The whole is entered as sent by that rank. A backend may let others pass it on: what all
        workers send together is the same.
        """
        with self._sending((self.size - 1) * tensor.nbytes if self.rank == source else 0):
            dist.broadcast(tensor, group=self.group, group_src=source)

    def gather_sizes(self, sizes: list[int]) -> list[list[int]]:
        """Every worker's `sizes`, a list of the same length on each."""
        out = torch.empty(self.size, len(sizes), dtype=torch.int64)
        self.all_gather(out.view(-1), torch.tensor(sizes, dtype=torch.int64))
        return [[int(size) for size in row] for row in out.tolist()]

    def gather_flags(self, flag: bool | Tensor) -> Sequence[bool | Tensor]:
        """Every worker's `flag`. One on a GPU stays there, and so do those of the others."""
        if not isinstance(flag, Tensor):
            return [bool(theirs) for (theirs,) in self.gather_sizes([int(flag)])]
        flags = self.room("flags", self.size)
        self.all_gather(flags, flag.view(1).to(torch.uint8))
        return list(flags.to(torch.bool).unbind())

    @contextmanager
    def _sending(self, nbytes: int) -> Iterator[None]:
        self.account.bytes_sent += nbytes
        with self.account.timed("comm"):
            try:
                yield
            except RuntimeError as error:
                raise LinkError(str(error)) from error
