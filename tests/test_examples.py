"""The examples run, learn something and compress."""

import json
import re
import sys
from pathlib import Path

import pytest

from beside import Beside
from examples_worker import LAUNCHERS

BESIDE = Beside([sys.executable, str(Path(__file__).with_name("examples_worker.py"))], {})


@pytest.fixture(scope="module")
def outcomes():
    """What `examples_worker.py` has found."""
    code, output = BESIDE.result(timeout=900)
    assert code == 0, output
    return json.loads(output.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("script", LAUNCHERS)
def test_an_example_trains(outcomes, script):
    code, said, complaints = outcomes[script]
    assert code == 0, complaints
    assert float(re.search(r"accuracy ([\d.]+)%", said)[1]) > 70
    if sent := re.search(r"([\d,]+) bytes a step", said):
        assert int(sent[1].replace(",", "")) < 0.2 * 4 * 266_610
    else:
        assert float(re.search(r"took ([\d.]+) of float32's", said)[1]) < 0.2
