"""What commands print and write: full disks and Ctrl-C cost no results and give no traceback."""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import typer

import gradwire
from gradwire.codecs import REGISTRY
from gradwire.terminal.interrupts import interruptible
from gradwire.terminal.output import check_writable, console, deliver

GRADWIRE = [sys.executable, "-m", "gradwire"]
FULL = Path("/dev/full")
ROWS = [{"codec": "none", "nmse": 0.5}]
NO_ROOM = "cannot be written: No space left on device."

needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where results go that are left over."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


def refuse(error):
    raise OSError(error, os.strerror(error))


def run(*arguments, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.run([*GRADWIRE, *arguments], timeout=120, check=False, **options)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["train", "--help"]])
def test_version_and_help_do_not_wait_for_torch(arguments):
    code = (
        f"import sys; sys.argv = ['gradwire', *{arguments}]\n"
        "from gradwire.__main__ import main\n"
        "try: main()\n"
        "finally: sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "gradwire" in done.stdout


def test_names_are_there_when_they_are_used():
    code = (
        "import gradwire as gw, sys; assert 'torch' not in sys.modules\n"
        "assert gw.__version__ and gw.wire.Message and gw.QSGD(bits=4) == gw.parse('qsgd:bits=4')\n"
        "assert set(gw.__all__) <= set(dir(gw)) and not hasattr(gw, 'annotations')\n"
        "from gradwire import *; assert encode is gw.encode"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="module 'gradwire' has no attribute 'ecnode'"):
        gradwire.ecnode  # noqa: B018


def test_the_version_is_said_in_one_place():
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert gradwire.__version__ not in project
    assert 'dynamic = ["version"]' in project


@needs_full
def test_json_that_cannot_be_written_is_kept_and_the_table_shown(capsys, temporary):
    with pytest.raises(typer.Exit) as ended:
        deliver(ROWS, FULL, "the table")
    out, err = capsys.readouterr()
    (kept,) = temporary.iterdir()
    assert ended.value.exit_code == 1
    assert out == "the table\n"
    assert err == f"Error: {FULL} {NO_ROOM} The results are in {kept}.\n"
    assert json.loads(kept.read_text()) == ROWS


def test_a_file_that_fails_takes_no_other_along(capsys, tmp_path, temporary):
    file = tmp_path / "rows.json"
    files = {tmp_path / "index.html": partial(refuse, 28), tmp_path / "other": file.touch}
    with pytest.raises(typer.Exit):
        deliver(ROWS, file, "the table", files=files)
    out, err = capsys.readouterr()
    assert json.loads(file.read_text()) == ROWS
    assert out == "the table\n"
    assert err == f"Error: {tmp_path / 'index.html'} {NO_ROOM} The results are in {file}.\n"
    assert list(temporary.iterdir()) == []


def test_results_that_have_no_place_at_all_are_said(capsys, monkeypatch):
    monkeypatch.setattr("tempfile.mkstemp", lambda *args: refuse(28))
    with pytest.raises(typer.Exit):
        deliver(ROWS, None, "the table", files={Path("x"): partial(refuse, 28)})
    said = capsys.readouterr().err
    assert said.startswith(f"Error: x {NO_ROOM} ")
    assert json.loads(said[said.index("[") :]) == ROWS


@needs_full
def test_a_standard_output_that_is_full(temporary):
    with FULL.open("w") as full:
        done = run("codecs", stdout=full)
    (kept,) = temporary.iterdir()
    assert done.returncode == 1
    assert done.stderr == f"Error: standard output {NO_ROOM} The results are in {kept}.\n"
    assert json.loads(kept.read_text())[0]["name"] == "none"


@needs_full
def test_json_for_a_standard_output_that_is_full(capsys, monkeypatch, temporary):
    with FULL.open("w") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        with pytest.raises(typer.Exit):
            deliver(ROWS, Path("-"), "the table")
    (kept,) = temporary.iterdir()
    said = f"Error: standard output {NO_ROOM} The results are in {kept}.\n"
    assert capsys.readouterr().err == f"the table\n{said}"
    assert json.loads(kept.read_text()) == ROWS


@needs_full
@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_help_and_version_have_nothing_to_keep(argument, temporary):
    with FULL.open("w") as full:
        done = run(argument, stdout=full)
    assert (done.returncode, done.stderr) == (1, f"Error: standard output {NO_ROOM}\n")
    assert list(temporary.iterdir()) == []


@needs_full
def test_nowhere_to_complain():
    with FULL.open("w") as full:
        assert run("--version", stdout=full, stderr=full).returncode == 1


def test_a_reader_who_has_had_enough_is_no_failure(tmp_path, temporary):
    reader, writer = os.pipe()
    os.close(reader)
    file = tmp_path / "codecs.json"
    done = run("codecs", "--json", str(file), stdout=writer)
    os.close(writer)
    assert done.stderr == ""
    assert len(json.loads(file.read_text())) == len(REGISTRY)
    assert list(temporary.iterdir()) == []


SLOW = """
import os, time
print("importing", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise ImportError("torch could not be imported") from None
"""


@pytest.mark.parametrize("command", [["codecs"], ["bench"], ["train"], ["inspect", "-"]])
def test_ctrl_c_while_torch_is_imported(command, tmp_path):
    """A torch that never comes, and makes another error of an interrupt, as some modules do."""
    (tmp_path / "torch.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path), str(Path(gradwire.__file__).parents[1])])
    process = subprocess.Popen(
        [*GRADWIRE, *command], text=True, env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


def test_ctrl_c_in_the_work_cleans_up_and_is_130():
    cleaned = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(typer.Exit) as ended, interruptible():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        finally:
            cleaned.append(True)
    assert (ended.value.exit_code, cleaned) == (130, [True])
    assert signal.getsignal(signal.SIGINT) is before


def test_the_check_changes_nothing(tmp_path):
    old, new, link = tmp_path / "old", tmp_path / "new", tmp_path / "link"
    old.write_text("precious")
    link.symlink_to(new)
    for path in (old, new, link):
        check_writable(path)
    assert old.read_text() == "precious"
    assert not new.exists()
    assert link.is_symlink()


def test_the_check_does_not_open_a_pipe(tmp_path, monkeypatch):
    """Nobody reads it yet: to open it would be to wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(Path, "open", lambda *args: pytest.fail("it was opened"))
    check_writable(tmp_path / "pipe")


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("", 100), ("wide", 100), ("0", 100)])
def test_plain_text_is_as_wide_as_columns_say(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert console().width == width


def test_numbers_agree_with_their_nouns():
    """One worker is not `1 workers`, wherever a number stands before a noun."""
    plural = re.compile(r"\{[^}]*\} (worker|step|thread|value|example|parameter|time)(s|\(s\))")
    folder = Path(gradwire.__file__).parent
    files = [file for room in ("cli", "lab", "terminal") for file in (folder / room).glob("*.py")]
    found = {file.name: hits for file in files if (hits := plural.findall(file.read_text()))}
    assert found == {}
