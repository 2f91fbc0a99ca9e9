"""The measured tables of docs/codecs/fft.md, as Markdown: python benchmarks/fft_tables.py [speed].

Gradients are those of the lab's `mnist-cnn` after 50 steps of SGD, for each large parameter.
"""

import sys
from collections.abc import Callable
from math import log2
from time import perf_counter

import numpy as np
import scipy.signal
import torch
from torch import Tensor

import gradwire as gw
from gradwire.codecs.fft import DOMAINS
from gradwire.kernels.cpu.transforms import transform
from gradwire.lab.tasks import TASKS

NUMEL = 1 << 20
KEY = gw.Key()


def table(title: str, *rows: list[str]) -> None:
    head, *body = rows
    print(f"\n### {title}\n")
    for row in (head, ["---", *["---:"] * (len(head) - 1)], *body):
        print(f"| {' | '.join(row)} |", flush=True)


def vectors() -> dict[str, Tensor]:
    random = np.random.default_rng(0)
    noise = random.standard_normal(NUMEL)
    made = {
        "Gaussian": noise,
        "Laplace": random.laplace(size=NUMEL),
        "AR(1), 0.9": scipy.signal.lfilter([1.0], [1.0, -0.9], noise),
    }
    return {name: torch.from_numpy(x).float() for name, x in made.items()} | gradients()


def gradients(steps: int = 50) -> dict[str, Tensor]:
    task = TASKS["mnist-cnn"]
    torch.manual_seed(0)
    model, train = task.model(), task.data(None).train
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr, momentum=0.9)
    for step in range(steps + 1):
        batch = torch.randint(0, len(train), (64,))
        optimizer.zero_grad()
        task.loss(model(train.inputs[batch]), train.targets[batch]).backward()
        if step < steps:
            optimizer.step()
    named = {name: p for name, p in model.named_parameters() if p.numel() >= 10_000}
    return {
        f"{'conv' if p.dim() == 4 else 'linear'} {'x'.join(map(str, p.shape))}": p.grad.flatten()
        for p in named.values()
    }


def nmse(codec: gw.Codec, x: Tensor) -> float:
    error = codec.decode(codec.encode(x, KEY), x.numel(), KEY).double() - x
    return float(error.square().sum() / x.double().square().sum())


def bits(codec: gw.Codec, x: Tensor) -> float:
    return 8 * codec.encode(x, KEY).numel() / x.numel()


def domains(data: dict[str, Tensor], drop: float) -> list[list[str]]:
    rows = []
    for name, x in data.items():
        auto = gw.FFTSparse(drop, domain="auto")
        errors = [nmse(gw.FFTSparse(drop, domain=domain), x) for domain in DOMAINS]
        chosen = DOMAINS[int(auto.encode(x, KEY)[4])]
        rows.append([name, *(f"{error:.3f}" for error in errors), chosen, f"{bits(auto, x):.2f}"])
    return [["vector", *DOMAINS, "auto takes", "bits per value"], *rows]


def blocks(data: dict[str, Tensor]) -> list[list[str]]:
    sizes, rows = (64, 128, 256, 512, 1024, 4096, 16384), []
    for name in list(data)[2:]:
        for domain in ("fft", "dct"):
            cells = [nmse(gw.FFTSparse(domain=domain, block=size), data[name]) for size in sizes]
            rows.append([f"{name}, {domain}", *(f"{cell:.3f}" for cell in cells)])
    return [["block", *map(str, sizes)], *rows]


def entropy(p: float) -> float:
    return -(p * log2(p) + (1 - p) * log2(1 - p))


def pairs(data: dict[str, Tensor], keep: float = 0.15, width: int = 10) -> list[list[str]]:
    """Energy lost by complex bins, and by real parts each on its own, at equal bits per value."""
    rows = []
    budget = width * keep + entropy(keep) / 2
    fraction = next(i / 1e4 for i in range(1, 5000) if width * i / 1e4 + entropy(i / 1e4) > budget)
    bitmap = keep - 0.5 / width
    for name, x in data.items():
        c = torch.empty(x.numel() // 256 * 256)
        transform(x[: c.numel()], c, domain="fft", block=256)
        energy = c.double().square().view(-1, 256)
        ends = energy[:, [0, -1]]
        bins = torch.cat((energy[:, 1:-1].unflatten(1, (-1, 2)).sum(2), ends), 1)
        lost = [
            1 - float(e.flatten().topk(round(p * e.numel())).values.sum() / e.sum())
            for e, p in ((bins, keep), (energy, fraction), (energy, bitmap))
        ]
        rows.append([name, *(f"{cell:.3f}" for cell in lost)])
    return [["vector", "pairs", "each, entropy coded", "each, plain bitmap"], *rows]


def floats(data: dict[str, Tensor]) -> list[list[str]]:
    settings = [
        (0.5, None, 1), (0.5, 10, 5), (0.5, 6, 2), (0.5, 5, 1), (0.5, 4, 1), (0.375, 4, 1),
        (0.25, 3, 0), (0.625, 5, 1), (0.85, 10, 5), (0.85, 5, 1),
    ]  # fmt: skip
    rows = []
    for drop, width, mantissa in settings:
        for wire in ("packed", "zstd"):
            codec = gw.FFTSparse(drop, width, mantissa, domain="auto", wire=wire)
            cells = [f"{bits(codec, x):.2f} / {nmse(codec, x):.4f}" for x in data.values()]
            rows.append([f"{drop}, {width or 32}, {mantissa}, {wire}", *cells])
    return [["drop, bits, mantissa, wire", *data], *rows]


def best(run: Callable[[], object], rounds: int = 6) -> float:
    run()
    times = []
    for _ in range(rounds):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return min(times)


def eager(x: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """What one would write in torch: transform, top-k, half precision."""
    c = torch.view_as_real(torch.fft.rfft(x.view(-1, 256), norm="ortho")).flatten()
    places = c.abs().topk(keep, sorted=False).indices
    return places.int(), c[places].half()


def speed(numel: int = 25_600_000) -> list[list[str]]:
    torch.set_num_threads(1)
    x, y = torch.randn(numel), torch.zeros(numel)
    keep = round(0.5 * numel)
    memcpy = best(lambda: y.copy_(x), 20)
    rows = []

    def row(name: str, seconds: float) -> None:
        rows.append([name, f"{numel / 1e9 / seconds:.3f}", f"{memcpy / seconds:.3f}"])

    row("memcpy", memcpy)
    row("`x.abs().topk(k)`", best(lambda: x.abs().topk(keep), 2))
    row("`x.abs().topk(k, sorted=False)`", best(lambda: x.abs().topk(keep, sorted=False), 2))
    row("rfft, topk and gather in eager torch", best(lambda: eager(x, keep), 2))
    specs = ["", "block=64", "block=1024", "block=4096", "wire=zstd", "domain=dct", "domain=time"]
    for spec in specs:
        codec = gw.parse(f"fft:{spec}")
        out = torch.zeros(codec.max_nbytes(numel), dtype=torch.uint8)
        payload = out[: codec.encode_into(x, out, KEY)]
        row(f"`{codec}` encode", best(lambda c=codec, o=out: c.encode_into(x, o, KEY)))
        row(f"`{codec}` decode", best(lambda c=codec, p=payload: c.decode_into(p, y, KEY)))
    return [["", "Gvalues/s", "of memcpy"], *rows]


if __name__ == "__main__":
    if "speed" in sys.argv:
        table("Speed, 25.6 M Gaussian values, one thread", *speed())
    else:
        everything = vectors()
        few = {name: everything[name] for name in ("Gaussian", "AR(1), 0.9", list(everything)[4])}
        table("Error by domain, drop 0.5", *domains(everything, 0.5))
        table("Error by domain, drop 0.85", *domains(everything, 0.85))
        table("Error by block, drop 0.5", *blocks(everything))
        table("Energy lost at 1.80 bits per value, 10-bit values", *pairs(everything))
        table("Bits a value / error, domain auto", *floats(few))
