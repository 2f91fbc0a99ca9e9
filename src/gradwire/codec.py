"""What a codec is. Read this file first.

A codec turns one flat vector of gradients into a *payload*, a run of bytes, and back::

    payload = codec.encode(x, key)                  # uint8
    y = codec.decode(payload, x.numel(), key)       # float32

Three kinds of state, never mixed:

- *settings* are the fields of a frozen dataclass: ``eval(repr(codec)) == codec``, and
  ``parse(str(codec)) == codec``;
- *randomness* is a `Key`: the same key gives the same bits on every machine, so a bug report is
  a key, and a dither that both sides can rebuild is never sent;
- *residuals* (error feedback) belong to the reducer; a codec never sees them.

What a codec has *learned* is a fourth, for those of `adaptive.py` alone.

"May I sum this?" is a type: messages of a `SummableCodec` may be added by the network, those of a
`ReducibleCodec` by the codec itself (some are both), and no others. A long vector may be cut at
multiples of `Codec.grain` and the pieces encoded one by one, each with its `offset`: the result is
the same. Who encodes which piece therefore never shows in the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.key import Key

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Codec(ABC):
    """One vector to bytes and back. Subclasses are frozen dataclasses of settings."""

    unbiased: ClassVar[bool]
    """Is the mean of `decode(encode(x))` over keys equal to `x`? If not, error feedback is on."""

    fixed_size: ClassVar[bool] = True
    """Does the size of a payload depend on the length of the vector alone?"""

    collective: ClassVar[str | None] = None
    """The collective this codec asks for; None: whichever sends least."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in a spec, as in ``qsgd:bits=4``."""

    @property
    def grain(self) -> int | None:
        """A vector may be cut at multiples of this many values; None: it may not be cut."""
        return 1

    @abstractmethod
    def max_nbytes(self, numel: int) -> int:
        """The most bytes a payload of `numel` values takes; the exact number if `fixed_size`."""

    @abstractmethod
    def encode_into(
        self, x: Tensor, out: Tensor, key: Key, offset: int = 0, *, world: int = 1
    ) -> int:
        """Write the payload of `x` into `out` (uint8) and return its size in bytes.

        `x` is `offset` values into the vector that `key` belongs to. It is left as it was. The
        payload is to be decoded on its own if `world` is 1, else by `aggregate_into` together
        with those of the other `world - 1` workers.
        """

    @abstractmethod
    def decode_into(
        self,
        payload: Tensor,
        out: Tensor,
        key: Key,
        offset: int = 0,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """Write (or add, if `accumulate`) `weight` times the decoded values to `out` (float32).

        Raises `ValueError` if `payload` does not have the size or structure of one that
        `encode_into` writes for as many values.
        """

    def aggregate_into(
        self, payloads: Sequence[Tensor], out: Tensor, keys: Sequence[Key], offset: int = 0
    ) -> None:
        """Write the mean of what `payloads`, one of each rank in order, say to `out` (float32)."""
        weight = 1.0 / len(payloads)
        for rank, (payload, key) in enumerate(zip(payloads, keys, strict=True)):
            self.decode_into(payload, out, key, offset, weight=weight, accumulate=rank > 0)

    def num_dependent(self, world: int) -> int:
        """How many of `world` workers send payloads that need those of others to be decoded.

        They do so only if told a `world` above 1, and may fail: see `failure_rate`.
        """
        return 0

    def failure_rate(
        self, payloads: Sequence[Tensor], numel: int, keys: Sequence[Key], offset: int = 0
    ) -> float:
        """The share of values that dependent payloads among workers such as these get wrong."""
        return 0.0

    def trusts(self, failure_rate: float | None) -> bool:
        """May dependent payloads be sent if this was the failure rate last (None: unknown)?"""
        return True

    def encode(self, x: Tensor, key: Key, *, world: int = 1) -> Tensor:
        """The payload of `x`, a fresh uint8 tensor."""
        check_input(x)
        x = x.detach().reshape(-1)
        out = torch.empty(self.max_nbytes(x.numel()), dtype=torch.uint8, device=x.device)
        return out[: self.encode_into(x, out, key, world=world)]

    def decode(self, payload: Tensor, numel: int, key: Key) -> Tensor:
        """The `numel` values of `payload`, a fresh flat float32 tensor."""
        out = torch.empty(numel, dtype=torch.float32, device=payload.device)
        self.decode_into(payload, out, key)
        return out

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """The bytes of each part of the payload of `numel` values, in their order.

        Raises `ValueError` if it is too short to have them.
        """
        return {"payload": payload.numel()}

    def settings(self) -> dict[str, Any]:
        """The settings that differ from their defaults, ready for JSON."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: v for name, v in asdict(self).items() if v != defaults[name]}

    def __str__(self) -> str:
        settings = ",".join(f"{name}={str(v).lower()}" for name, v in self.settings().items())
        return f"{self.name}:{settings}" if settings else self.name


@dataclass(frozen=True)
class AgreeingCodec(Codec):
    """A codec whose messages can be added up; see its two kinds below.

    For that they must agree on something, such as common scales, so the workers exchange
    `statistics` first::

        shared = combine(codec.statistics(x) of every worker)    # MAX, or SUM in order of ranks

    A codec that needs nothing of the kind has empty statistics. Messages need not say what
    `shared` says, so they may be shorter than payloads.
    """

    statistics_op: ClassVar[str] = "max"
    """How statistics are combined: "max" or "sum"."""

    def statistics(self, x: Tensor) -> Tensor:
        """What is to be combined before anything is encoded (float32)."""
        return x.new_empty(0, dtype=torch.float32)


@dataclass(frozen=True)
class SummableCodec(AgreeingCodec):
    """A codec that lets the network add: it sends *terms*, arrays of numbers.

    The sum of the terms of `world` workers, element by element, decodes to the *mean* of their
    vectors::

        total = sum(codec.encode_term(x, ..., shared) of every worker)    # by the network
        codec.decode_sum(total, mean, ..., shared)
    """

    @property
    @abstractmethod
    def sum_dtype(self) -> torch.dtype:
        """What a term is an array of."""

    @abstractmethod
    def term_nbytes(self, numel: int, world: int) -> int:
        """Bytes of the term of `numel` values among `world` workers, and of the sum."""

    @abstractmethod
    def encode_term(
        self, x: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """Write this worker's term to `out` (uint8)."""

    @abstractmethod
    def decode_sum(
        self, total: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """Write the mean to `out` (float32); the rank of `key` is not looked at."""

    @abstractmethod
    def subtract_term(
        self, term: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """Subtract what this worker's own term says of its vector from `out` (float32)."""


@dataclass(frozen=True)
class ReducibleCodec(AgreeingCodec):
    """A codec that adds itself: it sends *codes*, and whoever has those of all adds them up.

    The total decodes to the *mean*. Codes need no room for a sum, so they may be shorter than
    terms::

        codec.add_codes(codec.encode_code(x, ..., shared) of every worker, total, ...)
        codec.decode_total(total, mean, ..., shared)

    Codes of neighbouring pieces of a vector, one after the other, are those of both, and so are
    totals.
    """

    collective = "code_reduce"

    in_turn: ClassVar[bool] = False
    """Do codes go on the wire one message at a time (`transport/tickets.py`)?"""

    @abstractmethod
    def code_nbytes(self, numel: int, world: int) -> int:
        """Bytes of the codes of `numel` values among `world` workers."""

    @abstractmethod
    def total_nbytes(self, numel: int, world: int) -> int:
        """Bytes of the total of such codes."""

    @abstractmethod
    def encode_code(
        self, x: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """Write this worker's codes to `out` (uint8)."""

    @abstractmethod
    def add_codes(self, codes: Tensor, total: Tensor, numel: int, key: Key, offset: int) -> None:
        """Write the total of `codes`, a row of each rank in order, which may be overwritten.

        The rank of `key` is not looked at.
        """

    @abstractmethod
    def decode_total(
        self, total: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """Write the mean to `out` (float32); the rank of `key` is not looked at."""

    @abstractmethod
    def subtract_code(
        self, code: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """Subtract what this worker's own codes say of its vector from `out` (float32)."""


def check_input(x: Tensor) -> None:
    """Refuse what no codec takes."""
    if x.is_sparse:
        raise TypeError("a sparse tensor cannot be encoded; pass `x.to_dense()`.")
    if x.dtype not in FLOAT_DTYPES:
        raise TypeError(
            f"a codec takes float32, float16 or bfloat16, got {x.dtype}; convert it first."
        )


def sizes_up_to(rest: str, payload: Tensor, **parts: int) -> dict[str, int]:
    """For `Codec.anatomy`: parts of known sizes, and what is left of the payload as `rest`."""
    known = sum(parts.values())
    if payload.numel() < known:
        raise ValueError(f"the payload has {payload.numel()} bytes, expected {known} or more.")
    return {**parts, rest: payload.numel() - known}


def check_size(payload: Tensor, expected: int) -> None:
    """Refuse a payload of fixed size that has another one."""
    if payload.numel() != expected:
        raise ValueError(f"the payload has {payload.numel()} bytes, expected {expected}.")


def is_finite(values: Tensor) -> bool:
    """Is every value? The extremes say so, NaN among them, and take no memory to find."""
    return values.numel() == 0 or all(bool(end.isfinite()) for end in torch.aminmax(values))
