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
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            said, complaints = process.communicate(timeout=240)
        finally:
            process.terminate()  # a launcher that is killed outright leaves its workers behind
    assert process.returncode == 0, complaints
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "launcher"),
    [
        ("ddp.py", TORCHRUN),
        ("outer_steps.py", TORCHRUN),
        ("asynchronous.py", []),
        ("with_accelerate.py", TORCHRUN),
        ("with_lightning.py", []),
        ("qsvrg.py", TORCHRUN),
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
