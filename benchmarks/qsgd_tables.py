"""The measured tables of docs/codecs/qsgd.md, as Markdown: python benchmarks/qsgd_tables.py."""

from math import log, log2, sqrt

import torch
from torch import Tensor

import gradwire as gw
from gradwire.kernels import cpu
from gradwire.kernels.formats.layout import num_blocks

NUMEL = 1 << 22
DRAWS = 20


def table(title: str, *rows: list[str]) -> None:
    head, *body = rows
    print(f"\n### {title}\n")
    for row in (head, ["---", *["---:"] * (len(head) - 1)], *body):
        print(f"| {' | '.join(row)} |")


def gaussian(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def laplace(numel: int) -> Tensor:
    uniform = torch.rand(numel, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return -((uniform - 0.5).sign() * torch.log1p(-2 * (uniform - 0.5).abs())).float()


def constant(numel: int) -> Tensor:
    return gaussian(numel).sign()


def quantized(codec: gw.QSGD, x: Tensor, key: gw.Key) -> tuple[Tensor, Tensor]:
    """The scales and the codes of `x`, one a byte."""
    scales = torch.empty(num_blocks(x.numel(), codec.block))
    codes = torch.empty(x.numel(), dtype=torch.uint8)
    settings = {"levels": codec.num_levels, "width": 8, "block": codec.block, "norm": codec.norm}
    cpu.quantize(x, scales, codes, **settings, key=key)
    return scales, codes


def entropy(codes: Tensor) -> float:
    """Bits a value, if each code costs what its frequency says."""
    share = codes.to(torch.int64).bincount().double() / codes.numel()
    return float(torch.special.entr(share).sum()) / log(2)


def dense_elias() -> list[list[str]]:
    numel, codec = 16384, gw.QSGD(levels=127, norm="l2", block=None, wire="elias")
    rows = []
    for make in (gaussian, laplace, constant):
        x, measured = make(numel), []
        for step in range(DRAWS):
            key = gw.Key(step=step)
            _, codes = quantized(codec, x, key)
            nonzeros, sparse, dense = cpu.elias_sizes(codes, levels=127)
            payload = 8 * codec.encode(x, key).numel()
            paper = dense + numel - nonzeros
            measured.append([paper, dense, sparse, payload, numel * entropy(codes)])
        means = torch.tensor(measured, dtype=torch.float64).mean(0) / numel
        rows.append([make.__name__, *(f"{mean:.2f}" for mean in means.tolist()), "2.80"])
    heads = ["dense, sign for all", "dense", "sparse", "our payload", "entropy", "claim"]
    return [["vector", *heads], *rows]


def sparse_elias() -> list[list[str]]:
    numel, rows = 65536, []
    for s in (1, 2, 4, 16):
        codec = gw.QSGD(levels=s, norm="l2", block=None)
        sizes = []
        for step in range(DRAWS):
            _, codes = quantized(codec, gaussian(numel), gw.Key(step=step))
            sizes.append(cpu.elias_sizes(codes, levels=s)[:2])
        nonzeros, bits = torch.tensor(sizes, dtype=torch.float64).mean(0).tolist()
        most = s * (s + sqrt(numel))
        bound = (3 + 1.5 * log2(2 * (s * s + numel) / most)) * most + 32
        cells = [bits + 32, bound, nonzeros, most]
        rows.append([str(s), *(f"{cell:,.0f}" for cell in cells)])
    return [["s", "bits, mean", "bound", "nonzeros, mean", "bound"], *rows]


def exact_nmse(codec: gw.QSGD, x: Tensor) -> float:
    """Equation (2), block by block."""
    blocks = x.double().abs().view(-1, codec.block)
    norm = blocks.amax(1) if codec.norm == "max" else blocks.norm(dim=1)
    scaled = blocks / norm[:, None] * codec.num_levels
    p = scaled - scaled.floor()
    step = (norm / codec.num_levels).square()
    return float((step * (p * (1 - p)).sum(1)).sum() / x.double().square().sum())


def nmse() -> list[list[str]]:
    x, key, rows = gaussian(NUMEL), gw.Key(), []
    for bits in (2, 3, 4, 8):
        for block in (128, 512):
            cells = []
            for norm in ("max", "l2"):
                codec = gw.QSGD(bits=bits, norm=norm, block=block)
                error = codec.decode(codec.encode(x, key), NUMEL, key).double() - x
                measured = float(error.square().sum() / x.double().square().sum())
                cells += [f"{measured:.4g}", f"{exact_nmse(codec, x):.4g}"]
            s = codec.num_levels
            bound = min(block / (4 * s**2), sqrt(block) / s)
            rows.append([f"{bits}", f"{s}", f"{block}", *cells, f"{bound:.4g}"])
    heads = ["s", "block", "max", "max, eq. (2)", "l2", "l2, eq. (2)", "l2, bound (3)"]
    return [["bits", *heads], *rows]


def entropy_coded() -> list[list[str]]:
    x, key, rows = gaussian(NUMEL), gw.Key(), []
    for bits in (2, 3, 4, 5, 6, 8):
        _, codes = quantized(gw.QSGD(bits=bits), x, key)
        sizes = [
            8 * gw.QSGD(bits=bits, wire=wire).encode(x, key).numel() / NUMEL
            for wire in ("packed", "elias", "zstd")
        ]
        floor = entropy(codes) + 32 / 512
        cells = [*(f"{size:.3f}" for size in (*sizes, floor)), f"{sizes[2] / floor - 1:+.1%}"]
        rows.append([str(bits), *cells])
    return [["bits", "packed", "elias", "zstd", "entropy + scales", "zstd above it"], *rows]


def bias() -> list[list[str]]:
    """E code is known exactly: the scaled value rounded to 16 fraction bits."""
    x, rows = gaussian(NUMEL), []
    for bits in (2, 4, 6, 8):
        codec = gw.QSGD(bits=bits)
        scale = x.view(-1, codec.block).abs().amax(1, keepdim=True)
        top = codec.num_levels << 16
        kept = (x.view(-1, codec.block) * (torch.full_like(scale, top) / scale)).round().double()
        ideal = x.view(-1, codec.block).double() / scale.double() * top
        error = (kept - ideal).abs() / 65536
        rows.append([str(bits), f"2^{log2(error.max()):.2f}", f"2^{log2(error.mean()):.2f}"])
    return [["bits", "largest bias, steps", "mean of its magnitude"], *rows]


if __name__ == "__main__":
    table("Dense Elias code, n = 16384, s = 127, bits per value", *dense_elias())
    table("Sparse Elias code, n = 65536, Gaussian, bits in all", *sparse_elias())
    table("Normalised error, Gaussian", *nmse())
    table("Bits a value of the three wires, Gaussian, block 512, max norm", *entropy_coded())
    table("Bias of 16 random bits", *bias())
