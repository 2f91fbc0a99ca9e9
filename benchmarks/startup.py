"""What gradwire costs before it gains: the import, and the first step.

    .venv/bin/python benchmarks/startup.py

Imports are timed in fresh processes, in turn, and the medians compared. The first step is that of
two fresh workers on loopback with 25.6 M parameters, from `attach` to the end of the backward pass,
with a warm kernel cache; what it costs over plain DDP is the difference.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time

REPEATS = 7
STEP_REPEATS = 3


def main() -> None:
    if len(sys.argv) > 1:
        first_step(int(sys.argv[1]), sys.argv[2], sys.argv[3])
        return
    first_steps("qsgd:bits=4")  # fills the kernel cache
    imports: dict[str, list[float]] = {"torch": [], "gradwire": []}
    for _ in range(REPEATS):
        for module, seconds in imports.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
            seconds.append(time.perf_counter() - start)
    medians = {module: statistics.median(seconds) for module, seconds in imports.items()}
    ratio = medians["gradwire"] / medians["torch"]
    print(
        f"import torch {medians['torch']:.2f} s, gradwire {medians['gradwire']:.2f} s: {ratio:.2f}"
    )
    plain = statistics.median(first_steps("plain DDP") for _ in range(STEP_REPEATS))
    print(f"first step of plain DDP {plain:.2f} s")
    for codec in ("none", "qsgd:bits=4", "dqsg", "global-qsgd", "fft"):
        first_steps(codec)
        ours = statistics.median(first_steps(codec) for _ in range(STEP_REPEATS))
        print(f"first step of {codec} {ours:.2f} s: {ours - plain:+.2f} s")


def first_steps(variant: str) -> float:
    """Seconds of the first step among two fresh workers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, __file__, str(rank), port, variant], env=environment,
                         stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]  # fmt: skip
    answers = [json.loads(process.communicate()[0]) for process in processes]
    return max(answers)


def first_step(rank: int, port: str, variant: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import gradwire as gw

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    layers = [torch.nn.Linear(2048, 2048) for _ in range(6)] + [torch.nn.Linear(2048, 200)]
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers))
    inputs = torch.randn(16, 2048)
    dist.barrier()
    start = time.perf_counter()
    handle = None if variant == "plain DDP" else gw.attach(ddp, gw.parse(variant))
    ddp(inputs).square().mean().backward()
    print(json.dumps(time.perf_counter() - start))
    if handle:
        handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
