"""The command line, in this process where it can be and in one of its own where it must."""

import inspect
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import gradwire
from gradwire.cli import codecs as codecs_command
from gradwire.cli.app import app
from gradwire.codecs import REGISTRY

SMALL = ["bench", "--numel", "5000", "--repeat", "1", "--seconds", "0"]


@pytest.fixture(autouse=True)
def no_columns(monkeypatch):
    """Text that no terminal shows is 100 wide."""
    monkeypatch.delenv("COLUMNS", raising=False)


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def run_alone(*arguments: str):
    command = [sys.executable, "-m", "gradwire", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_json_alone_goes_to_standard_output():
    done = run_alone(*SMALL, "-c", "qsgd:levels=7", "-c", "none", "--json", "-")
    assert done.returncode == 0
    assert [row["codec"] for row in json.loads(done.stdout)] == ["qsgd:levels=7", "none"]
    assert "memcpy" in done.stderr
    assert "\x1b" not in done.stderr


def test_mistakes_leave_no_traceback():
    done = run_alone("bench", "-c", "qsgd:bits=99")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "Error: `bits` must be an integer from 2 to 8, got 99.\n"


def test_interrupt(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradwire.lab.bench.Bench.run", interrupted)
    ended = run(*SMALL)
    assert (ended.exit_code, ended.output) == (130, "")


def test_version():
    assert run("--version").output == f"gradwire {gradwire.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [[], ["codecs"], ["bench"], ["train"], ["inspect"], ["probe"], ["plan"], ["selftest"]],
)
def test_help_has_a_worked_example(command):
    shown = run(*command, "--help")
    assert shown.exit_code == 0
    assert "Example" in shown.output
    assert f"gradwire {' '.join(command)}".strip() in shown.output.split("Example", 1)[1]


def examples() -> list[str]:
    """The lines of the help texts that are commands, or Python that comes before them."""
    texts = [inspect.getdoc(command.callback) for command in app.registered_commands]
    texts.append(inspect.getdoc(app.registered_callback.callback))
    return [line.strip() for text in texts for line in text.splitlines() if line.startswith("    ")]


def test_examples_of_the_help_run(tmp_path, monkeypatch):
    """All of them, but for the time that they take."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gradwire.lab.workers.run", lambda *args: None)
    monkeypatch.setattr("gradwire.lab.links.access.prepare", lambda shape: None)
    python, ran = {}, set()
    for line in examples():
        program, *words = line.split()
        if words[:1] == ["selftest"]:  # test_selftest.py runs it, with workers
            continue
        if program == "gradwire":
            quick = ["--seconds", "0", "--repeat", "1", "--numel", "1000"]
            done = run(*words, *(quick if words[0] == "bench" else []))
            assert done.exit_code == 0, done.output
            ran.add(words[0])
        elif program == "torchrun":
            assert words[words.index("-m") + 1] == "gradwire"
        else:
            exec(line, python)
    assert ran == {"codecs", "bench", "train", "inspect", "probe", "plan"}
    assert len(json.loads((tmp_path / "codecs.json").read_text())) == len(REGISTRY)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-c", "qsdg"], "Did you mean 'qsgd'?"),
        (["-c", "qsgd:bit=4"], "is not a setting of qsgd"),
        (["--numel", "0"], "`--numel` must be at least 1, got 0."),
        (["--threads", "-1"], "`--threads` must be at least 1, got -1."),
        (["--repeat", "0"], "`--repeat` must be at least 1, got 0."),
        (["--seconds", "nan"], "`--seconds` must be 0 or more, got nan."),
        (["--threads", "9999999"], "`--threads` must be at most 1024, got 9999999."),
        (["--seed", "-1"], "`--seed` must be from 0 to 2**64 - 1, got -1."),
        (["--json", "no/such/directory/file"], "cannot be written: No such file or directory."),
        (["--json", os.curdir], "cannot be written: Is a directory."),
        (["--numel", "9" * 14], "there is no memory for 99,999,999,999,999 values"),
        (["--dtype", "int8"], "int8"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, complaint):
    refused = run("bench", *arguments)
    assert refused.exit_code == 2
    assert complaint in refused.output
    assert "Traceback" not in refused.output


def test_refusal_leaves_no_file(tmp_path):
    path = tmp_path / "rows.json"
    assert run(*SMALL, "-c", "nothing", "--json", str(path)).exit_code == 2
    assert not path.exists()


def test_table_and_file(tmp_path):
    path = tmp_path / "rows.json"
    done = run(*SMALL, "-c", "fp16", "--json", str(path), "--dtype", "bfloat16")
    assert done.exit_code == 0
    assert "fp16" in done.output
    assert max(len(line) for line in done.output.splitlines()) <= 100
    assert [row["dtype"] for row in json.loads(path.read_text())] == ["bfloat16"]


def test_codecs_are_listed():
    listed = json.loads(run("codecs", "--json", "-").stdout)
    assert [codec["name"] for codec in listed] == list(REGISTRY)
    by_name = {codec["name"]: codec for codec in listed}
    assert by_name["fp16"]["error_feedback"] and by_name["fp16"]["summable"] == "owners"
    assert by_name["none"]["summable"] == "network"
    qsgd = by_name["qsgd"]
    assert qsgd["settings"]["block"] == 512
    assert qsgd["unbiased"] and not qsgd["summable"] and not qsgd["error_feedback"]
    assert qsgd["collectives"] == {"2": "all_gather", "4": "two_shot"}
    bits = {example["spec"]: example["bits_per_value"] for example in qsgd["examples"]}
    assert bits["qsgd"] == pytest.approx(4 + 32 / 512, abs=1e-4)
    assert bits["qsgd:bits=4,wire=zstd"] is None
    assert by_name["gradiveq"]["examples"][0]["bits_per_value"] is None
    assert by_name["powersgd"]["collectives"] == {"2": "low_rank", "4": "low_rank"}


def test_defaults_are_what_they_become():
    listed = {codec["name"]: codec["settings"] for codec in codecs_command.describe()}
    assert listed["dqsg"] == {
        "levels": 3, "step": None, "bits_per_value": None, "block": 512, "wire": "packed"
    }  # fmt: skip
    for name, settings in listed.items():
        given = {key: value for key, value in settings.items() if value is not None}
        assert settings == {} or REGISTRY[name].make(**given) == REGISTRY[name].make()
    shown = " ".join(run("codecs").output.split())
    assert "levels=3, block=512, wire=packed; not set: step, bits_per_value" in shown


@pytest.mark.parametrize("width", [40, 60])
def test_codecs_are_spelled_out_at_any_width(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = run("codecs").output
    assert max(map(len, shown.splitlines())) <= width
    joined = "".join(shown.split())
    assert all(example in joined for entry in REGISTRY.values() for example in entry.examples)


def test_codecs_for_people():
    shown = run("codecs").output
    assert all(example in shown for entry in REGISTRY.values() for example in entry.examples)
    assert max(len(line) for line in shown.splitlines()) <= 100
