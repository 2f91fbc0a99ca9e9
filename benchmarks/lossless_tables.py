"""The measured tables of docs/codecs/lossless.md, as Markdown.

    python benchmarks/lossless_tables.py [speed]

"CNN" and "GPT" are the gradients of `topk_tables.py`, each parameter encoded by itself.
"""

import sys

import torch

import gradwire as gw
from fft_tables import best, table
from topk_tables import Data, numel, vectors

CODEC, KEY, NUMEL = gw.Lossless(), gw.Key(), 25_600_000
TYPES = {"float32": 32, "bfloat16": 16, "float16": 16}


def bits(data: Data) -> list[list[str]]:
    """Bits a value of each type, and how many of the values are +0."""
    rows = [["vector", "zeros", *TYPES, "float32 that was bfloat16"]]
    for name, tensors in data.items():
        zeros = sum(int((x == 0).sum()) for x in tensors) / numel(tensors)
        cells = [f"{100 * zeros:.1f} %"]
        for dtype in TYPES:
            cells += [f"{size([x.to(getattr(torch, dtype)) for x in tensors]):.2f}"]
        cells.append(f"{size([x.bfloat16().float() for x in tensors]):.2f}")
        rows.append([name, *cells])
    return rows


def size(tensors: list[torch.Tensor]) -> float:
    return 8 * sum(CODEC.encode(x, KEY).numel() for x in tensors) / numel(tensors)


def speed() -> list[list[str]]:
    """Values a second, and that over memcpy of float32."""
    torch.set_num_threads(1)
    x, rows = torch.randn(NUMEL), [["", "Gvalues/s", "of memcpy"]]
    out = torch.zeros(NUMEL)
    memcpy = NUMEL / best(lambda: out.copy_(x)) / 1e9
    rows.append(["memcpy of float32", f"{memcpy:.2f}", "1.00"])
    for dtype in TYPES:
        values = x.to(getattr(torch, dtype))
        room = torch.zeros(CODEC.max_nbytes(NUMEL), dtype=torch.uint8)
        payload = room[: CODEC.encode_into(values, room, KEY)]
        same = torch.zeros_like(values)
        for what, work in {
            "encode": lambda: CODEC.encode_into(values, room, KEY),  # noqa: B023
            "decode": lambda: CODEC.decode_into(payload, same, KEY),  # noqa: B023
            "decode and add": lambda: CODEC.decode_into(payload, out, KEY, accumulate=True),  # noqa: B023
            "mean of two": lambda: CODEC.mean_into([payload, payload], out, [KEY, KEY]),  # noqa: B023
        }.items():
            rate = NUMEL / best(work) / 1e9
            rows.append([f"{dtype}, {what}", f"{rate:.2f}", f"{rate / memcpy:.2f}"])
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    if "speed" in sys.argv:
        table("Speed", *speed())
    else:
        table("Bits a value", *bits(vectors()))
