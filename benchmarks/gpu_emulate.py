"""The GPU kernels as machine code of AMD's gfx1100, run on this CPU, equal to the reference?

    python benchmarks/gpu_emulate.py --tinygrad CHECKOUT [--kernels quantize ...] [--lengths 9 ...]

Calls of `kernel_calls` are made with tensors on the CPU, framed by canaries. What they
would launch on such a device is compiled, and runs in the emulator of a checkout of tinygrad, which
needs clang (`gpu_emulator.py`). All bytes are compared, there is no tolerance. Of the calls that
lead to the same launches, the first few of each length are made; launches are those of
`gpu_compile.py --odd 1` unless another number is given. Prints a table. With `--mutants`, kernels
that are broken on purpose run instead (`tests/gpu_mutants.py`): each must be noticed.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from triton import knobs

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from gpu_code import Code, packed
from gpu_compile import near, variants
from gpu_emulator import Emulator
from gpu_interpreter import Watch
from gpu_launches import TARGETS, THREADS, Launch, Variant, caught, compiled, variant_of
from gpu_mutants import MUTANTS, how
from gpu_worker import complaint
from gradwire.kernels import gpu
from gradwire.lab.selftest.kernel_calls import TABLE, Call

TARGET = "gfx1100"
LENGTHS = [9, 513, 5003]
"""Less than a tile, a ragged group, and a whole group before a ragged one."""


class Runner:
    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.codes: dict[Variant, Code] = {}

    @contextlib.contextmanager
    def entered(self, watch: Watch) -> Iterator[None]:
        """Run what is launched."""
        with caught(lambda launch: self.start(launch, watch)):
            yield

    def start(self, launch: Launch, watch: Watch) -> None:
        variant = variant_of(launch, TARGETS[TARGET])
        if variant not in self.codes:
            self.codes[variant] = Code(compiled(variant, TARGETS[TARGET]))
        code = self.codes[variant]
        arguments = packed(variant.types, launch.given, code.arguments)
        memory = torch.frombuffer(arguments, dtype=torch.uint8)
        watch.allow([memory, *(x for x in launch.given.values() if isinstance(x, torch.Tensor))])
        self.emulator.run(code, launch.programs, THREADS, arguments, watch)


def launched(name: str, call: Call) -> tuple[Variant, ...]:
    """What a call would launch."""
    found: list[Launch] = []
    with caught(found.append):
        getattr(gpu, name)(*call.args, **call.how)
    return tuple(variant_of(launch, TARGETS[TARGET]) for launch in found)


def chosen(name: str, options: argparse.Namespace) -> Iterator[tuple[str, Call]]:
    """Calls, each with its type and length; so many that launch the same."""
    usual = set(near(variants(name, TARGET), options.odd))
    made: Counter[tuple[object, ...]] = Counter()
    for dtype in TABLE[name].dtypes:
        for numel in options.lengths:
            for call in TABLE[name].calls(numel, dtype):
                what = launched(name, call)
                made[numel, what] += 1
                if usual.issuperset(what) and made[numel, what] <= options.each:
                    yield f"{dtype}, {numel} values", call


def row(name: str, runner: Runner, options: argparse.Namespace) -> str:
    """A row of the table; what differs is printed as it is found."""
    started, known, calls, wrong = time.perf_counter(), len(runner.codes), 0, 0
    for place, call in chosen(name, options):
        calls += 1
        _progress(f"{name}: call {calls}, {place}")
        found = complaint(name, call, runner.entered)
        if found:
            wrong += 1
            print(f"{name}, {place}, {call.how}: {found}", flush=True)
    _progress("")
    seconds, compiled_now = time.perf_counter() - started, len(runner.codes) - known
    verdict = "equal" if not wrong else f"{wrong} differ"
    return f"| `{name}` | {compiled_now} | {calls} | {verdict} | {seconds:.0f} |"


def mutant_row(mutant: str, emulator: Emulator) -> str:
    """What gives it away. In the usual cache, Triton would find the kernel that is not broken."""
    before = knobs.cache.dir
    with tempfile.TemporaryDirectory() as knobs.cache.dir:
        noticed = how(partial(complaint, watched=Runner(emulator).entered), *MUTANTS[mutant])
    knobs.cache.dir = before
    return f"| {mutant} | `{MUTANTS[mutant][3]}` | {noticed or 'nothing'} |"


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tinygrad", type=Path, required=True, help="a checkout")
    parser.add_argument("--kernels", nargs="+", default=gpu.__all__, choices=gpu.__all__)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--odd", type=int, default=1, help="how many constants may be unusual")
    parser.add_argument("--each", type=int, default=3, help="calls of the same launches")
    parser.add_argument("--mutants", nargs="+", choices=list(MUTANTS), help="run these instead")
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True)  # `torch.empty` gives NaN
    emulator = Emulator(options.tinygrad)
    if options.mutants:
        print("| mutant | kernel | noticed by |\n|---|---|---|", flush=True)
        for mutant in options.mutants:
            print(mutant_row(mutant, emulator), flush=True)
        return
    runner = Runner(emulator)
    print("| kernel | variants | calls | bits | seconds |\n|---|---|---|---|---|", flush=True)
    for name in options.kernels:
        print(row(name, runner, options), flush=True)


if __name__ == "__main__":
    main()
