"""A link counts what it hands to the network, to the byte, and keeps its memory."""

import pytest
import torch

from gradwire import scratch
from gradwire.reduction.small import reduce_sparse
from gradwire.transport import account as account_module
from gradwire.transport.account import Account
from gradwire.transport.link import Link
from world import data


def rows_of(size):
    """A row of another length for every rank, filled with its rank."""
    return [torch.full((100 + 8 * rank,), rank, dtype=torch.uint8) for rank in range(size)]


def use(rank):
    """What every operation gives, and the bytes it is said to send."""
    link = Link()
    size, found = link.size, {}

    def note(name, result):
        found[name] = result, link.account.bytes_sent
        link.account = Account()

    for op in ("sum", "max"):
        values = data(rank, 240)
        link.all_reduce(values, op)
        note(op, values)
    rows = [row if other == rank else torch.zeros_like(row) for other, row in
            enumerate(rows_of(size))]  # fmt: skip
    link.share(rows)
    note("share", torch.cat(rows))
    gathered = torch.empty(size * 30)
    link.all_gather(gathered, torch.full((30,), float(rank)))
    note("gather", gathered)
    sent = torch.arange(6 * size, dtype=torch.int32) + 100 * rank
    received = torch.empty(size * (2 * rank + 1), dtype=torch.int32)
    sizes = [2 * other + 1 for other in range(size)]
    link.all_to_all(received, sent[: sum(sizes)], [2 * rank + 1] * size, sizes)
    note("all_to_all", received)
    values = torch.full((50,), float(rank + 1))
    link.broadcast(values)
    note("broadcast", values)
    note("sizes", link.gather_sizes([rank, 10 + rank]))
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_bytes_are_those_handed_to_the_network(worlds, size):
    own = [row.numel() for row in rows_of(size)]
    vectors = torch.stack([data(rank, 240) for rank in range(size)])
    for rank, found in enumerate(worlds[size].run(use)):
        ring = 2 * (size - 1) * 960 // size
        assert {name: nbytes for name, (_, nbytes) in found.items()} == {
            "sum": ring,
            "max": ring if size == 2 else (size - 1) * 960,
            "share": (size - 1) * own[rank],
            "gather": (size - 1) * 120,
            "all_to_all": 4 * (size**2 - (2 * rank + 1)),
            "broadcast": (size - 1) * 200 if rank == 0 else 0,
            "sizes": (size - 1) * 16,
        }
        torch.testing.assert_close(found["sum"][0], vectors.sum(0))
        assert torch.equal(found["max"][0], vectors.amax(0))
        assert torch.equal(found["share"][0], torch.cat(rows_of(size)))
        assert found["gather"][0].view(size, 30)[:, 0].tolist() == list(range(size))
        from_each = found["all_to_all"][0].view(size, 2 * rank + 1)
        assert from_each[:, 0].tolist() == [100 * other + rank**2 for other in range(size)]
        assert found["broadcast"][0].tolist() == [1.0] * 50
        assert found["sizes"][0] == [[other, 10 + other] for other in range(size)]


def mean_of_sparse(rank):
    """Two rows of four values; one of them is on every rank, in two entries on rank 1."""
    rows = [0, 2] if rank != 1 else [0, 0, 1]
    values = torch.full((len(rows), 4), float(rank + 1))
    link = Link()
    mean = reduce_sparse(link, torch.sparse_coo_tensor(torch.tensor([rows]), values, (5, 4)))
    return mean.to_dense(), link.account


@pytest.mark.parametrize("size", [2, 3])
def test_sparse_tensors_are_counted_with_their_indices(worlds, size):
    for mean, account in worlds[size].run(mean_of_sparse):
        first = (1 + 2 * 2 + (3 if size == 3 else 0)) / size
        assert mean[:3, 0].tolist() == pytest.approx(
            [first, 2 / size, (1 + 3 * (size == 3)) / size]
        )
        assert account.values == 2 * 4
        assert account.message_bytes == 2 * 8 + 2 * 4 * 4
        assert account.bytes_sent == (size - 1) * account.message_bytes


def memory(rank):
    link = Link()
    first = link.room("a", 1000)
    again = link.room("a", 400), link.room("a", 1000)
    other = link.floats("b", 10)
    assert all(room.data_ptr() == first.data_ptr() for room in again)
    assert other.shape == (10,)
    assert (link.room("a", 400).numel(), link.room("a", 2000).numel()) == (400, 2000)
    with scratch.using(link.scratch):
        scratch.of_thread().take("a", 7, torch.int16)
    return link.scratch.nbytes


def test_memory_grows_to_the_largest_size_and_is_counted(worlds):
    assert worlds[2].run(memory) == [2000 + 40 + 2 * 7] * 2


def test_times_and_totals_add_up(monkeypatch):
    clock = iter([10.0, 11.0, 20.0, 22.0, 30.0, 34.0, 40.0, 48.0])
    monkeypatch.setattr(account_module.time, "perf_counter", lambda: next(clock))
    account = Account()
    for stage in ("encode", "encode", "comm"):
        with account.timed(stage):
            pass
    with pytest.raises(ArithmeticError), account.timed("decode"):
        raise ArithmeticError
    assert (account.encode_s, account.comm_s, account.decode_s) == (3.0, 4.0, 8.0)
    account.message(100, 60)
    account.message(10, 5)
    account.bytes_sent = 7
    assert account + account == Account(14, 130, 220, 6.0, 8.0, 16.0)
