"""torchrun restarts a group one of whose workers was killed; training ends as if it was not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elastic_worker import train

SCRIPT = Path(__file__).with_name("elastic_worker.py")


def torchrun(folder, script=SCRIPT):
    """What the three ranks have left behind."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    command = [*launcher, "--nproc-per-node=3", str(script), str(folder)]
    # Without this, gloo finds the addresses of the first life in the store and does not restart.
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, errors = process.communicate(timeout=110)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its workers
            raise
    assert process.returncode == 0, errors
    return [torch.load(folder / f"result-{rank}.pt", weights_only=True) for rank in range(3)]


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(worlds, tmp_path):
    """The restarted group begins at the last checkpoint, and ends with the same bits."""
    for name in ("disturbed", "undisturbed"):
        (tmp_path / name).mkdir()
    disturbed = torchrun(tmp_path / "disturbed")
    undisturbed = worlds[3].run(train, tmp_path / "undisturbed")
    for result, expected in zip(disturbed, undisturbed, strict=True):
        assert (result["start"], expected["start"]) == (20, 0)
        assert torch.equal(result["weights"], expected["weights"])
        assert torch.equal(result["loss"], expected["loss"])
