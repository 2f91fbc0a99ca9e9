"""The examples run, learn something and compress. Each is started as its first lines say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(script, *launcher):
    command = [sys.executable, *launcher, str(FOLDER / script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("script", "launcher"),
    [
        ("ddp.py", TORCHRUN),
        ("with_accelerate.py", TORCHRUN),
        ("with_lightning.py", []),
        ("messages.py", []),
    ],
)
def test_an_example_trains(script, launcher):
    said = run(script, *launcher)
    assert float(re.search(r"accuracy ([\d.]+)%", said)[1]) > 70
    if sent := re.search(r"([\d,]+) bytes a step", said):
        assert int(sent[1].replace(",", "")) < 0.2 * 4 * 266_610
    else:
        assert float(re.search(r"took ([\d.]+) of float32's", said)[1]) < 0.2


def test_the_readme_names_every_example():
    named = set(re.findall(r"\]\((\w+\.py)\)", (FOLDER / "README.md").read_text()))
    assert named == {path.name for path in FOLDER.glob("*.py")}
