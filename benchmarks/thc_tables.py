"""The tables of docs/codecs/thc.md: `python benchmarks/thc_tables.py`."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

import gradwire as gw
from gradwire.codecs.thc.adder import turn_of
from gradwire.codecs.uniform import Grid, UniformAdder
from gradwire.collectives.sums import simulate_sum
from gradwire.kernels import cpu
from gradwire.kernels.formats.layout import num_blocks

NUMEL, WORKERS, KEY = 1 << 18, 4, gw.Key(seed=1)


def gaussian(numel: int = NUMEL) -> Tensor:
    return torch.randn(numel)


def student(numel: int = NUMEL) -> Tensor:
    """Of three degrees of freedom."""
    return torch.randn(numel) / (torch.randn(3, numel) ** 2).mean(0).sqrt()


def sparse(numel: int = NUMEL) -> Tensor:
    """One value of 100 is not zero, others with every worker."""
    return torch.randn(numel) * (torch.rand(numel) < 0.01)


def nmse(got: Tensor, vectors: list[Tensor]) -> float:
    mean = torch.stack(vectors).double().mean(0)
    return float((got - mean).square().sum() / mean.square().sum())


def of_codec(spec: str) -> Callable[[list[Tensor]], float]:
    return lambda vectors: nmse(gw.simulate(spec, vectors, KEY), vectors)


def unclipped(bits: int) -> Callable[[list[Tensor]], float]:
    """The grid of a block ends at the largest rotated value that any worker has."""

    def measure(vectors: list[Tensor]) -> float:
        turned, ends = [], []
        for x in vectors:
            y, end = torch.empty_like(x), torch.empty(num_blocks(len(x), 1024))
            cpu.rotate_blocks(x, y, block=1024, key=turn_of(KEY, WORKERS))
            cpu.block_scales(y, end, block=1024, norm="max")
            turned, ends = [*turned, y], [*ends, end]
        grid = Grid(((1 << bits) - 1) / 2, 1024, subtractive=True)
        adder = UniformAdder(grid, WORKERS, torch.stack(ends).amax(0))
        return nmse(simulate_sum(adder, turned, KEY), turned)

    return measure


def table(title: str, rows: list[list[str]]) -> None:
    print(f"\n{title}\n")
    for i, row in enumerate(rows):
        print("| " + " | ".join(row) + " |")
        if not i:
            print("|---" * len(row) + "|")


def errors() -> list[list[str]]:
    data = {"Gaussian": gaussian, "Student, 3": student, "1 % nonzero": sparse}
    sets = [[make() for _ in range(WORKERS)] for make in data.values()]
    rows = [["", "bits", *data]]
    for bits in (1, 2, 3, 4):
        specs = [f"thc:bits={bits}", f"eden:bits={bits}"]
        if bits > 1:
            specs += [f"global-qsgd:bits={bits}{end}" for end in ("", ",dither=subtractive")]
        ways = {f"`{spec}`": of_codec(spec) for spec in specs}
        ways["rotated, up to the largest value"] = unclipped(bits)
        rows += [[name, str(bits), *(f"{way(v):.4f}" for v in sets)] for name, way in ways.items()]
    return rows


def means() -> list[list[str]]:
    rows = [["workers", *(f"r = {r}" for r in (0, 0.5, 0.9, 1))]]
    common = gaussian()
    for count in (1, 2, 4, 16):
        cells = []
        for r in (0, 0.5, 0.9, 1):
            own = [math.sqrt(r) * common + math.sqrt(1 - r) * gaussian() for _ in range(count)]
            mean = torch.stack(own).mean(0)
            missed = gw.simulate(gw.THC(bits=2), own, KEY, "code_reduce") - mean
            square = sum(float(x.square().sum()) for x in own) / count
            cells.append(f"{float(missed.square().sum()) / square:.4f}")
        rows.append([str(count), *cells])
    return rows


def sent_bits(codec: gw.SummableCodec, workers: int, numel: int = 1 << 20) -> float:
    """Bits that a worker sends for each value, scales included."""
    sums, share = codec.adder(workers), (workers - 1) / workers
    code, total = (8 * size(numel) / numel for size in (sums.code_nbytes, sums.total_nbytes))
    scales = 32 / codec.block * (workers - 1 if workers <= 8 else 2 * share)
    return scales + (code if workers == 2 else share * (code + total))


def sizes() -> list[list[str]]:
    rows = [["workers", *(f"{bits} bits" for bits in (1, 2, 3, 4, 8))]]
    for workers in (2, 4, 8, 16, 64):
        cells = [f"{sent_bits(gw.THC(bits=bits), workers):.2f}" for bits in (1, 2, 3, 4, 8)]
        rows.append([str(workers), *cells])
    return rows


def main() -> None:
    torch.manual_seed(0)
    table("Errors of the mean of four", errors())
    table("Means of 2 bits, over the mean square of the vectors", means())
    table("Bits sent", sizes())


if __name__ == "__main__":
    main()
