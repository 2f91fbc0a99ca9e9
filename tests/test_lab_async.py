"""`gradwire train --algorithm async --slow`: a slow worker beside others that do not wait."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwire.cli.app import app
from gradwire.lab.algorithms import parse_algorithm
from gradwire.lab.algorithms.asynchronous import Async
from gradwire.lab.data import delayed
from test_lab import run

STEPS, WORKERS = 24, 3


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Synchronous and asynchronous, with the last of three workers slow."""
    file = tmp_path_factory.mktemp("results") / "results.json"
    asked = ["-a", "sync", "-a", "async", "-c", "qsgd:bits=4", "-t", "mnist-fc", "--slow", "20"]
    goal = ["-w", str(WORKERS), "--steps", str(STEPS), "--eval-every", "4", "--json", str(file)]
    done = run(sys.executable, "-m", "gradwire", "train", *asked, *goal)
    assert done.returncode == 0, done.stderr
    assert "the last one slowed by a factor of 20" in done.stderr
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


@pytest.mark.slow
def test_nobody_waits_for_a_slow_worker(results: list[dict[str, Any]]) -> None:
    sync, other = results
    assert [each["slow"] for each in results] == [20, 20]
    assert sync["step_s"] > 19 * sync["compute_s"]
    assert other["step_s"] < 19 * other["compute_s"]
    assert other["scores"][-1]["seconds"] < sync["scores"][-1]["seconds"]


@pytest.mark.slow
def test_scores_are_those_of_the_server(results: list[dict[str, Any]]) -> None:
    sync, other = results
    for each in results:
        assert [score["step"] for score in each["scores"]] == list(range(4, STEPS + 1, 4))
        assert each["accuracy"] > 0.5
    assert len(other["curve"]) == STEPS
    assert other["bits_per_value"] == pytest.approx(sync["bits_per_value"], rel=0.01)
    (remark,) = other["remarks"]
    assert re.match(rf"{STEPS * WORKERS} gradients counted, [\d.]+ steps late on average", remark)


def test_async_is_spelled_as_codecs_are() -> None:
    made = parse_algorithm("async:max_delay=7,damping=none,clip=2.5,lookahead=0,min_numel=0")
    assert made == Async(max_delay=7, damping=None, clip=2.5, lookahead=0, min_numel=0)
    with pytest.raises(ValueError, match="`damping` must be one of"):
        parse_algorithm("async:damping=much")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slow", "0.5"], "`--slow` must be at least 1, and finite, got 0.5"),
        (["--slow", "2", "-w", "1"], "`--slow` slows one of several workers"),
    ],
)
def test_a_slow_worker_must_be_slower_than_others(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["train", *arguments])
    assert done.exit_code == 2
    assert words in re.sub(r"\s+", " ", done.output)


def test_a_slow_worker_really_waits() -> None:
    start = time.monotonic()
    assert list(delayed(iter([1, 2]), 0.05)) == [1, 2]  # type: ignore[list-item]
    assert time.monotonic() - start >= 0.1


def test_the_page_of_the_docs_names_every_setting() -> None:
    page = (Path(__file__).parents[1] / "docs" / "algorithms" / "asynchronous.md").read_text()
    for name in Async.__dataclass_fields__:
        assert f"`{name}`" in page
