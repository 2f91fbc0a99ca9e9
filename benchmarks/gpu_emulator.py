"""The emulator of AMD's gfx1100 in tinygrad's repository, with every access to memory checked.

It is found in a checkout, which is no package: nothing of it is needed but for `gpu_emulate.py`.
The emulator runs each instruction of a wave of 32 threads as a small program for the CPU. What is
added here: registers and shared memory hold rubbish at the start, waves take turns in either order,
subnormals are kept, as the code object says, and loads and stores may touch no more than what the
launch was given. Buffer instructions, which the emulator lacks for this device, are here, too.
"""

import ctypes
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from gpu_code import Code
from gpu_interpreter import Watch
from gpu_wave import (
    SPARE,
    Wave,
    advance,
    buffer_addresses,
    permutation,
    preparation,
    quotients,
    size_of,
)

POISON = 0xA5
SHARED_NBYTES = 1 << 16
MOST_STEPS = 1_000_000
KEPT = 0xF << 16
"""The bits of a descriptor that say that subnormals of all floats are kept."""
_FIRST_PAGE = 4096
_BUFFER = 0b111000
"""The top bits of a buffer instruction."""


def host_memory() -> np.ndarray:
    """All memory of this process as bytes, but for the first page."""
    return np.ctypeslib.as_array(
        (ctypes.c_uint8 * ((1 << 47) - _FIRST_PAGE)).from_address(_FIRST_PAGE)
    )


class Emulator:
    def __init__(self, checkout: Path) -> None:
        self.emu = _imported(checkout)
        self.memory = host_memory()
        self.launched = 0
        self.steps: dict[Code, dict[int, Any]] = {}

    def run(self, code: Code, programs: int, threads: int, packed: Any, watch: Watch) -> None:
        """Start so many programs, one after the other, with packed arguments."""
        if code.scratch or code.num_vectors > SPARE or code.modes & KEPT != KEPT:
            raise ValueError("it runs code with a register to spare that keeps subnormals")
        self.launched += 1
        for program in range(programs):
            self._run_program(code, program, threads, packed, watch)

    def _run_program(self, code, program, threads, packed, watch) -> None:
        shared = np.full(SHARED_NBYTES, POISON, np.uint8)
        waves = [
            self._wave(code, program, first, threads, packed, shared)
            for first in range(0, threads, 32)
        ]
        waves = waves[:: -1 if self.launched % 2 else 1]
        steps = self.steps.setdefault(code, {})
        while waves:
            waves = [wave for wave in waves if self._waits(wave, watch, steps)]
        if (shared[code.shared :] != POISON).any():
            raise ValueError("shared memory beyond what was asked for is written")

    def _wave(self, code, program, first, threads, packed, shared) -> Wave:
        state = self.emu._init_wave(
            code.start, first, threads, threads, 1, 1, ctypes.addressof(packed), code.resources,
            0, "rdna3", program, 0, 0, None,
        )  # fmt: skip
        return Wave(state, shared, code.num_scalars)

    def _waits(self, wave: Wave, watch: Watch, steps: dict[int, Any]) -> bool:
        """Run a wave to the next barrier, or to its end: does it wait?"""
        for _ in range(MOST_STEPS):
            pc = wave.state.pc
            if pc == self.emu.ENDPGM_PC:
                return False
            if pc not in steps:
                steps[pc] = self._step(pc)
            step, is_barrier = steps[pc]
            step(wave, watch)
            if is_barrier:
                return True
        raise RuntimeError(f"a wave has run {MOST_STEPS:,} instructions without an end")

    def _step(self, pc: int) -> tuple[Any, bool]:
        """What the instruction at an address does, and whether it waits for other waves."""
        emu, kinds = self.emu, self.emu.ir3
        octets = ctypes.string_at(pc, 8)
        if octets[3] >> 2 == _BUFFER:
            return self._buffer_step(kinds.MUBUF.from_bytes(octets)), False
        inst = emu.decode_inst(ctypes.string_at(pc, 16), "rdna3")
        if isinstance(inst, kinds.VOP3) and inst.op.name.startswith("V_PERMLANE"):
            return permutation(inst, pc), False
        prepare = preparation(inst, pc, kinds)
        (program, runtime), _ = emu._decode_at(pc, "rdna3")
        places, function = program.arg.globals, runtime.fxn

        divides = isinstance(inst, kinds.VOP3) and inst.op.name == "V_DIV_FIXUP_F32"
        finish = quotients(inst, pc) if divides else None

        def step(wave: Wave, watch: Watch) -> None:
            changed = finish(wave) if finish else {}
            if prepare:
                prepare(wave, watch)
            function(*[wave.buffers[place] for place in places])
            for lane, bits in changed.items():
                wave.vector[inst.vdst.offset - 256, lane] = bits

        is_barrier = isinstance(inst, kinds.SOPP) and inst.op == kinds.SOPPOp.S_BARRIER
        return step, is_barrier

    def _buffer_step(self, inst: Any) -> Any:
        name = inst.op.name
        if name.endswith("_INV"):  # of a cache
            return lambda wave, watch: advance(wave, inst)
        size, high = size_of(name), "D16_HI" in name
        data, at = inst.vdata.offset - 256, inst.vaddr.offset - 256

        def step(wave: Wave, watch: Watch) -> None:
            addresses, inside = buffer_addresses(wave, inst, at, size)
            watch.touch(addresses[inside], size, watch.written if "STORE" in name else watch.read)
            if "STORE" in name:
                self._store(wave, addresses, inside, data, size, high)
            else:
                self._load(wave, addresses, inside, data, size, name)
            advance(wave, inst)

        return step

    def _octets(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """Where the bytes at addresses are in `memory`."""
        return addresses.astype(np.int64)[:, None] - _FIRST_PAGE + np.arange(size)

    def _store(self, wave, addresses, inside, data, size, high) -> None:
        words = np.ascontiguousarray(wave.vector[data : data + max(size // 4, 1)].T)
        octets = (words >> 16 if high else words).view(np.uint8)[:, :size]
        self.memory[self._octets(addresses[inside], size)] = octets[inside]

    def _load(self, wave, addresses, inside, data, size, name) -> None:
        """Zeros where nothing is read; less than a word is extended, or takes half a register."""
        octets = np.zeros((32, size), np.uint8)
        octets[inside] = self.memory[self._octets(addresses[inside], size)]
        if size < 4:
            kind = f"{'i' if '_I' in name else 'u'}{size}"
            value = octets.view(kind).astype(np.int32).astype(np.uint32)
            old = wave.vector[data][:, None]
            if "D16_HI" in name:
                value = old & 0xFFFF | value << 16
            elif "D16" in name:
                value = old & 0xFFFF0000 | value & 0xFFFF
        else:
            value = octets.view(np.uint32)
        active = wave.active()
        for i, column in enumerate(value.T):
            wave.vector[data + i, active] = column[active]


def _imported(checkout: Path) -> Any:
    """Folders of a checkout are no packages, and `test` is also one of Python's."""
    sys.path.insert(0, str(checkout))
    for name in ("test", "test.amd", "test.mockgpu", "test.mockgpu.amd"):
        package = types.ModuleType(name)
        package.__path__ = [str(checkout.joinpath(*name.split(".")))]
        sys.modules[name] = package
    return importlib.import_module("test.mockgpu.amd.emu")
