"""One worker fails: the others say why, at once, and every process comes to its end."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("failing_worker.py")
LIMIT_S = 100
pytestmark = pytest.mark.slow


def start(store, way, timeout_s, size=3):
    """The processes of all ranks."""
    arguments = [str(store), way, str(timeout_s)]
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(size), *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def end(workers, ends=True):
    """The exit codes of all ranks and what they print; all have `LIMIT_S` seconds."""
    try:
        waited = [w for rank, w in enumerate(workers) if ends or rank != 1]
        texts = [worker.communicate(timeout=LIMIT_S)[0] for worker in waited]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()
    codes = [worker.returncode for worker in workers]
    return codes, [json.loads(text) for text in texts if text]


def run(*arguments):
    return end(start(*arguments))


@pytest.fixture(scope="module")
def hanging(tmp_path_factory):
    """Workers of which one hangs. They wait for the most part, so others run meanwhile."""
    workers = start(tmp_path_factory.mktemp("hanging") / "store", "hang", 15)
    yield workers
    for worker in workers:
        worker.kill()


@pytest.mark.usefixtures("hanging")
def test_an_exception_in_a_codec_is_told_to_all_ranks(tmp_path):
    """Long before the timeout of ten minutes: the worker that failed leaves its groups."""
    codes, answers = run(tmp_path / "store", "raise", 600)
    assert codes == [0, 0, 0]
    for rank, answer in enumerate(answers):
        text = r"qsgd:bits=4 failed on rank 1 with '\d.weight': ValueError: out of ink"
        assert re.search(text, answer["error"])
        stops = f"rank {rank} stops because another worker has failed"
        assert (stops in answer["error"]) == (rank != 1)
        assert answer["threads"] == []


def test_the_death_of_a_worker_is_noticed(tmp_path):
    codes, answers = run(tmp_path / "store", "die", 600)
    assert codes == [0, -9, 0]
    for rank, answer in zip((0, 2), answers, strict=True):
        assert f"rank {rank} has lost another worker, which died" in answer["error"]
        assert "Connection closed by peer" in answer["error"] or "reset" in answer["error"]
        assert answer["threads"] == []


@pytest.mark.parametrize("way", ["linger", "close"])
def test_the_interpreter_exits_whether_closed_or_not(tmp_path, way):
    codes, answers = run(tmp_path / "store", way, 600, 2)
    assert codes == [0, 0]
    for answer in answers:
        assert answer["error"] == ""
        assert answer["steps"] == 5
        assert len(answer["threads"]) == (3 if way == "linger" else 0)


def test_a_worker_that_hangs_costs_no_more_than_the_timeout(hanging):
    codes, answers = end(hanging, ends=False)
    assert [codes[0], codes[2]] == [0, 0]
    for answer in answers:
        assert "has lost another worker" in answer["error"]
        assert answer["threads"] == []
