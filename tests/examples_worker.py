"""The examples, one after the other, each as its first lines say: prints JSON of what they did.

They take a minute, so `test_examples.py` lets them run beside other tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LAUNCHERS = {
    "ddp.py": TORCHRUN,
    "outer_steps.py": TORCHRUN,
    "asynchronous.py": [],
    "with_accelerate.py": TORCHRUN,
    "with_lightning.py": [],
    "qsvrg.py": TORCHRUN,
    "messages.py": [],
}


def run(script, launcher):
    """Its exit code, and what it wrote to both streams."""
    command = [sys.executable, *launcher, str(FOLDER / script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            said, complaints = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.terminate()  # a launcher that is killed outright leaves its workers behind
            return None, "", "it took longer than 240 s"
    return process.returncode, said, complaints


if __name__ == "__main__":
    print(json.dumps({script: run(script, launcher) for script, launcher in LAUNCHERS.items()}))
