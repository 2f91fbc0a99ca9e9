"""The measured tables of docs/codecs/eden.md, as Markdown: python benchmarks/eden_tables.py.

"CNN" and "GPT" are the gradients of `topk_tables.py`, each parameter encoded by itself; "2 of 1024"
has two values other than zero in each block, one of them twice the other.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import gradwire as gw
from fft_tables import table
from topk_tables import Data, bits, nmse, vectors

SPECS = [
    "eden:bits=1", "eden", "eden:bits=3", "eden:bits=4", "eden:block=4096", "qsgd:bits=2",
    "qsgd:bits=4", "dqsg", "dqsg:bits_per_value=2.0",
]  # fmt: skip


def pairs(count: int = 1024) -> Tensor:
    x = torch.zeros(count, 1024)
    x[:, 100], x[:, 101] = 2.0, 1.0
    return x.view(-1)


def errors(data: Data) -> list[list[str]]:
    """Bits a value and NMSE."""
    rows = [["spec", *(f"{name}: bits, NMSE" for name in data)]]
    for spec in SPECS:
        codec = gw.parse(spec)
        cells = [f"{bits(codec, x):.3f}, {nmse(codec, x):.4f}" for x in data.values()]
        rows.append([f"`{spec}`", *cells])
    return rows


def bias(draws: int = 40) -> list[list[str]]:
    """What the mean over keys misses the larger and the smaller of two values by."""
    rows = [["bits", "larger, % of it", "smaller, % of it", "standard errors of the two"]]
    x, true = pairs(256), torch.tensor([2.0, 1.0])
    for width in (1, 2, 3, 4):
        codec, found = gw.EDEN(bits=width), []
        for step in range(draws):
            key = gw.Key(seed=1, step=step)
            y = codec.decode(codec.encode(x, key), x.numel(), key)
            found.append(y.view(-1, 1024)[:, 100:102].double())
        all_draws = torch.cat(found) / true
        missed = 100 * (all_draws.mean(0) - 1)
        spread = 100 * all_draws.std(0) / math.sqrt(len(all_draws))
        cells = [f"{missed[0]:+.3f}", f"{missed[1]:+.3f}", f"{spread[0]:.3f}, {spread[1]:.3f}"]
        rows.append([str(width), *cells])
    return rows


def means(workers: Sequence[int] = (1, 2, 4, 8, 16), numel: int = 1 << 18) -> list[list[str]]:
    """NMSE of the mean of many workers, by how alike their vectors are."""
    rows = [["workers", *(f"r = {r}" for r in (0, 0.5, 0.9, 1)), "two_shot, r = 0"]]
    common = torch.randn(numel)
    for count in workers:
        cells = []
        for r, way in ((0, "all_gather"), (0.5, "all_gather"), (0.9, "all_gather"),
                       (1, "all_gather"), (0, "two_shot")):  # fmt: skip
            own = [r**0.5 * common + (1 - r) ** 0.5 * torch.randn(numel) for _ in range(count)]
            mean, key = torch.stack(own).mean(0), gw.Key(step=count)
            missed = gw.simulate(gw.EDEN(), own, key, way) - mean
            square = sum(float(x.square().sum()) for x in own) / count
            cells.append(f"{float(missed.square().sum()) / square:.4f}")
        rows.append([str(count), *cells])
    return rows


def main() -> None:
    torch.manual_seed(0)
    data = vectors()
    del data["GPT, 30 steps"]
    table("Errors", *errors(data | {"2 of 1024": [pairs()]}))
    table("Bias", *bias())
    table("Means of 2 bits, over the mean square of the vectors", *means())


if __name__ == "__main__":
    main()
