"""The measured tables of docs/codecs/topk.md, as Markdown.

    python benchmarks/topk_tables.py [speed]

"CNN" are the gradients of the lab's `mnist-cnn` after 50 steps, "GPT" those of `gpt-char` after 30,
and "GPT, 30 steps" is how its weights have changed by then, which is what an outer step sends. All
parameters of 10,000 values or more count, each of them encoded by itself.
"""

import sys
from collections.abc import Callable
from math import ceil, comb, log2

import numpy as np
import torch
from torch import Tensor

import gradwire as gw
from fft_tables import best, entropy, gradients, table
from gradwire.kernels import cpu
from gradwire.lab.tasks import TASKS

NUMEL = 1 << 20
KEY = gw.Key()
BLOCK = 4096
Data = dict[str, list[Tensor]]


def vectors() -> Data:
    random = np.random.default_rng(0)
    drawn = {
        "Gaussian": random.standard_normal(NUMEL),
        "Laplace": random.laplace(size=NUMEL),
        "Student, 3": random.standard_t(3, size=NUMEL),
    }
    made = {name: [torch.from_numpy(x).float()] for name, x in drawn.items()}
    gradient, change = gpt()
    return made | {"CNN": list(gradients().values()), "GPT": gradient, "GPT, 30 steps": change}


def gpt(steps: int = 30) -> tuple[list[Tensor], list[Tensor]]:
    """The last gradients, and the changes of the weights."""
    task = TASKS["gpt-char"]
    torch.manual_seed(0)
    model, train = task.model(), task.data(None).train
    optimizer, _ = task.optimize(model.parameters(), task.lr, task.steps)
    large = [p for p in model.parameters() if p.numel() >= 10_000]
    before = [p.detach().clone() for p in large]
    for _ in range(steps):
        batch = torch.randint(0, len(train), (task.batch,))
        optimizer.zero_grad()
        task.loss(model(train.inputs[batch]), train.targets[batch]).backward()
        optimizer.step()
    changes = [(p.detach() - old).flatten() for p, old in zip(large, before, strict=True)]
    return [p.grad.flatten() for p in large], changes


def numel(tensors: list[Tensor]) -> int:
    return sum(x.numel() for x in tensors)


def bits(codec: gw.Codec, tensors: list[Tensor]) -> float:
    return 8 * sum(codec.encode(x, KEY).numel() for x in tensors) / numel(tensors)


def nmse(codec: gw.Codec, tensors: list[Tensor]) -> float:
    errors = [codec.decode(codec.encode(x, KEY), x.numel(), KEY).double() - x for x in tensors]
    return square(errors) / square(tensors)


def square(tensors: list[Tensor]) -> float:
    return sum(float(x.double().square().sum()) for x in tensors)


def parts_of(codec: gw.TopK, tensors: list[Tensor]) -> dict[str, float]:
    """Bits a value of each part."""
    found = [codec.anatomy(codec.encode(x, KEY), x.numel()) for x in tensors]
    return {name: 8 * sum(each[name] for each in found) / numel(tensors) for name in found[0]}


def sizes(data: Data) -> list[list[str]]:
    rows = []
    for name, tensors in data.items():
        parts = parts_of(gw.TopK(), tensors)
        total = sum(parts.values())
        shown = [*(f"{part:.4f}" for part in parts.values()), f"**{total:.4f}**"]
        rows.append([name, *shown, f"{32 / total:.0f}"])
    return [["vector", *parts, "total", "times fewer than float32"], *rows]


def golomb(p: float) -> float:
    """Bits of a gap in the best code of Golomb, for independent places."""

    def cost(size: int) -> float:
        width = ceil(log2(size))
        short = (1 << width) - size
        head = 1 / (1 - (1 - p) ** size)  # the unary part, its end included
        first = (1 - (1 - p) ** short) / (1 - (1 - p) ** size)
        return head + width - first

    return min(cost(size) for size in range(1, 4096))


def rice(p: float) -> float:
    return min(r + 1 / (1 - (1 - p) ** (1 << r)) for r in range(16))


def places(tensors: list[Tensor]) -> list[list[str]]:
    rows = []
    for density in (1 / 1024, 1 / 128, 1 / 64, 1 / 32, 1 / 8):
        codec = gw.TopK(density)
        gaps, k = parts_of(codec, tensors)["gaps"], codec.count
        p = k / BLOCK
        cells = [12 * p, gaps, p * rice(p), p * golomb(p), entropy(p)]
        exact = log2(comb(BLOCK, k)) / BLOCK
        rows.append([f"1/{round(1 / density)}", *(f"{cell:.4f}" for cell in (*cells, exact))])
    head = ["density", "12-bit indices", "gaps, measured", "Rice", "Golomb", "entropy"]
    return [[*head, "any k of 4,096"], *rows]


def full_blocks(tensors: list[Tensor]) -> Tensor:
    """The blocks that are whole and have 64 values that are not zero."""
    rows = [x[: x.numel() // BLOCK * BLOCK].view(-1, BLOCK) for x in tensors]
    whole = torch.cat(rows)
    return whole[(whole != 0).sum(1) >= 64]


def lost(kept: Tensor, levels: int, rounds: int = 40) -> float:
    """The square error of the best levels of each row that Lloyd's rounds find, over its energy."""
    spread = (torch.arange(levels) + 0.5) / levels
    found = kept[:, -1:] * (kept[:, :1] / kept[:, -1:]) ** spread
    for _ in range(rounds):
        nearest = (kept[:, :, None] - found[:, None]).abs().argmin(2)
        members = torch.nn.functional.one_hot(nearest, levels).double()
        means = (members * kept[:, :, None]).sum(1) / members.sum(1).clamp_min(1)
        found = torch.where(members.sum(1) > 0, means, found)
    errors = (kept[:, :, None] - found[:, None]).square().amin(2)
    return float(errors.sum() / kept.square().sum())


def values(data: Data) -> list[list[str]]:
    rows = []
    for name, tensors in data.items():
        x = full_blocks(tensors)
        kept = x.abs().double().sort(1, descending=True).values[:, :64]
        energy, total = square([kept]), square([x])
        errors = [nmse(gw.TopK(bits=b), [x.flatten()]) * total for b in (1, 2)]
        ours = [(error - (total - energy)) / energy for error in errors]
        tenth = 0.1 * 64 * square([kept[:, -1]]) / energy
        cells = [*ours, lost(kept, 2), lost(kept, 4), tenth]
        rows.append([name, f"{energy / total:.3f}", *(f"{100 * cell:.2f}" for cell in cells)])
    head = ["vector", "energy kept", "1 bit", "2 bits", "2 bits, levels as float32"]
    return [[*head, "3 bits, levels as float32", "a tenth more values"], *rows]


MAKERS: dict[str, Callable[[float], gw.Codec]] = {
    "`topk:bits=1`": lambda p: gw.TopK(p, bits=1),
    "`topk`": gw.TopK,
    "`topk:block=65536`": lambda p: gw.TopK(p, block=65536),
}


def same_size(data: Data, budget: float = 0.155) -> list[list[str]]:
    """Errors at the same bits per value."""
    rows = []
    for name, tensors in data.items():
        found = []
        for make in MAKERS.values():
            low, high = 0.002, 0.05
            for _ in range(12):
                middle = (low + high) / 2
                fits = bits(make(middle), tensors) <= budget
                low, high = (middle, high) if fits else (low, middle)
            found.append(f"{nmse(make(low), tensors):.3f} ({100 * low:.2f} %)")
        rows.append([name, *found])
    return [["vector", *MAKERS], *rows]


def blocks(data: Data) -> list[list[str]]:
    lengths, rows = (256, 1024, 4096, 16384, 65536), []
    for name, tensors in data.items():
        codecs = [gw.TopK(block=length) for length in lengths]
        rows.append([name, *(f"{nmse(c, tensors):.3f} / {bits(c, tensors):.4f}" for c in codecs)])
    return [["block", *map(str, lengths)], *rows]


def speed(count: int = 25_600_000) -> list[list[str]]:
    torch.set_num_threads(1)
    x, y = torch.randn(count), torch.zeros(count)
    memcpy, rows = best(lambda: y.copy_(x), 30), []

    def row(name: str, seconds: float) -> None:
        rows.append([name, f"{count / 1e9 / seconds:.3f}", f"{memcpy / seconds:.3f}"])

    row("memcpy", memcpy)
    bitmap = torch.zeros(count // 8, dtype=torch.uint8)
    kept = torch.zeros(count // BLOCK, 64)
    row("the largest of blocks", best(lambda: cpu.largest_of_blocks(x, bitmap, kept, block=BLOCK)))
    rows_of = x.view(-1, BLOCK)
    row("`x.abs().topk(64)` by rows", best(lambda: rows_of.abs().topk(64, sorted=False), 2))
    for spec in ("topk", "topk:bits=1", "topk:density=0.03125", "topk:density=0.125"):
        codec = gw.parse(spec)
        out = torch.zeros(codec.max_nbytes(count), dtype=torch.uint8)
        payload = out[: codec.encode_into(x, out, KEY)]
        row(f"`{spec}` encode", best(lambda c=codec, o=out: c.encode_into(x, o, KEY), 10))
        row(f"`{spec}` decode", best(lambda c=codec, p=payload: c.decode_into(p, y, KEY), 10))
        row(
            f"`{spec}` decode and add",
            best(lambda c=codec, p=payload: c.decode_into(p, y, KEY, accumulate=True), 10),
        )
    return [["", "Gvalues/s", "of memcpy"], *rows]


if __name__ == "__main__":
    if "speed" in sys.argv:
        table("Speed, 25.6 M Gaussian values, one thread", *speed())
    else:
        everything = vectors()
        table("Bits a value", *sizes(everything))
        table("Places, bits per value", *places(everything["Gaussian"]))
        table("Error of the kept values, in % of their energy", *values(everything))
        table("Error at 0.155 bits per value (density)", *same_size(everything))
        table("Error / bits per value by block", *blocks(everything))
