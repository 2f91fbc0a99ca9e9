"""Convergence of QSVRG beside plain QSGD, the table and the plot of docs/algorithms/qsvrg.md.

    .venv/bin/python benchmarks/qsvrg_plot.py --plot docs/algorithms/qsvrg.svg

l2-regularised logistic regression over the MNIST subset, four workers joined by gloo.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import gradwire as gw
from curve_plot import Panel, draw
from gradwire.algorithms import QSVRG
from gradwire.algorithms.qsvrg.settings import paper_codec
from gradwire.lab import workers
from gradwire.lab.mnist import Logistic, load_mnist
from gradwire.lab.report.axes import axis

WORKERS, BATCH, LR = 4, 16, 4.0
NAMES = {
    "qsvrg": "QSVRG, sqrt(n) levels",
    "svrg": "SVRG, float32",
    "qsgd": "QSGD, the same step",
    "slow": "QSGD, a tenth of it",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--l2", type=float, default=1e-3)
    parser.add_argument("--inner", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--json", metavar="FILE", help="write the results")
    parser.add_argument("--plot", metavar="FILE", help="draw them, as .svg")
    options = parser.parse_args()
    results: dict[str, list[dict]] = {name: [] for name in NAMES}
    job = partial(work, options.l2, options.inner, options.epochs)
    workers.run(job, WORKERS, lambda row: results[row["name"]].append(row))
    best, start = optimum(options.l2)
    for rows in results.values():
        before = start - best
        for row in rows:
            row["gap"] = row.pop("value") - best
            row["factor"], before = row["gap"] / before, row["gap"]
    report(results, best, options.inner)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    if options.plot:
        Path(options.plot).write_text(plot(results, start - best, options.inner))


def plot(results: dict[str, list[dict]], start: float, inner: int) -> str:
    curves = [
        [(0, start), *((row["epoch"], row["gap"]) for row in rows)] for rows in results.values()
    ]
    across = axis("", "", [x for curve in curves for x, _ in curve], from_zero=True)
    down = axis("", "", [y for curve in curves for _, y in curve], is_log=True)
    title = f"above the optimum against epochs of {inner} steps"
    panel = Panel(title, across, down, curves)
    return draw("Objective above its optimum", [panel], list(NAMES.values()))


def report(results: dict[str, list[dict]], best: float, inner: int) -> None:
    numel = Logistic().weight.numel()
    bound = (32 + 2.8 * numel) * (inner + 1) + 32 * numel
    print(f"optimum {best:.12f}, bits of the theorem {bound:,.0f}")
    print("| epoch | " + " | ".join(NAMES.values()) + " | factor | Mbit | of the bound |")
    for rows in zip(*results.values(), strict=True):
        first = rows[0]
        cells = [f"{row['gap']:.2e}" for row in rows]
        cells += [f"{first['factor']:.3f}", f"{first['bits'] / 1e6:.2f}"]
        print(f"| {first['epoch']} | {' | '.join(cells)} | {first['bits'] / bound:.2f} |")


def optimum(l2: float) -> tuple[float, float]:
    """By L-BFGS in float64; and the value at zero."""
    torch.set_num_threads(1)
    model, objective = whole_objective(l2)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=2000, history_size=50, tolerance_grad=1e-11,
        tolerance_change=0, line_search_fn="strong_wolfe",
    )  # fmt: skip
    start = objective().item()

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective()
        value.backward()
        return value

    optimizer.step(closure)
    return objective().item(), start


def whole_objective(l2: float) -> tuple[Logistic, Callable[[], Tensor]]:
    train, model = load_mnist().train, Logistic().double()

    def objective() -> Tensor:
        loss = F.cross_entropy(model(train.inputs), train.targets)
        return loss + l2 / 2 * model.weight.square().sum()

    return model, objective


def work(l2: float, inner: int, epochs: int, listener: Callable[[dict], None]) -> None:
    """On every worker: train in each way."""
    torch.set_num_threads(1)
    rank, train = dist.get_rank(), load_mnist().train
    images, digits = train.inputs[rank::WORKERS], train.targets[rank::WORKERS]
    whole, objective = whole_objective(l2)

    def tell(name: str, epoch: int, model: Logistic, bits: float) -> None:
        if rank == 0:
            whole.load_state_dict(model.state_dict())
            with torch.no_grad():
                value = objective().item()
            listener({"name": name, "epoch": epoch, "value": value, "bits": bits})

    for name, codec in (("qsvrg", None), ("svrg", "none")):
        model = Logistic().double()
        loss = partial(batch_loss, model, images, digits)
        optimizer = QSVRG(
            model.parameters(), loss, len(images), lr=LR, inner_steps=inner, batch=BATCH, l2=l2,
            codec=codec,
        )  # fmt: skip
        for epoch in range(1, epochs + 1):
            before = optimizer.stats().bytes_sent
            optimizer.epoch()
            sent = optimizer.stats().bytes_sent - before
            tell(name, epoch, model, 8 * sent / (WORKERS - 1))
    for name, lr in (("qsgd", LR), ("slow", LR / 10)):
        model = Logistic().double()
        loss = partial(batch_loss, model, images, digits)
        for epoch in range(1, epochs + 1):
            qsgd(model, loss, l2, lr, torch.Generator().manual_seed(1000 * epoch + rank), inner)
            tell(name, epoch, model, 0)


def batch_loss(model: Logistic, images: Tensor, digits: Tensor, chosen: Tensor) -> Tensor:
    return F.cross_entropy(model(images[chosen]), digits[chosen])


def qsgd(
    model: Logistic, loss: Callable[[Tensor], Tensor], l2: float, lr: float,
    drawn: torch.Generator, steps: int,
) -> None:  # fmt: skip
    """Plain QSGD: the same codec, batch and number of steps."""
    codec = paper_codec(model.weight.numel())
    for _ in range(steps):
        chosen = torch.randint(2500, (BATCH,), generator=drawn)
        (gradient,) = torch.autograd.grad(loss(chosen), [model.weight])
        mean = (gradient + l2 * model.weight.detach()).float()
        gw.all_reduce(mean, codec, collective="all_gather")
        with torch.no_grad():
            model.weight -= lr * mean


if __name__ == "__main__":
    main()
