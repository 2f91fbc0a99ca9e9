"""`gradwire train --algorithm`: algorithms beside synchronous training, in one table."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwire.cli.app import app
from gradwire.lab.algorithms import ALGORITHMS, parse_algorithm
from gradwire.lab.algorithms.local import Local
from gradwire.lab.display import Display
from gradwire.lab.records import Result, Training, float32_bytes
from gradwire.lab.report.page import page
from gradwire.lab.scores import behind, reference
from gradwire.lab.summary import summary
from test_lab import run
from test_report import ORIGIN, result, settings

MLP = 266_610  # parameters of mnist-fc


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two algorithms with two codecs each, under torchrun."""
    file = tmp_path_factory.mktemp("results") / "results.json"
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gradwire"]
    asked = ["-a", "sync", "-a", "local:every=8,fragments=2,overlap=1,min_numel=0"]
    codecs = ["-c", "none", "-c", "qsgd:bits=4", "-t", "mnist-fc", "--steps", "36"]
    goal = ["--target", "0.5", "--eval-every", "4", "--json", str(file)]
    done = run(sys.executable, "-m", *torchrun, "train", *asked, *codecs, *goal)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


@pytest.mark.slow
def test_algorithms_stand_beside_each_other(results: list[dict[str, Any]]) -> None:
    asked = [(each["algorithm"].partition(":")[0], each["codec"]) for each in results]
    assert asked == [(a, c) for a in ("sync", "local") for c in ("none", "qsgd:bits=4")]
    first = [each["curve"][0]["loss"] for each in results]
    assert len(set(first)) == 1
    sync, _, local, coded = results
    assert sync["times_sooner"] == 1
    for each in results:
        assert each["reached"]["score"] >= 0.5
        assert each["times_sooner"] == sync["reached"]["seconds"] / each["reached"]["seconds"]
    assert [layer["bits"] for layer in local["layers"]] == [32.0] * len(local["layers"])
    assert all(0 < layer["nmse"] < 0.1 for layer in coded["layers"])


@pytest.mark.slow
def test_local_training_sends_what_its_exchanges_take(results: list[dict[str, Any]]) -> None:
    """Of 36 steps, every 8th exchanges each half of the model; the last ones end with both."""
    local = results[2]
    exchanges, roll_calls = 4 + 1, (4 + 1) + (4 + 1)
    total = exchanges * float32_bytes(MLP, workers=2) + roll_calls * 8
    assert local["scores"][-1]["bytes"] == total == 36 * local["bytes_per_step"]
    assert local["ratio"] == pytest.approx(total / 36 / float32_bytes(MLP, workers=2))


def test_algorithms_are_spelled_as_codecs_are() -> None:
    assert set(ALGORITHMS) >= {"sync", "local"}
    assert parse_algorithm("local:every=10,feedback=0.9") == Local(every=10, feedback=0.9)
    for spec, words in [
        ("lokal", "`--algorithm` must be one of sync, .*local.*, got 'lokal'"),
        ("local:H=30", "'H=30' in 'local:H=30' is not a setting of local; .* settings are every"),
        ("local:inner_lr=0", "`inner_lr` must be positive and finite, got 0"),
        ("local:every=0", "`every` must be an integer of at least 1, got 0"),
        ("sync:every=1", "not a setting of sync; .* settings are none"),
    ]:
        with pytest.raises(ValueError, match=words):
            parse_algorithm(spec)


def test_an_algorithm_that_there_is_not_is_refused_before_anything_starts() -> None:
    done = CliRunner().invoke(app, ["train", "--algorithm", "diloco"])
    assert done.exit_code == 2
    assert "`--algorithm` must be one of" in done.output


def test_the_help_names_every_algorithm_and_shows_an_example() -> None:
    words = re.sub(r"[\s│]+", " ", CliRunner().invoke(app, ["train", "--help"]).output)
    assert all(re.search(rf"\b{name}\b", words) for name in ALGORITHMS)
    assert "--algorithm sync --algorithm local" in words


def local(codec: str, **changes: Any) -> Result:
    return replace(result(codec), algorithm="local", **changes)


def test_synchronous_none_is_what_others_are_compared_with() -> None:
    sync, other = result("none"), local("none", score=0.39)
    assert reference([other, sync]) is sync
    assert reference([other, local("qsgd")]) is other
    assert behind(other, [other, sync]) == pytest.approx(0.6)


def test_an_algorithm_is_part_of_the_name_of_a_row(tmp_path: Path) -> None:
    assert [each.label for each in (result("none"), local("none"))] == ["none", "local none"]
    both = replace(settings(("none",)), algorithms=("sync", "local"))
    assert both.trainings == [Training("none"), Training("none", "local")]
    text = page(both, [result("none"), local("none")], ORIGIN)
    assert '["none", "local none"]' in text


def test_words_count_algorithms_apart_from_codecs(capsys: pytest.CaptureFixture[str]) -> None:
    many = replace(settings(("none", "fft", "topk")), algorithms=("sync", "local"))
    Display(many, quiet=False)
    assert "with 3 codecs and 2 algorithms" in capsys.readouterr().err
    slow = [result("none", score=0.7, target=0.8), local("none", score=0.71, target=0.8)]
    assert summary(slow).startswith("No training reached 80% accuracy in 20 steps; `local none` ")
