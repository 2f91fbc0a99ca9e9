"""A worker whose rank 1 fails in step 2, in the way it is told. See `test_ddp_failures.py`."""

import itertools
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw


class Failing(gw.QSGD):
    """Counts payloads, over all lanes, and fails at the eleventh: the third of step 2."""

    way = ""
    counter = itertools.count(1)

    def encode_into(self, *args, **options):
        count = next(Failing.counter)
        if count == 11 and self.way == "raise":
            raise ValueError("out of ink")
        if count == 11 and self.way == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if count == 11 and self.way == "hang":
            time.sleep(3600)
        return super().encode_into(*args, **options)


def main(rank: int, size: int, store: str, way: str, timeout_s: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.05)
    Failing.way = way if rank == 1 else ""
    handle = gw.attach(ddp, Failing(bits=4), collective="all_gather")
    error = ""
    try:
        for _ in range(5):
            ddp(torch.randn(8, 128)).square().sum().backward()
    except RuntimeError as caught:
        error = str(caught)
    if way != "linger":
        handle.close()
    threads = [t.name for t in threading.enumerate() if t.name.startswith("gradwire")]
    print(json.dumps({"error": error, "threads": threads, "steps": handle.stats().steps}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], float(sys.argv[5]))
