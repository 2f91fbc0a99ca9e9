"""A kernel that was compiled for an AMD device, in memory, with its arguments: ready to run."""

import ctypes
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

NOTHING, ZEROS = 0, 8
"""Kinds of sections: one that holds nothing, and one that is not in the file."""
_PACKED = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "fp32": "f", "fp64": "d"}


class Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    linked: int


class Symbol(NamedTuple):
    name: int
    info: int
    other: int
    section: int
    address: int
    size: int


class Code:
    """A code object, and what its descriptor says of a kernel: 64 bytes, named `<kernel>.kd`."""

    def __init__(self, kernel: Any) -> None:
        elf, name = kernel.asm["hsaco"], kernel.metadata.name
        sections = _sections(elf)
        extent = max(x.address + x.size for x in sections)
        self._memory = (ctypes.c_char * (extent + 16))()  # an instruction is decoded from 16 bytes
        base = ctypes.addressof(self._memory)
        for x in sections:
            if x.address and x.kind not in (NOTHING, ZEROS):
                ctypes.memmove(base + x.address, elf[x.offset : x.offset + x.size], x.size)
        at = base + _address(elf, sections, f"{name}.kd")
        _, self.scratch, self.arguments, _, entry = struct.unpack("<4Iq", ctypes.string_at(at, 24))
        self.modes, self.resources = struct.unpack("<2I", ctypes.string_at(at + 48, 8))
        self.start, self.shared = at + entry, kernel.metadata.shared

    @property
    def num_vectors(self) -> int:
        """The registers of a thread."""
        return (self.modes & 0x3F) * 8 + 8

    @property
    def num_scalars(self) -> int:
        """Scalar registers that a wave finds set: those it asks for, and its program."""
        return (self.resources >> 1 & 0x1F) + 3


def _sections(elf: bytes) -> list[Section]:
    (start,), (size, count) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<2H", elf, 58)
    return [Section(*struct.unpack_from("<2I4QI", elf, start + i * size)) for i in range(count)]


def _address(elf: bytes, sections: list[Section], name: str) -> int:
    """Where a symbol is that other programs may see."""
    table = next(x for x in sections if x.kind == 11)
    names = sections[table.linked].offset
    for at in range(table.offset, table.offset + table.size, 24):
        symbol = Symbol(*struct.unpack_from("<IBBHQQ", elf, at))
        start = names + symbol.name
        if elf[start : elf.index(b"\0", start)].decode() == name:
            return symbol.address
    raise KeyError(name)


def packed(kinds: Iterable[tuple[str, str]], given: dict[str, Any], nbytes: int) -> Any:
    """Arguments as a kernel finds them in memory, each at a multiple of its size."""
    memory, at = (ctypes.c_char * max(nbytes, 64))(), 0
    for name, kind in kinds:
        if kind != "constexpr":
            is_pointer = isinstance(given[name], torch.Tensor)
            value, form = (
                (given[name].data_ptr(), "Q") if is_pointer else (given[name], _PACKED[kind])
            )
            size = struct.calcsize(form)
            at = -(-at // size) * size
            struct.pack_into(form, memory, at, value)
            at += size
    return memory
