"""Local training that goes on after a restart, also of a worker that lost its disk.

Under torchrun; see `test_outer_restart.py`.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gradwire.algorithms import OuterSteps

STEPS, EVERY, DEATH, VICTIM = 40, 10, 25, 2


def last_checkpoint(folder):
    """Of this worker's own: a step, and what was saved after it."""
    files = sorted(folder.glob("*.pt"))
    return torch.load(files[-1], weights_only=True) if files else None


def train(rank, folder):
    torch.manual_seed(0)
    teacher = nn.Linear(64, 32)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 32))
    settings = {"lr": 1.0, "momentum": 0.0, "feedback": 1.0, "min_numel": 0}
    outer = OuterSteps(model, "qsgd:bits=4", every=6, overlap=2, **settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    parts = {"model": model, "optimizer": optimizer, "outer": outer}
    disk = folder / f"disk-{rank}"
    restarted = disk.exists() or (folder / "death").exists()
    disk.mkdir(exist_ok=True)
    saved = last_checkpoint(disk)
    for name, part in parts.items() if saved else ():
        part.load_state_dict(saved[name])
    outer.join(known=saved is not None)
    start, losses = outer.inner_step, []
    for step in range(start, STEPS):
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = nn.functional.mse_loss(model(x), teacher(x).detach())
        losses.append(loss.item())
        if not restarted and (rank, step) == (VICTIM, DEATH):
            (folder / "death").touch()
            shutil.rmtree(disk)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outer.step()
        if (step + 1) % EVERY == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state, disk / f"{step + 1:03}.pt")
    outer.finish()
    outer.close()
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return {"weights": weights, "losses": losses, "start": start, "knew": saved is not None}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    where, own_rank = Path(sys.argv[1]), dist.get_rank()
    torch.save(train(own_rank, where), where / f"result-{own_rank}.pt")
    dist.destroy_process_group()
