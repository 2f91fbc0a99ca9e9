"""Bytes that a worker sends in a step against the number of workers, on loopback.

    .venv/bin/python benchmarks/scaling.py --plot scaling.svg

One matrix of 2 M values, no optimizer. What is counted is what `handle.stats()` counts: the buffers
handed to the collectives. (`links.py` holds that against the interface's own counter.)
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.lab import workers

WORLDS = (2, 4, 8)
STEPS = 2
VARIANTS = [
    ("none", "all_reduce"),
    ("fp16", "all_reduce"),
    ("global-qsgd:bits=4", "code_reduce"),
    ("global-qsgd:bits=4,dither=exponential", "code_reduce"),
    ("qsgd:bits=4", "two_shot"),
    ("qsgd:bits=4", "all_gather"),
    ("fft", "all_gather"),
    ("fft", "relay"),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the results")
    parser.add_argument("--plot", metavar="FILE", help="draw them, as .svg or .png")
    options = parser.parse_args()
    results: list[dict] = []
    for world in WORLDS:
        workers.run(partial(count, world), world, results.append)
    print(f"{'codec':40} {'collective':12}" + "".join(f"{n:>9} workers" for n in WORLDS))
    for codec, collective in VARIANTS:
        found = [r for r in results if (r["codec"], r["collective"]) == (codec, collective)]
        cells = "".join(f"{row['bytes_per_step'] / 1e6:14.2f} MB" for row in found)
        print(f"{codec:40} {collective:12}{cells}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    if options.plot:
        plot(results, options.plot)


def count(world: int, listener: workers.Listener) -> None:
    """On every worker: what rank 0 sends in a step, by each variant."""
    torch.set_num_threads(1)
    for spec, collective in VARIANTS:
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Linear(2048, 1024, bias=False))
        handle = gw.attach(ddp, gw.parse(spec), collective=collective)
        torch.manual_seed(dist.get_rank())
        for _ in range(STEPS):
            ddp(torch.randn(8, 2048)).square().mean().backward()
        sent = handle.stats().bytes_per_step
        handle.close()
        listener(
            {"codec": spec, "collective": collective, "workers": world, "bytes_per_step": sent}
        )


def plot(results: list[dict], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for codec, collective in VARIANTS:
        rows = [r for r in results if (r["codec"], r["collective"]) == (codec, collective)]
        sent = [row["bytes_per_step"] / 1e6 for row in rows]
        axes.plot([row["workers"] for row in rows], sent, "o-", label=f"{codec}, {collective}")
    axes.set(xlabel="workers", ylabel="MB sent by a worker in a step", yscale="log")
    axes.set_xticks(WORLDS, [str(world) for world in WORLDS])
    axes.legend(fontsize="small")
    figure.savefig(path)


if __name__ == "__main__":
    main()
