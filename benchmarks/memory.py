"""Memory that an attachment takes beside the gradients, by codec, on loopback.

    .venv/bin/python benchmarks/memory.py

Three matrices of 4 M values, two workers, ten steps. What is shown is what `handle.stats()` says,
as multiples of the gradients: buffers to encode, send, receive and decode, and residuals; and what
a codec has learned, as large as a checkpoint has it. The last column is the first one with
`error_feedback=False`, which keeps no residuals. The table is Markdown, for docs/performance.md.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.lab import workers

WIDTH, LAYERS, STEPS = 2000, 3, 10
DIRECTIONS = 8
"""Of the inputs: with few, gradients have something to be learned of."""
GRADIENTS = 4 * LAYERS * WIDTH * WIDTH
CODECS = [
    "none",
    "fp16",
    "qsgd:bits=4",
    "dqsg",
    "dqsg:bits_per_value=2.0",
    "ndqsg",
    "global-qsgd",
    "fft",
    "gradiveq:warmup_steps=0,train_steps=8",
]


def main() -> None:
    rows: list[dict] = []
    workers.run(measure, 2, rows.append)
    print("| codec | buffers | residuals | learned | buffers without error feedback |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        cells = "".join(f" {nbytes / GRADIENTS:.2f} |" for nbytes in row["nbytes"])
        print(f"| `{row['codec']}` |{cells}")


def measure(listener: workers.Listener) -> None:
    """On every worker: what rank 0 holds, with error feedback as it is by default, and off."""
    torch.set_num_threads(1)
    for spec in CODECS:
        buffers_without, _, _ = held(spec, error_feedback=False)
        listener({"codec": spec, "nbytes": [*held(spec), buffers_without]})


def held(spec: str, *, error_feedback: bool | None = None) -> tuple[int, int, int]:
    """Bytes of buffers, of residuals, and of what was learned, after the last step."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    axes = torch.randn(DIRECTIONS, WIDTH)
    ddp = DistributedDataParallel(nn.Sequential(*layers))
    handle = gw.attach(ddp, gw.parse(spec), error_feedback=error_feedback)
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        ddp(torch.randn(8, DIRECTIONS) @ axes).square().mean().backward()
    stats, learned = handle.stats(), len(handle.state_dict()["learned"])
    handle.close()
    return stats.buffer_bytes, stats.residual_bytes, learned


if __name__ == "__main__":
    main()
