"""Training that resumes from its last checkpoint, under torchrun. See `test_elastic.py`."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw

STEPS, EVERY, DEATH = 40, 10, 25


def load(folder, rank):
    """The last checkpoint of which every rank has written its part; None: there is none."""
    files = sorted(folder.glob(f"*-{rank}.pt"))
    latest = torch.tensor(int(files[-1].name.split("-")[0]) if files else 0)
    dist.all_reduce(latest, dist.ReduceOp.MIN)
    if latest == 0:
        return None
    return torch.load(folder / f"{int(latest):03}-{rank}.pt", weights_only=True)


def train(rank, folder, dies=False):
    """Train to the end; the weights, the last loss and the step it began with."""
    torch.manual_seed(0)
    teacher = nn.Linear(64, 32)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 32))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2, momentum=0.9)
    # Nothing is raw: sums of floats depend on buckets, which are others in a first step.
    handle = gw.attach(ddp, gw.QSGD(bits=2), error_feedback=True, min_numel=0)
    parts = {"model": ddp, "optimizer": optimizer, "gradwire": handle}
    saved = load(folder, rank)
    for name, part in parts.items() if saved else ():
        part.load_state_dict(saved[name])
    start = saved["step"] if saved else 0
    for step in range(start, STEPS):
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = nn.functional.mse_loss(ddp(x), teacher(x).detach())
        if dies and start == 0 and (rank, step) == (2, DEATH):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % EVERY == 0:
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save({"step": step + 1, **states}, folder / f"{step + 1:03}-{rank}.pt")
    handle.close()
    weights = torch.cat([p.detach().reshape(-1) for p in ddp.parameters()])
    return {"weights": weights, "loss": loss.detach(), "start": start}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    where, own_rank = Path(sys.argv[1]), dist.get_rank()
    result = train(own_rank, where, dies=True)
    torch.save(result, where / f"result-{own_rank}.pt")
    dist.destroy_process_group()
