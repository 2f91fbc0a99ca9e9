"""The lab with real processes: what it measures, and that it always ends."""

import contextlib
import gzip
import json
import multiprocessing
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import typer
from typer.testing import CliRunner

import gradwire as gw
from gradwire.cli.train import train
from gradwire.lab import training, workers
from gradwire.lab.data import Split, batches
from gradwire.lab.display import Display
from gradwire.lab.measure import Log, Row
from gradwire.lab.mnist import SUBSET, load_mnist
from gradwire.lab.records import (
    Event,
    Listener,
    Progress,
    Remark,
    Result,
    Settings,
    float32_bytes,
    ignore,
)
from gradwire.lab.remarks import on_run
from gradwire.lab.request import Request
from gradwire.lab.tasks import TASKS

LENET = 1_630_154  # parameters of mnist-cnn
GRADWIRE = [sys.executable, "-m", "gradwire"]
QUICK = ["--batch", "16", "--steps", "30"]


def run(*command: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`, but without $COLUMNS, which readline sets behind Python's back."""
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=env
    )


@pytest.fixture(scope="module")
def comparison() -> subprocess.CompletedProcess[str]:
    codecs = ["-c", "none", "-c", "qsgd:bits=4"]
    return run(*GRADWIRE, "train", "-w", "2", *codecs, *QUICK, "--json", "-")


@pytest.fixture(scope="module")
def results(comparison: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert comparison.returncode == 0, comparison.stderr
    found: list[dict[str, Any]] = json.loads(comparison.stdout)
    return found


def test_one_object_per_codec_with_everything_in_it(results: list[dict[str, Any]]) -> None:
    assert [result["codec"] for result in results] == ["none", "qsgd:bits=4"]
    for result in results:
        assert (result["task"], result["workers"], result["steps"]) == ("mnist-cnn", 2, 30)
        assert 0 <= result["accuracy"] <= 1
        for seconds in ("step_s", "compute_s", "encode_s", "comm_s", "decode_s"):
            assert 0 <= result[seconds] < 10
        assert result["step_s"] > 0


def test_every_codec_learns(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["accuracy"] > 0.6
        assert result["curve"][-1]["loss"] < 0.6 * result["curve"][0]["loss"]


def test_curves_run_from_the_first_step_to_the_last(results: list[dict[str, Any]]) -> None:
    for result in results:
        curve = result["curve"]
        assert [point["step"] for point in curve] == list(range(1, 31))
        assert curve[-1]["bytes"] == 30 * result["bytes_per_step"]
        for name in ("bytes", "seconds"):
            values = [point[name] for point in curve]
            assert values == sorted(values)


def test_both_codecs_start_from_the_same_weights(results: list[dict[str, Any]]) -> None:
    first = [result["curve"][0]["loss"] for result in results]
    assert first[0] == first[1]


def test_bytes_are_those_of_the_wire(results: list[dict[str, Any]]) -> None:
    none, qsgd = results
    assert none["bytes_per_step"] == float32_bytes(LENET, workers=2) == 4 * LENET
    assert (none["ratio"], none["bits_per_value"]) == (1, 32)
    assert isinstance(qsgd["bytes_per_step"], int)
    assert qsgd["ratio"] <= 0.13
    assert 4 < qsgd["bits_per_value"] < 4.2


@pytest.fixture(scope="module")
def raced() -> list[dict[str, Any]]:
    """The same run as `results`, with a target that is reached, and evaluated after each step."""
    codecs = ["-c", "none", "-c", "qsgd:bits=4"]
    goal = ["--target", "0.5", "--eval-every", "1", "--json", "-"]
    done = run(*GRADWIRE, "train", "-w", "2", *codecs, *QUICK, *goal)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert (
        " sooner than `none` (float32): after" in done.stderr or "No codec reached" in done.stderr
    )
    return found


def test_the_target_is_reached_by_the_first_score_that_is_as_good(
    raced: list[dict[str, Any]],
) -> None:
    for result in raced:
        assert [each["step"] for each in result["scores"]] == list(range(1, 31))
        reached = result["reached"]
        assert reached["score"] >= result["target"] == 0.5
        assert all(each["score"] < 0.5 for each in result["scores"][: reached["step"] - 1])
        point = result["curve"][reached["step"] - 1]
        for name in ("step", "bytes", "seconds"):
            assert reached[name] == point[name]
    none, qsgd = raced
    assert none["times_sooner"] == 1
    assert qsgd["times_sooner"] == none["reached"]["seconds"] / qsgd["reached"]["seconds"]


def test_evaluation_changes_nothing_of_the_training(
    results: list[dict[str, Any]], raced: list[dict[str, Any]]
) -> None:
    for rarely, often in zip(results, raced, strict=True):
        assert [each["step"] for each in rarely["scores"]] == [10, 20, 30]
        assert rarely["scores"][-1]["score"] == rarely["accuracy"] == often["accuracy"]
        assert [p["loss"] for p in rarely["curve"]] == [p["loss"] for p in often["curve"]]
        assert rarely["bytes_per_step"] == often["bytes_per_step"]
        assert (rarely["target"], rarely["reached"], rarely["times_sooner"]) == (None, None, None)


SLEEP_S, SLEPT = 2.0, 3


def _train_with_slow_evaluation(listener: Listener) -> None:
    def slowly(*args: Any) -> tuple[float, float]:
        time.sleep(SLEEP_S)
        return 0.5, 1.0

    training.evaluate = slowly
    settings = Settings("mnist-fc", ("none",), 2, SLEPT, 8, 0.05, 0, 1, None, None, 0.5, 1)
    training.train_all(settings, listener)


def test_the_time_of_evaluation_is_not_counted() -> None:
    heard: list[Event] = []
    workers.run(_train_with_slow_evaluation, 2, heard.append)
    (result,) = [event for event in heard if isinstance(event, Result)]
    assert result.scores[-1].seconds < SLEEP_S
    assert result.reached == result.scores[0]


def test_scores_are_reached_from_the_side_that_is_worse() -> None:
    accuracy, bits = TASKS["mnist-cnn"].score, TASKS["gpt-char"].score
    assert [accuracy.reaches(s, 0.9) for s in (0.89, 0.9, 0.91, float("nan"))] == [
        False, True, True, False
    ]  # fmt: skip
    assert [bits.reaches(s, 2.5) for s in (2.51, 2.5, 2.4, float("nan"))] == [
        False, True, True, False
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "target", "expected"),
    [(30, None, 10), (1000, None, 50), (30, 0.5, 1), (500, 0.5, 10)],
)
def test_a_target_is_looked_for_more_often(steps: int, target: float | None, expected: int) -> None:
    request = Request(
        ("none",), "mnist-fc", 2, steps, None, 8, None, 0, 1, None, target=target
    )  # fmt: skip
    assert request.settings().eval_every == expected
    assert replace(request, eval_every=7).settings().eval_every == 7


def _log_of_a_long_run(rank: int) -> tuple[float, float]:
    log = Log([Row(0.1, 6_520_617 * step, 0.1, 0.0, 0.0, 0.0) for step in range(1, 801)])
    return log.total("bytes"), log.typical("bytes")


def test_bytes_of_long_runs_are_exact(worlds: Any) -> None:
    for answer in worlds[2].run(_log_of_a_long_run):
        assert answer == (800 * 6_520_617, 6_520_617)


def test_the_table_is_plain_text_of_100_columns(
    comparison: subprocess.CompletedProcess[str],
) -> None:
    lines = comparison.stderr.splitlines()
    assert any(line.startswith("qsgd:bits=4 ") and "0.12" in line for line in lines)
    assert max(map(len, lines)) <= 100
    assert all(line.isprintable() for line in lines)


@pytest.mark.slow
def test_torchrun_brings_its_own_workers(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    torchrun = shutil.which("torchrun", path=Path(sys.executable).parent)
    assert torchrun
    command = [torchrun, "--standalone", "--nproc-per-node", "2", "-m", "gradwire", "train"]
    done = run(*command, "-t", "mnist-fc", "-c", "qsgd:bits=4", *QUICK, "--json", str(file))
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(file.read_text())
    assert (result["workers"], result["task"]) == (2, "mnist-fc")
    assert done.stdout.count("A step with `qsgd:bits=4` took") == 1
    assert sum(line.startswith("qsgd:bits=4 ") for line in done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_what_is_to_be_known_of_a_run_is_said(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    specs = ["ndqsg", "gradiveq", "gradiveq:energy=0.5,warmup_steps=1,train_steps=8"]
    codecs = [word for spec in specs for word in ("-c", spec)]
    options = ["-w", "2", "-t", "mnist-fc", *codecs, *QUICK]
    done = run(*GRADWIRE, "train", *options, "--json", str(file))
    assert done.returncode == 0, done.stderr
    _, remark, line, *_ = done.stderr.splitlines()
    assert re.fullmatch(r"ndqsg: workers differ too much: .* counts such sends\.", remark)
    assert line.startswith("ndqsg: test accuracy")
    nested, learning, learned = [result["remarks"] for result in json.loads(file.read_text())]
    assert nested[0] == remark
    assert re.match(r"ndqsg sent its plain code \d+ times in 30 steps, once for each", nested[1])
    assert learning[0].startswith("gradiveq was still learning in all 30 steps and sent them whole")
    assert learned[-1].endswith("was still learning in 9 of 30 steps, sent whole.")
    brief = run(*GRADWIRE, "train", *options, "--report", str(tmp_path))
    ending = " ".join(brief.stdout.split())
    assert "The curves, where the time went, and 4 remarks: " in ending
    assert "differ too much" not in brief.stdout + brief.stderr
    for place in (done.stdout, (tmp_path / "index.html").read_text()):
        text = " ".join(place.split())
        assert "sent its plain code" in text
        assert "gradiveq was still learning in all 30 steps" in text


def learning(*states: str) -> list[str]:
    """What is said of a run of three steps that began them, and ended, in these states."""
    *steps, end = [dict(enumerate(state.split("/"))) for state in states]
    stats = gw.Stats(3, 0, 32.0, 0.0, 0.0, 0.0, (), end)
    return list(on_run("gradiveq", 2, steps, stats))


def test_what_is_said_of_learning() -> None:
    whole, packed = "whole, it does not compress", "compress, 3 of 512 values a slice"
    assert learning("warmup", "train", "train", packed)[0].startswith(
        "gradiveq was still learning in all 3 steps and sent them whole"
    )
    assert learning("train", packed, packed, packed) == [
        "gradiveq was still learning in 1 of 3 steps, sent whole."
    ]
    assert learning(packed, packed, packed, packed) == []
    assert learning(
        "train/train", f"{whole}/{packed}", f"{whole}/{packed}", f"{whole}/{packed}"
    ) == [
        "gradiveq cannot compress 1 of 2 parameters; what it cannot compress travels whole.",
        "gradiveq was still learning in 1 of 3 steps, sent whole.",
    ]
    assert learning("train", whole, whole, whole) == [
        "gradiveq cannot compress 1 of 1 parameter; what it cannot compress travels whole.",
        "gradiveq was still learning in 3 of 3 steps, sent whole.",
    ]


@pytest.mark.slow
def test_a_single_worker_sends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    done = run(*GRADWIRE, "train", "-w", "1", "-c", "none", *QUICK, "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "on 1 worker with none" in done.stderr
    (result,) = json.loads(file.read_text())
    assert (result["bytes_per_step"], result["ratio"]) == (0, None)
    assert result["remarks"] == [
        "A single worker has nobody to send to, so there are no bytes and no ratio."
    ]


def _spin(listener: Listener) -> None:
    """Meet the others again and again, for ever."""
    listener(Progress(0, 0, 0.0))
    while True:
        dist.barrier()


def _raise(listener: Listener) -> None:
    """Fail on one worker while the other waits for it."""
    dist.barrier()
    if dist.get_rank() == 1:
        raise ArithmeticError("no luck")
    dist.barrier()


def _leave(listener: Listener) -> None:
    """Vanish on one worker while the other waits for it."""
    if dist.get_rank() == 1:
        os._exit(0)
    dist.barrier()


def test_a_killed_worker_ends_the_run() -> None:
    killed = 0.0
    others = set(multiprocessing.active_children())

    def kill_one(event: Event) -> None:
        nonlocal killed
        pid = (set(multiprocessing.active_children()) - others).pop().pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()

    with pytest.raises(workers.WorkerError, match=r"worker \d was killed by SIGKILL"):
        workers.run(_spin, 2, kill_one)
    assert time.monotonic() - killed < 20  # not the minutes of a collective that waits
    assert set(multiprocessing.active_children()) == others


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (_raise, r"worker 1 failed:\n(?s:.*)ArithmeticError: no luck"),
        (_leave, r"worker 1 ended before its work did, with exit code 0"),
    ],
)
def test_the_first_failure_is_the_one_reported(job: workers.Job, cause: str) -> None:
    others = set(multiprocessing.active_children())
    with pytest.raises(workers.WorkerError, match=cause):
        workers.run(job, 2, ignore)
    assert set(multiprocessing.active_children()) == others


@contextlib.contextmanager
def training_in_a_terminal() -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A run that would take hours, once its progress bar has moved, and its workers."""
    terminal, tty = pty.openpty()
    command = [*GRADWIRE, "train", "-w", "2", "-c", "none", "--steps", "99999", "-t", "mnist-fc"]
    process = subprocess.Popen(command, stdin=tty, stdout=tty, stderr=tty, start_new_session=True)
    os.close(tty)
    try:
        shown = b""
        while not re.search(rb"[1-9]\d*/99999", shown):
            shown += os.read(terminal, 4096)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield process, [int(pid) for pid in children]
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def _wait_until_dead(pids: list[int], seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if _alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.mark.slow
def test_ctrl_c_ends_every_worker_at_once() -> None:
    with training_in_a_terminal() as (process, children):
        assert len(children) >= 2
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert _wait_until_dead(children, 30) == []


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_parent() -> None:
    with training_in_a_terminal() as (process, children):
        process.kill()
        assert _wait_until_dead(children, 30) == []


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the command, expects a refusal and returns its sentence."""

    def no_worker(*args: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(workers, "run", no_worker)
    app = typer.Typer()
    app.command()(train)

    def invoke(*args: str) -> str:
        result = CliRunner().invoke(app, [*args])
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    return invoke


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["-c", "qsgd:bits=99"], "bits"),
        (["-c", "zip"], "zip"),
        (["-t", "cifar"], "one of mnist-cnn, mnist-fc, mnist-logistic, gpt-char, got cifar"),
        (["-w", "0"], "`--workers` must be at least 1, got 0"),
        (["--steps", "0"], "`--steps` must be at least 1, got 0"),
        (["--batch", "-1"], "`--batch` must be at least 1, got -1"),
        (["--threads", "0"], "`--threads` must be at least 1, got 0"),
        (["--lr", "0"], "`--lr` must be positive and finite, got 0"),
        (["--epochs", "inf"], "`--epochs` must be positive and finite, got inf"),
        (["--seed", "-1"], "`--seed` must be from 0 to 2**64 - 1, got -1"),
        (["--steps", "1", "--epochs", "1"], "give one of them"),
        (["--batch", "9999"], "a step takes 39,996 examples"),
        (["--epochs", "0.0001"], "`--epochs 0.0001` is less than a step, since an epoch has 78"),
        (["--target", "95"], "is accuracy here and must be above 0 and at most 1, got 95"),
        (["--target", "nan"], "must be above 0 and at most 1, got nan"),
        (["-t", "gpt-char", "--target", "inf"], "bits per character here and must be positive"),
        (["--eval-every", "0"], "`--eval-every` must be at least 1, got 0"),
        (["--link", "fast"], "a link must be a rate"),
        (["--data", "/nowhere"], "/nowhere does not exist; `--data` must be a directory"),
        (["--data", "/dev/null"], "/dev/null is not a directory; `--data` must be a directory"),
        (["--data", "/dev"], "/dev holds no `train-images-idx3-ubyte.gz`"),
        (["-t", "gpt-char", "--data", "/nowhere"], "/nowhere cannot be read: No such file"),
        (["-t", "gpt-char", "--data", "/"], "/ cannot be read: Is a directory"),
        (["--json", "/dev/null/x.json"], "x.json cannot be written"),
        (["--report", "/dev/null/x"], "/dev/null/x cannot be made"),
        (["--report", "/dev/null"], "/dev/null is not a directory; a report needs one"),
        (["--report", "/proc/self"], "/proc/self/index.html cannot be written"),
    ],
)
def test_what_is_wrong_is_said_before_a_worker_starts(
    refused: Any, args: list[str], sentence: str
) -> None:
    assert sentence in refused(*args)


def test_a_refusal_leaves_no_directory(refused: Any, tmp_path: Path) -> None:
    refused("--report", str(tmp_path / "report"), "-c", "zip")
    assert not (tmp_path / "report").exists()


def test_training_goes_on_if_nobody_can_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings("mnist-fc", ("none",), 2, 20, 32, 0.05, 0, 1, None, None, None, 1)
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", full)
        Display(settings, quiet=False)(Remark("ndqsg: workers differ too much"))


def test_torchrun_and_workers_must_not_contradict(
    refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "3", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert "`--workers` is 2, but torchrun started 3" in refused("-w", "2")


def test_help_names_every_task_and_shows_an_example() -> None:
    app = typer.Typer()
    app.command()(train)
    text = CliRunner().invoke(app, ["--help"]).output
    assert "gradwire train -w 4" in text
    assert all(name in text for name in TASKS)


def test_full_mnist_files_are_read_packed_or_not(tmp_path: Path) -> None:
    for file in SUBSET.glob("*.gz"):
        (tmp_path / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    assert torch.equal(load_mnist(tmp_path).test.inputs, load_mnist().test.inputs)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"\0" * 16, lambda raw: b""])
def test_damaged_data_is_named(tmp_path: Path, damage: Any) -> None:
    shutil.copytree(SUBSET, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte.gz (is not|cannot)"):
        load_mnist(tmp_path)


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    shutil.copytree(SUBSET, tmp_path, dirs_exist_ok=True)
    labels = "-labels-idx1-ubyte.gz"
    shutil.copy(tmp_path / f"t10k{labels}", tmp_path / f"train{labels}")
    with pytest.raises(ValueError, match=r"`train` images and labels .* do not belong together"):
        load_mnist(tmp_path)


def test_the_subset_is_small_and_holds_every_digit() -> None:
    assert sum(file.stat().st_size for file in SUBSET.iterdir()) < 3_000_000
    for split in (load_mnist().train, load_mnist().test):
        assert torch.bincount(split.targets).min() > 0.07 * len(split)


def test_workers_see_every_example_once_per_epoch() -> None:
    numbers = torch.arange(20)
    of = partial(batches, Split(numbers, numbers), batch=3, seed=1, num_workers=2)
    epoch = [next(shard)[0] for rank in (0, 1) for shard in [of(rank=rank)] for _ in range(3)]
    seen = torch.cat(epoch).tolist()
    assert len(seen) == len(set(seen)) == 18
    assert torch.equal(next(of(rank=0))[0], epoch[0])
