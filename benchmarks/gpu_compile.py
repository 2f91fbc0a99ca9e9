"""The GPU kernels, compiled without a GPU: registers, shared memory, spills, widths of accesses.

    python benchmarks/gpu_compile.py [--odd 1] [--targets sm_80 gfx942 ...] [--kernels quantize ...]

Every call of `kernel_calls` is made with tensors on the CPU, but instead of being started
each launch is noted: its kernel, types and constants. So what is compiled is what a GPU would be
given. The most usual variants of each kernel are compiled; with `--odd 1` also those with one
other constant, and with more each of a thousand. Prints the tables of docs/gpu.md.

Spills are instructions that go to memory, or its bytes. Scalar registers that AMD's compiler puts
into vector ones cost no memory: they are counted apart, as moved. What `gpu_arithmetic.py` finds
is loose. Triton keeps what it has compiled, so a run that was stopped goes on where it was, and
several may share the work by their targets.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from triton import knobs

from gpu_arithmetic import loose
from gpu_launches import TARGETS, Launch, Variant, caught, compiled, variant_of
from gradwire.kernels import gpu
from gradwire.kernels.gpu.sparse import sums_of_gaps
from gradwire.lab.selftest.kernel_calls import TABLE

USUAL = {
    "WIDTH": 4, "SPAN": 512, "TILES": 1, "L2": False, "ADD": False, "PLANES": False,
    "DITHER": False, "DITHERED": False, "BITS": 2, "NARROW": 0, "ALIGNED": True, "BLOCK": 4096,
    "SIZE": 256, "SHIFT": 22, "DOMAIN": 1, "REST": False, "BACK": True, "FILL": False,
    "BASE": True, "CENTRE": True, "COLUMNS": 512, "RANKS": 4, "EXTRA": True,
}  # fmt: skip
"""What follows from another constant is not listed."""
SUM_WIDTH = 6
"""The usual width of a sum of codes."""
NUMEL = 5003
HEADER = (
    "| kernel | target | variants | registers | shared | spills | moved | load | store | loose |"
)


def distance(variant: Variant) -> int:
    """How much is unusual about it."""
    usual = USUAL | ({"WIDTH": SUM_WIDTH} if variant.name.endswith(("_fields", "_sum")) else {})
    odd = sum(usual.get(name, value) != value for name, value in variant.constants)
    return odd + any(kind in ("*fp16", "*bf16") for _, kind in variant.types)


@lru_cache
def launches(name: str) -> list[Launch]:
    """Those that the calls of a kernel lead to, and its own."""
    found: list[Launch] = []
    with caught(found.append):
        for dtype in TABLE[name].dtypes:
            for call in TABLE[name].calls(NUMEL, dtype):
                getattr(gpu, name)(*call.args, **call.how)
        if name == "block_scales":  # a block of more tiles than one launch folds
            for norm in ("max", "l2"):
                gpu.block_scales(torch.empty(1 << 20), torch.empty(1), block=None, norm=norm)
        if name == "gap_sizes":  # launched for as many as the device has counted
            sums_of_gaps(torch.empty(8, dtype=torch.int64))
    return found


@lru_cache
def variants(name: str, target: str = "sm_80") -> list[Variant]:
    """What is compiled for them."""
    return list(dict.fromkeys(variant_of(launch, TARGETS[target]) for launch in launches(name)))


def near(kernel_variants: list[Variant], odd: int) -> list[Variant]:
    """Those with so many more odd constants than the most usual one of each launch."""
    least = {v.name: min(distance(w) for w in kernel_variants if w.name == v.name)
             for v in kernel_variants}  # fmt: skip
    return [v for v in kernel_variants if distance(v) <= least[v.name] + odd]


class Facts(NamedTuple):
    """What a device would be given."""

    registers: int
    shared: int
    spills: int
    moved: int
    accesses: Counter[str]
    instructions: int


def facts(kernel: Any) -> Facts:
    return _nvidia(kernel) if "cubin" in kernel.asm else _amd(kernel)


def sass(kernel: Any) -> str:
    """The instructions of a kernel for NVIDIA."""
    return _tool(knobs.nvidia.nvdisasm.path, "-c", kernel.asm["cubin"])


def _tool(path: str, option: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [path, option, file.name], capture_output=True, text=True, check=True
        ).stdout


def _nvidia(kernel: Any) -> Facts:
    usage = _tool(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", kernel.asm["cubin"])
    numbers = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", usage)}
    code = sass(kernel)
    accesses = Counter(
        f"{'load' if op == 'LDG' else 'store'} {width or 32}"
        for op, width in re.findall(r"\b(LDG|STG)\.E(?:\.\w*?)??(?:\.(U8|S8|U16|64|128))?\b", code)
    )
    spilled = len(re.findall(r"\b(?:LDL|STL)\b", code))
    instructions = len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", code, re.M))
    return Facts(numbers["REG"], kernel.metadata.shared, spilled, 0, accesses, instructions)


def _amd(kernel: Any) -> Facts:
    code = kernel.asm["amdgcn"]
    numbers = {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)", code)}
    bits = {"b128": 128, "dwordx4": 128, "b64": 64, "dwordx2": 64, "b32": 32, "dword": 32}
    accesses = Counter(
        f"{op} {bits.get(width, width)}"
        for op, width in re.findall(r"(?:global|buffer)_(load|store)_(\w+)", code)
    )
    spilled = numbers["vgpr_spill_count"] + numbers["private_segment_fixed_size"]
    moved = numbers["sgpr_spill_count"]
    instructions = len(re.findall(r"^\t[sv]_|^\t(?:global|buffer|ds)_", code, re.M))
    return Facts(
        numbers["vgpr_count"], kernel.metadata.shared, spilled, moved, accesses, instructions
    )  # fmt: skip


def row(name: str, target: str, found: list[Facts], inexact: set[str]) -> str:
    registers, shared = [f.registers for f in found], [f.shared for f in found]
    widest = {kind: max((int(a.split()[1]) for f in found for a in f.accesses
                         if a.startswith(kind) and a.split()[1].isdigit()), default=0)
              for kind in ("load", "store")}  # fmt: skip
    return (
        f"| {name} | {target} | {len(found)} | {min(registers)} to {max(registers)} | "
        f"{max(shared)} | {max(f.spills for f in found)} | {max(f.moved for f in found)} | "
        f"{widest['load']} | {widest['store']} | {', '.join(sorted(inexact)) or 'none'} |"
    )


def rows(name: str, target: str, odd: int, done: set[tuple[str, Variant]]) -> None:
    """Print a row for each launch of a kernel, but for variants that are done."""
    found: dict[str, list[Facts]] = defaultdict(list)
    inexact: dict[str, set[str]] = defaultdict(set)
    chosen = near(variants(name, target), odd)
    for i, variant in enumerate(v for v in chosen if (target, v) not in done):
        if sys.stderr.isatty():
            print(f"\r\033[K{name}, {target}: {i + 1}", end="\r", file=sys.stderr, flush=True)
        kernel = compiled(variant, TARGETS[target])
        found[variant.name].append(facts(kernel))
        inexact[variant.name] |= loose(variant.name, kernel)
    done.update((target, v) for v in chosen)
    for launched, each in found.items():
        print(row(launched, target, each, inexact[launched]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--odd", type=int, default=0, help="how many constants may be unusual")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--kernels", nargs="+", default=gpu.__all__, choices=gpu.__all__)
    options = parser.parse_args()
    print(HEADER, "|---|---|---|---|---|---|---|---|---|---|", sep="\n")
    done: set[tuple[str, Variant]] = set()
    for name in sorted(options.kernels, key=lambda name: name != "block_scales"):  # all launch it
        for target in options.targets:
            rows(name, target, options.odd, done)


if __name__ == "__main__":
    main()
