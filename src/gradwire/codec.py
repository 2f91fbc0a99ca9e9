"""What a codec is. Read this file first.

A codec turns one flat vector of gradients into a *payload*, a run of bytes, and back::

    payload = codec.encode(x, key)                  # uint8
    y = codec.decode(payload, x.numel(), key)       # float32

Its settings are the fields of a frozen dataclass. Its randomness is a `Key`: the same key gives
the same bits on every machine. What it has learned is a state of its own (`adaptive.py`).
Residuals, for error feedback, belong to `reduction/`; a codec may be handed one as a `Debt`.

"May I sum this?" is a type: a `SummableCodec` gives an `Adder`, which adds what workers send
without decoding it, and only what a `NetworkAdder` writes may be added by the network itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.kernels.formats.debt import Debt
from gradwire.key import Key

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NOTHING = torch.empty(0)
Seen = tuple[Any, ...]  # what a mean has shown beside it, for codecs that learn: mostly numbers


class Codec(ABC):
    """One vector to bytes and back. Subclasses are frozen dataclasses of settings.

    A long vector may be cut at multiples of `grain`, and the pieces encoded one by one, each with
    its `offset`: the result is the same.
    """

    unbiased: ClassVar[bool]  # E decode(encode(x)) = x over keys
    fixed_size: ClassVar[bool] = True  # does the size of a payload depend on the length alone?
    feeds_back: ClassVar[bool] = True  # can a worker tell what its own payload delivers?
    keeps_bits: ClassVar[bool] = False  # do all bits arrive, also in a 16-bit target of their type?
    collective: ClassVar[str | None] = None  # the one it asks for; None: whichever sends least
    host_only: ClassVar[str] = ""  # why it is not for gradients on a GPU so far, if it is not
    num_seen: ClassVar[int] = 0  # how many numbers `mean_into` returns

    @property
    def grain(self) -> int | None:
        """A vector may be cut at multiples of this many values; None: it may not be cut."""
        return 1

    @property
    def owes(self) -> bool:
        """Is error feedback on, unless it is asked for or refused?"""
        return not self.unbiased

    @abstractmethod
    def max_nbytes(self, numel: int) -> int:
        """The most bytes a payload of `numel` values takes; the exact number if `fixed_size`."""

    @abstractmethod
    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        """Write the payload of `x`, which is `offset` values into the vector; its size in bytes."""

    def encode_owing_into(
        self, x: Tensor, debt: Debt, out: Tensor, key: Key, offset: int = 0
    ) -> int:
        """Write the payload of `x` and what is due, and what is owed then; its size in bytes.

        Codecs with a kernel for it go over memory once. The bits are those of what is here.
        """
        size = self.encode_into(debt.source(x), out, key, offset)
        self.subtract(out[:size], debt.owed, key, offset)
        debt.leave()
        return size

    @abstractmethod
    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """Write, or add, `weight` times the values to `out` (float32).

        ValueError: the payload is damaged, and what has been written to `out` is not defined.
        """

    def mean_into(
        self, payloads: Sequence[Tensor], out: Tensor, keys: Sequence[Key], offset: int = 0
    ) -> Seen:
        """Write the mean of what `payloads`, one of each rank in order, say to `out` (float32)."""
        for i, (payload, key) in enumerate(zip(payloads, keys, strict=True)):
            self.decode_into(payload, out, key, offset, weight=1 / len(payloads), accumulate=i > 0)
        return ()

    def subtract(self, payload: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        """Take what `payload` says off `out` (float32), which holds the vector it was made of."""
        self.decode_into(payload, out, key, offset, weight=-1.0, accumulate=True)

    def relay(
        self, payloads: Sequence[Tensor], total: Tensor, out: Tensor, keys: Sequence[Key],
        key: Key, offset: int = 0,
    ) -> int:  # fmt: skip
        """Write the payload of the mean of `total` and of what `payloads` say; its size in bytes.

        `total` (float32, contiguous) is the vector of one worker, `payloads` and `keys` are those
        of the others. What the new payload does not say of the mean, times the workers, is left in
        `total`.
        """
        for payload, own in zip(payloads, keys, strict=True):
            self.decode_into(payload, total, own, offset, accumulate=True)
        world = 1 + len(payloads)
        size = self.encode_into(total * (1.0 / world), out, key, offset)
        self.decode_into(out[:size], total, key, offset, weight=-float(world), accumulate=True)
        return size

    def encode(self, x: Tensor, key: Key) -> Tensor:
        """The payload of `x`, a fresh uint8 tensor."""
        check_input(x)
        x = x.detach().reshape(-1)
        out = torch.empty(self.max_nbytes(x.numel()), dtype=torch.uint8, device=x.device)
        return out[: self.encode_into(x, out, key)]

    def decode(self, payload: Tensor, numel: int, key: Key) -> Tensor:
        """The `numel` values of `payload`, a fresh flat float32 tensor."""
        out = torch.empty(numel, dtype=torch.float32, device=payload.device)
        self.decode_into(payload, out, key)
        return out


class SummableCodec(Codec):
    """A codec whose codes can be added up, once workers agree on something such as scales::

        shared = combine(codec.statistics(x) of every worker)   # MAX, or SUM in order of ranks
        adder = codec.adder(world, shared)
        adder.add(adder.encode(x) of every worker, total)
        adder.decode(total, mean)
    """  # fmt: skip

    collective = "code_reduce"
    statistics_op: ClassVar[str] = "max"  # how statistics are combined: "max" or "sum"

    def statistics(self, x: Tensor) -> Tensor:
        """What is to be combined before anything is encoded (float32)."""
        return NOTHING

    @abstractmethod
    def adder(self, world: int, shared: Tensor = NOTHING) -> Adder:
        """Without `shared` it can only add codes. ValueError: so many workers have no sum."""

    def network_adder(self, world: int, shared: Tensor = NOTHING) -> NetworkAdder | None:
        """The same for codes that the network adds; None: it cannot."""
        return None


class Adder(ABC):
    """Adds vectors (float32) as codes (uint8). What the workers agreed on is bound to it.

    Codes of neighbouring pieces, one after the other, are those of both, and so are totals. The
    rank of a key matters to `encode` and `subtract` alone.
    """

    in_turn: bool = False  # are codes sent one message at a time (`tickets.py`)?

    @abstractmethod
    def code_nbytes(self, numel: int) -> int:
        """Bytes of the codes of `numel` values."""

    @abstractmethod
    def total_nbytes(self, numel: int) -> int:
        """Bytes of the total of all workers' codes."""

    @abstractmethod
    def encode(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        """Write this worker's codes."""

    def encode_and_subtract(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        """Write this worker's codes, and take what they say off `x`."""
        self.encode(x, out, key, offset)
        self.subtract(out, x, key, offset)

    @abstractmethod
    def add(self, codes: Tensor, total: Tensor, numel: int, key: Key, offset: int = 0) -> None:
        """Write the total of `codes`, one row per rank, which may be overwritten."""

    @abstractmethod
    def decode(self, total: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        """Write the mean of all vectors."""

    @abstractmethod
    def subtract(self, code: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        """Take what this worker's own codes say of its vector off `out`."""


class NetworkAdder(Adder):
    """Its codes are arrays of `dtype` with room for the total, so `all_reduce` may add them."""

    dtype: ClassVar[torch.dtype]
    in_turn = True

    def total_nbytes(self, numel: int) -> int:
        return self.code_nbytes(numel)

    def add(self, codes: Tensor, total: Tensor, numel: int, key: Key, offset: int = 0) -> None:
        total.copy_(codes[0])
        for code in codes[1:]:
            total.view(self.dtype).add_(code.view(self.dtype))


def check_input(x: Tensor) -> None:
    """Refuse what no codec takes."""
    if x.is_sparse:
        raise TypeError("a sparse tensor cannot be encoded; pass `x.to_dense()`.")
    if x.dtype not in FLOAT_DTYPES:
        raise TypeError(f"a codec takes float32, float16 or bfloat16, got {x.dtype}; convert it.")
