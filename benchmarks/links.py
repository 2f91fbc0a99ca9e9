"""Step times on real shaped links: one network namespace a worker, joined by a bridge.

    sudo python benchmarks/links.py --rate 100mbit --workers 2 -c none -c qsgd:bits=4

Every worker's interface is shaped by `tc tbf` and carries gloo's TCP traffic. Plain DDP, PyTorch's
fp16 hook, compute alone and each codec are timed in the same run, so that their ratios mean
something on a noisy machine. Bytes come from the interface's own counter, beside those that
`handle.stats()` claims.

Needs root and iproute2. The namespaces are removed at the end, and by a watchdog if this process
is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

RATES = {"100mbit": 100e6, "1gbit": 1e9, "10gbit": 1e10}
IFACE = "eth0"
PORT = 29777


def main() -> None:
    options = parse_arguments()
    if options.worker is not None:
        work(options)
        return
    require_root()
    results = []
    for rate in options.rate:
        for workers in options.workers:
            with namespaces(workers, rate) as names:
                results += run(options, names, rate, workers)
    print_table(results)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", action="append", choices=list(RATES), help="default: all three")
    parser.add_argument("--workers", action="append", type=int, help="default: 2 and 4")
    parser.add_argument("-c", "--codec", action="append", help="default: none, qsgd:bits=4")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each (default: 5)")
    parser.add_argument("--quick", action="store_true", help="1gbit, 2 workers, under a minute")
    parser.add_argument("--json", metavar="FILE", help="write the results")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    quick_rate, quick_workers = (["1gbit"], [2]) if options.quick else (list(RATES), [2, 4])
    options.rate = options.rate or quick_rate
    options.workers = options.workers or quick_workers
    options.codec = options.codec or ["none", "qsgd:bits=4"]
    return options


def require_root() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"This needs {' and '.join(missing)}: install iproute2 (apt install iproute2).")
    if os.geteuid() != 0:
        sys.exit("This makes network namespaces and needs root: run it with sudo.")


@contextmanager
def namespaces(workers: int, rate: str):
    """One namespace a worker and one for the bridge; nothing of the host's network is touched."""
    prefix = f"gw{os.getpid()}"
    names = [f"{prefix}w{i}" for i in range(workers)]
    switch = f"{prefix}s"
    removal = "; ".join(f"ip netns del {name}" for name in [*names, switch])
    watchdog = subprocess.Popen(  # its pipe closes when this process ends, however it ends
        ["setsid", "sh", "-c", f"read line; {removal}"], stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ip(f"netns add {switch}")
        ip(f"-n {switch} link add br0 type bridge")
        ip(f"-n {switch} link set br0 up")
        for i, name in enumerate(names):
            ip(f"netns add {name}")
            ip(f"link add {IFACE} netns {name} type veth peer name port{i} netns {switch}")
            ip(f"-n {switch} link set port{i} master br0 up")
            ip(f"-n {name} addr add 10.77.0.{i + 1}/24 dev {IFACE}")
            ip(f"-n {name} link set {IFACE} up")
            ip(f"-n {name} link set lo up")
            shape = f"root tbf rate {rate} burst 512kb latency 100ms"
            subprocess.run(f"tc -n {name} qdisc add dev {IFACE} {shape}".split(), check=True)
        yield names
    finally:
        watchdog.stdin.close()
        watchdog.wait()


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def run(options: argparse.Namespace, names: list[str], rate: str, workers: int) -> list[dict]:
    """Start a worker in every namespace; rank 0 prints a JSON object for each variant."""
    codecs = [word for codec in options.codec for word in ("-c", codec)]
    command = [sys.executable, __file__, "--world", str(workers), "--steps", str(options.steps)]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": IFACE, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *command, "--worker", str(rank), *codecs],
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for rank, name in enumerate(names)
    ]
    try:
        results = []
        for line in processes[0].stdout:
            results.append({"rate": rate, "workers": workers, **json.loads(line)})
            print(f"{rate}, {workers} workers: {results[-1]['what']}", file=sys.stderr)
        if any(process.wait() for process in processes):
            sys.exit("a worker failed; see its error above.")
    finally:
        for process in processes:
            process.kill()
    return finish(results, rate)


def finish(results: list[dict], rate: str) -> list[dict]:
    """Ratios to plain DDP, and how near each comes to what compute and link allow."""
    plain = next(row for row in results if row["what"] == "plain DDP")
    compute = next(row for row in results if row["what"] == "compute alone")
    for row in results:
        row["ratio"] = row["step_s"] / plain["step_s"]
        limit = max(compute["step_s"], row["wire_bytes"] * 8 / RATES[rate])
        row["fraction_of_limit"] = limit / row["step_s"]
    return results


def print_table(results: list[dict]) -> None:
    print(f"{'link':8} {'n':>2}  {'what':24} {'s/step':>7} {'ratio':>6} {'limit':>6} "
          f"{'MB on wire':>11} {'MB in stats':>11}")  # fmt: skip
    for row in results:
        claimed = "" if row["stats_bytes"] is None else f"{row['stats_bytes'] / 1e6:11.2f}"
        print(
            f"{row['rate']:8} {row['workers']:2}  {row['what']:24} {row['step_s']:7.3f} "
            f"{row['ratio']:6.3f} {row['fraction_of_limit']:6.0%} "
            f"{row['wire_bytes'] / 1e6:11.2f} {claimed:>11}"
        )


def work(options: argparse.Namespace) -> None:
    """One worker: every variant in turn, on a model of 25.6 M parameters."""
    import torch
    import torch.distributed as dist

    import gradwire as gw

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://10.77.0.1:{PORT}", rank=options.worker,
        world_size=options.world,
    )  # fmt: skip
    report("compute alone", *measure(options, attach=None, exchange=False))
    report("plain DDP", *measure(options, attach=None))
    report("fp16 hook", *measure(options, attach=_fp16_hook))
    for spec in options.codec:
        report(spec, *measure(options, attach=lambda ddp, s=spec: gw.attach(ddp, gw.parse(s))))
    dist.destroy_process_group()


def _fp16_hook(ddp) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    ddp.register_comm_hook(None, fp16_compress_hook)


def report(what: str, step_s: float, wire_bytes: float, stats_bytes: float | None) -> None:
    row = {"what": what, "step_s": step_s, "wire_bytes": wire_bytes, "stats_bytes": stats_bytes}
    print(json.dumps(row), flush=True)


def measure(options, attach, exchange=True) -> tuple[float, float, float | None]:
    """Median seconds of a step, bytes that left the interface and bytes that stats claims."""
    import contextlib

    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    layers = [torch.nn.Linear(2048, 2048) for _ in range(6)] + [torch.nn.Linear(2048, 200)]
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    handle = attach(ddp) if attach else None
    torch.manual_seed(options.worker)
    x = torch.randn(32, 2048)
    seconds = []
    for step in range(3 + options.steps):  # buckets are laid out anew after the first
        if step == 3:
            sent = counter()
            claimed = handle.stats().bytes_sent if handle else 0
        ddp.zero_grad()
        dist.barrier()
        start = time.perf_counter()
        with contextlib.nullcontext() if exchange else ddp.no_sync():
            ddp(x).square().mean().backward()
        if step >= 3:
            seconds.append(time.perf_counter() - start)
    wire_bytes = (counter() - sent) / options.steps
    if handle is None:
        return statistics.median(seconds), wire_bytes, None
    stats_bytes = (handle.stats().bytes_sent - claimed) / options.steps
    handle.close()
    return statistics.median(seconds), wire_bytes, stats_bytes


def counter() -> int:
    return int(Path(f"/sys/class/net/{IFACE}/statistics/tx_bytes").read_text())


if __name__ == "__main__":
    main()
