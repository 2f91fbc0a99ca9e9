"""A wave of 32 threads in the emulator, and what is done around some of its instructions."""

import ctypes
import re
from typing import Any

import numpy as np

from gpu_interpreter import Watch

LANES = np.arange(32, dtype=np.uint32)
RUBBISH = 0xA5A5A5A5
SPARE = 255
"""A register that the emulated code must not use."""
_LITERAL = 255
"""The number of an operand that is the word behind the instruction, which is of eight bytes."""


class Wave:
    """The registers of 32 threads."""

    def __init__(self, state: Any, shared: np.ndarray, num_set: int) -> None:
        self.state = state
        self.vector = np.frombuffer(state._vgpr_mv, np.uint32).reshape(256, 32)
        self.scalar = np.frombuffer(state._sgpr_mv, np.uint32)
        self.vector[1:], self.scalar[num_set:108] = RUBBISH, RUBBISH
        places = state.sgpr_buf, state.vgpr_buf, None, None, None, state.accvgpr_buf
        self.buffers = [ctypes.c_uint64(x._buf.va_addr if x else 0) for x in places]
        self.buffers[3] = ctypes.c_uint64(shared.ctypes.data)

    def active(self) -> np.ndarray:
        return (self.scalar[126] >> LANES & 1).astype(bool)

    def pair(self, registers: np.ndarray, first: int) -> Any:
        """64 bits of two registers."""
        return registers[first] | registers[first + 1].astype(np.uint64) << np.uint64(32)


def size_of(name: str) -> int:
    """The bytes that an instruction reads or writes for a thread."""
    return int(re.search(r"_[BUIF](\d+)$", name)[1]) // 8


def signed(value: int, bits: int) -> np.ndarray:
    """A signed field, to be added to addresses."""
    top = 1 << (bits - 1)
    return np.array([(value ^ top) - top], np.int64).view(np.uint64)


def advance(wave: Wave, inst: Any) -> None:
    wave.state.pc += inst.size()


def buffer_addresses(wave: Wave, inst: Any, at: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Addresses, and which of them are active and in range of the buffer.

    Offsets do not wrap around: one that is negative is out of range, whatever is added to it. The
    compiler makes such code; chips may take it, but no kernel should depend on that.
    """
    resource, scalar = inst.srsrc.offset, wave.scalar
    if inst.idxen or scalar[resource + 1] >> 16 & 0x3FFF:
        raise NotImplementedError("a buffer with a stride")
    base = wave.pair(scalar, resource) & np.uint64((1 << 48) - 1)
    offset = np.full(32, inst.offset, np.uint64)
    if inst.offen:
        offset += wave.vector[at]
    inside = wave.active() & (offset + np.uint64(size) <= scalar[resource + 2])
    return base + scalar[inst.soffset.offset] + offset, inside


def preparation(inst: Any, pc: int, kinds: Any) -> Any:
    """What is done before an instruction runs; None if nothing is."""
    if isinstance(inst, kinds.GLOBAL):
        return _global_check(inst)
    if isinstance(inst, kinds.SMEM):
        return _scalar_check(inst)
    return _copying(inst, pc) if hasattr(inst, "dpp") else None


def _copying(inst: Any, pc: int) -> Any:
    """Threads that read registers of each other read before any of them writes.

    The emulator goes from thread to thread, so the source is copied to the last register first, and
    the instruction, which has its number in the fifth byte, reads that one instead.
    """
    source = inst.vsrc0.offset - 256
    ctypes.memset(pc + 4, SPARE, 1)

    def copy(wave: Wave, watch: Watch) -> None:
        wave.vector[SPARE] = wave.vector[source]

    return copy


def _scalar(wave: Wave, source: Any, literal: int) -> int:
    """An operand that all threads share."""
    return literal if source.offset == _LITERAL else int(wave.scalar[source.offset])


def _literal_at(pc: int) -> int:
    return int.from_bytes(ctypes.string_at(pc + 8, 4), "little")


def permutation(inst: Any, pc: int) -> Any:
    """`v_permlane(x)16`: lanes of the same row, or of the other.

    The emulator does not find an operand that is a literal.
    """
    other_row = 16 if "X16" in inst.op.name else 0
    literal = _literal_at(pc)

    def permute(wave: Wave, _: Watch) -> None:
        low, high = (_scalar(wave, source, literal) for source in (inst.src1, inst.src2))
        places = np.array([(low | high << 32) >> 4 * i & 15 for i in range(16)] * 2)
        old = wave.vector[inst.src0.offset - 256].copy()
        active = wave.active()
        moved = old[places + (LANES & 16 ^ other_row)]
        wave.vector[inst.vdst.offset - 256, active] = moved[active]
        advance(wave, inst)

    return permute


def quotients(inst: Any, pc: int) -> Any:
    """The last instruction of a division: {thread: quotient} where a subnormal is in it.

    The emulator divides as if those were flushed, though the code says that they are kept; this
    CPU divides instead.
    """
    sources, literal = [(inst.src2, 4), (inst.src1, 2)], _literal_at(pc)

    def divide(wave: Wave) -> dict[int, int]:
        numerator, denominator = (
            _float_source(wave, inst, literal, *source) for source in sources
        )  # fmt: skip
        with np.errstate(all="ignore"):
            quotient = numerator / denominator
        least = np.finfo(np.float32).tiny
        small = [abs(x) < least for x in (numerator, denominator, quotient)]
        lanes = np.nonzero(np.logical_or.reduce(small) & (numerator != 0) & wave.active())[0]
        return {int(lane): int(quotient.view(np.uint32)[lane]) for lane in lanes}

    return divide


def _float_source(wave: Wave, inst: Any, literal: int, source: Any, bit: int) -> np.ndarray:
    """An operand of 32 bits, with its sign as the instruction has it."""
    if source.offset < 256:
        bits = np.full(32, _scalar(wave, source, literal), np.uint32)
    else:
        bits = wave.vector[source.offset - 256]
    value = np.ascontiguousarray(bits).view(np.float32)
    value = abs(value) if inst.abs & bit else value
    return -value if inst.neg & bit else value


def _global_check(inst: Any) -> Any:
    name, at, base = inst.op.name, inst.addr.offset - 256, inst.saddr.offset
    offset = signed(inst.offset, 13)

    def check(wave: Wave, watch: Watch) -> None:
        start = wave.pair(wave.vector, at)
        if base < 124:
            start = wave.pair(wave.scalar, base) + wave.vector[at]
        counter = watch.written if "STORE" in name else watch.read
        watch.touch((start + offset)[wave.active()], size_of(name), counter)

    return check


def _scalar_check(inst: Any) -> Any:
    if not inst.op.name.startswith("S_LOAD"):
        return None
    base, size, offset = inst.sbase.offset, size_of(inst.op.name), signed(inst.offset, 21)

    def check(wave: Wave, watch: Watch) -> None:
        start = wave.scalar[base : base + 2].view(np.uint64) + offset
        watch.touch(start + wave.scalar[inst.soffset.offset], size, watch.read)

    return check
