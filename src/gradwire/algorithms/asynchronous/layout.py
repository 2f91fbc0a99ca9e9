"""How the parameters of a model travel: which of them together, and through which codec.

A vector of all of them is a row of messages of `gw.encode`, each padded to a multiple of 8 bytes:
those that travel raw together in one, and one for each of the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradwire.adaptive import AdaptiveCodec
from gradwire.algorithms.flat import Flat
from gradwire.codec import FLOAT_DTYPES, Codec
from gradwire.codecs import as_codec, parse
from gradwire.codecs.cast import Identity
from gradwire.kernels.exact import is_finite
from gradwire.key import Key
from gradwire.reduction.policy import Policy
from gradwire.wire import CHECKSUM_NBYTES, MAX_HEADER_NBYTES, Header, Message, WireError, encode

ALIGN = 8
Rows = Sequence[tuple[int, str]]
"""Where each section ends, and its codec."""


@dataclass(frozen=True)
class Section:
    """Values from `start` to `stop` of the vector, which are one message."""

    number: int
    start: int
    stop: int
    codec: Codec

    @property
    def numel(self) -> int:
        """How many values there are."""
        return self.stop - self.start

    @property
    def max_nbytes(self) -> int:
        """The most that its message takes."""
        return _padded(MAX_HEADER_NBYTES + self.codec.max_nbytes(self.numel) + CHECKSUM_NBYTES)

    def read(self, body: memoryview, key: Key) -> tuple[Tensor, int]:
        """Its values, from the message at the start of `body`, and the bytes that it took.

        Everything that the message says of itself must be as expected: `WireError`.
        """
        header = Header.unpack(body)
        for what, expected, found in (
            ("codec", str(self.codec), header.spec),
            ("shape", (self.numel,), header.shape),
            ("type", torch.float32, header.dtype),
            ("key", key.of(tensor=self.number), header.key),
        ):
            if found != expected:
                said = f"must have the {what} {expected}, got {found}."
                raise WireError(f"message {self.number} {said}")
        message = Message.read(body[: header.message_nbytes], max_numel=self.numel)
        return message.values(), _padded(header.message_nbytes)


@dataclass(frozen=True)
class Layout:
    """The sections of a model, and what both sides must agree on."""

    sections: tuple[Section, ...]
    digests: bytes

    @property
    def numel(self) -> int:
        """Values in all."""
        return self.sections[-1].stop

    @property
    def max_nbytes(self) -> int:
        """The most that a vector takes."""
        return sum(each.max_nbytes for each in self.sections)

    def encode(self, vector: Tensor, key: Key) -> bytes:
        """The messages of a vector."""
        return b"".join(self.encode_section(each, vector, key) for each in self.sections)

    @staticmethod
    def encode_section(section: Section, vector: Tensor, key: Key) -> bytes:
        """One of the messages."""
        values = vector[section.start : section.stop]
        message = encode(section.codec, values, key.of(tensor=section.number))
        return message.ljust(_padded(len(message)), b"\0")

    def decode(self, body: memoryview, key: Key, out: Tensor) -> None:
        """Check all messages, then write what they say. `WireError` leaves `out` as it was."""
        found, at = [], 0
        for section in self.sections:
            values, nbytes = section.read(body[at:], key)
            if not is_finite(values):
                raise WireError(f"message {section.number} has values that are not finite.")
            found.append(values)
            at += nbytes
        if at != len(body):
            raise WireError(f"the messages take {at} bytes, got {len(body)}.")
        torch.cat(found, out=out)

    def differences(self, digests: bytes) -> str:
        """Name what another layout has otherwise, by its `digests`; nothing if they are equal."""
        size = len(self.digests) // 3
        names = ("model", "codec", "policy")
        ours, theirs = (
            [each[i * size : (i + 1) * size] for i in range(3)] for each in (self.digests, digests)
        )
        return ", ".join(n for n, a, b in zip(names, ours, theirs, strict=True) if a != b)

    def to_json(self) -> str:
        """For a process that has no model."""
        rows = [(each.stop, str(each.codec)) for each in self.sections]
        return json.dumps({"sections": rows, "digests": self.digests.hex()})

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """What `to_json` gave."""
        facts = json.loads(text)
        return cls(_sections(facts["sections"]), bytes.fromhex(facts["digests"]))


class Exchanged(NamedTuple):
    """What of a model travels: its layout, the parameters in that order, and names of raw ones."""

    layout: Layout
    flat: Flat
    raw: tuple[str, ...]


def exchanged(model: nn.Module, codec: Codec | str, policy: Policy) -> Exchanged:
    """All parameters that are trained: first those that travel raw, then each for itself."""
    codec = as_codec(codec)
    named = dict(_trained(model))
    policy.check(list(named))
    if policy.warmup_steps:
        raise ValueError(
            "`warmup_steps` of a policy are those of all workers, and here everyone is at a step "
            "of its own; leave them out."
        )
    codecs = {name: _codec_for(name, param, codec, policy) for name, param in named.items()}
    raw = tuple(name for name in named if codecs[name] is None)
    rows = [(sum(named[name].numel() for name in raw), str(Identity()))] if raw else []
    coded = [(name, each) for name, each in codecs.items() if each is not None]
    for name, each in coded:
        rows.append(((rows[-1][0] if rows else 0) + named[name].numel(), str(each)))
    facts = [str([(name, tuple(p.shape)) for name, p in named.items()]), str(codec), str(policy)]
    digests = b"".join(hashlib.sha256(each.encode()).digest() for each in facts)
    flat = Flat([named[name] for name in (*raw, *(name for name, _ in coded))])
    return Exchanged(Layout(_sections(rows), digests), flat, raw)


def _codec_for(name: str, param: Tensor, codec: Codec, policy: Policy) -> Codec | None:
    chosen = policy.codec_for(name, codec) if param.numel() >= policy.min_numel else None
    if isinstance(chosen, AdaptiveCodec):
        raise ValueError(
            f"{chosen} learns from what all workers say of a step, and here everyone is at a step "
            "of its own; use a codec without memory, such as `qsgd`, `dqsg` or `topk`."
        )
    return chosen


def _sections(rows: Rows) -> tuple[Section, ...]:
    starts = [0, *(stop for stop, _ in rows)]
    return tuple(Section(i, starts[i], stop, parse(spec)) for i, (stop, spec) in enumerate(rows))


def _trained(model: nn.Module) -> list[tuple[str, Tensor]]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch module, got {type(model).__name__}.")
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise ValueError(
                f"{name!r} keeps running statistics, which the server could not know: workers push "
                "gradients alone. Use `nn.GroupNorm`, or `track_running_stats=False`."
            )
    found: list[tuple[str, Tensor]] = [
        (n.replace("_orig_mod.", ""), p) for n, p in model.named_parameters() if p.requires_grad
    ]
    for name, param in found:
        if param.device.type != "cpu" or param.dtype not in FLOAT_DTYPES:
            raise TypeError(
                f"{name!r} must be of float32, float16 or bfloat16 and on the CPU, got "
                f"{param.dtype} on {param.device}."
            )
    return found


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN
