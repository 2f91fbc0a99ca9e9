"""One worker of `links.py`: every variant in turn, timed. Started by it, not by hand."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.lab.links.namespaces import sent_bytes
from gradwire.lab.tasks import TASKS
from gradwire.reduction.checkpoint import pack
from link_rate import reached_bps
from link_results import COMPUTE, HALF, PLAIN, POWERSGD
from pytorch_hooks import ONE_BUCKET_MB, register_half, register_powersgd

WARM_UP_STEPS = 3  # DDP lays out its buckets anew after the first
LEAST_STEPS = 3
WIDTH, OUTPUTS, BATCH = 2048, 200, 16
INPUT_RANK = WIDTH // 8  # inputs of every layer, so rows of its gradient, lie in so many dimensions


def main() -> None:
    options = parse_arguments()
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{options.master}", rank=options.rank, world_size=options.world
    )
    say(options, {"reached_bps": reached_bps(options.master)})
    for variant in options.variant:
        say(options, measure(variant, options))
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--iface", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("variant", nargs="+")
    return parser.parse_args()


def end_with_parent() -> None:
    """Its end of this pipe closes when it ends, however it ends."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def say(options: argparse.Namespace, found: dict) -> None:
    if options.rank == 0:
        print(json.dumps(found), flush=True)


def mlp() -> tuple[nn.Module, torch.Tensor]:
    """25.6 M parameters, linear, on inputs of low rank."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(6)] + [nn.Linear(WIDTH, OUTPUTS)]
    for layer in layers:
        nn.init.zeros_(layer.bias)  # it would add a direction of its own to the next layer's inputs
    subspace = torch.randn(INPUT_RANK, WIDTH) / WIDTH**0.5
    torch.manual_seed(1 + dist.get_rank())
    return nn.Sequential(*layers), torch.randn(BATCH, INPUT_RANK) @ subspace


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """The lab's CNN, on its own data."""
    task = TASKS["mnist-cnn"]
    torch.manual_seed(0)
    model, images = task.model(), task.data(None).train.inputs
    torch.manual_seed(1 + dist.get_rank())
    return model, images[torch.randperm(len(images))[: task.batch]]


MODELS = {"mlp": mlp, "cnn": cnn}


def measure(variant: str, options: argparse.Namespace) -> dict:
    """The seconds of each step, and the bytes of one."""
    model, inputs = MODELS[options.model]()
    cap = ONE_BUCKET_MB if variant == POWERSGD else None
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=cap)
    handle = attach(ddp, variant)
    exchange = variant != COMPUTE
    for _ in range(WARM_UP_STEPS):
        step(ddp, inputs, exchange)
    while handle and not handle.plan().is_settled:  # `auto` measures and tries first
        step(ddp, inputs, exchange)
    on_wire, in_stats = sent_bytes(options.iface), handle.stats().bytes_sent if handle else 0
    seconds: list[float] = []
    while goes_on(seconds, options):
        seconds.append(step(ddp, inputs, exchange))
    found = {
        "what": variant,
        "seconds": [round(second, 6) for second in seconds],
        "wire_bytes": (sent_bytes(options.iface) - on_wire) / len(seconds),
        "stats_bytes": None,
        "buffer_bytes": None,
        "residual_bytes": None,
    }
    if handle:
        stats = handle.stats()
        found["stats_bytes"] = (stats.bytes_sent - in_stats) / len(seconds)
        found["buffer_bytes"], found["residual_bytes"] = stats.buffer_bytes, stats.residual_bytes
        handle.close()
    return found


def attach(ddp: DistributedDataParallel, variant: str) -> gw.Handle | None:
    if variant in (COMPUTE, PLAIN):
        return None
    if variant == HALF:
        register_half(ddp)
        return None
    if variant == POWERSGD:
        register_powersgd(ddp)
        return None
    handle = gw.attach(ddp, variant)
    if isinstance(handle.codec, gw.GradiVeQ):
        compress(handle, ddp.module)
    return handle


def compress(handle: gw.Handle, model: nn.Module) -> None:
    """Put GradiVeQ into its compress phase, with the true axes of each layer's inputs."""
    torch.manual_seed(0)
    for module in model.modules():  # as many draws as `mlp` makes, to get at its subspace
        if isinstance(module, nn.Linear):
            nn.Linear(module.in_features, module.out_features)
    axes = torch.randn(INPUT_RANK, WIDTH)
    subspaces = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        basis = torch.linalg.qr(axes.T).Q.T.contiguous()
        mean = torch.zeros(module.weight.shape)
        subspaces[f"{name}.weight"] = {"phase": "compress", "basis": basis, "mean": mean}
        axes = axes @ module.weight.detach().T
    learned = pack({str(handle.codec): subspaces})
    handle.load_state_dict(handle.state_dict() | {"learned": learned})


def step(ddp: DistributedDataParallel, inputs: torch.Tensor, exchange: bool) -> float:
    """Seconds, the mean over the workers: those who only compute need not end together."""
    ddp.zero_grad()
    dist.barrier()
    start = time.perf_counter()
    with contextlib.nullcontext() if exchange else ddp.no_sync():
        ddp(inputs).square().mean().backward()
    taken = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(taken)
    return taken.item() / dist.get_world_size()


def goes_on(seconds: list[float], options: argparse.Namespace) -> bool:
    """Rank 0 decides for all: enough steps, or enough of them and of time."""
    enough = len(seconds) >= options.steps
    enough |= len(seconds) >= LEAST_STEPS and sum(seconds) > options.seconds
    decision = torch.tensor(enough)
    dist.broadcast(decision, 0)
    return not decision.item()


if __name__ == "__main__":
    main()
