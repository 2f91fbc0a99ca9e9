"""`gradwire inspect`: the budget adds up, and a bad file is one sentence."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

import gradwire as gw
from gradwire.cli import inspect as inspect_command
from gradwire.cli.inspect import inspect
from gradwire.codecs import REGISTRY
from gradwire.wire import Message
from laws import LEARNING, MESSAGES

app = typer.Typer()
app.command()(inspect)


def run(*arguments, stdin=None):
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)


@pytest.fixture
def message():
    return gw.encode(gw.QSGD(bits=2), torch.ones(50, 20), gw.Key(seed=8, step=7))


@pytest.mark.parametrize("shape", [(), (0, 3), (40, 30)])
@pytest.mark.parametrize("spec", MESSAGES)
def test_the_budget_adds_up(spec, shape, tmp_path):
    path = tmp_path / "x.gw"
    path.write_bytes(gw.encode(gw.parse(spec), torch.ones(shape)))
    done = run(path, "--json", "-")
    (said,) = json.loads(done.stdout)
    *parts, total = said["bytes"].values()
    assert sum(parts) == total == path.stat().st_size
    assert min(parts) >= 0
    assert (said["codec"], said["shape"]) == (str(gw.parse(spec)), list(shape))
    if said["numel"]:
        assert said["bits_per_value"]["total"] == 8 * total / said["numel"] == 32 * said["ratio"]


SPLIT = {
    "none": ["values"],
    "bf16": ["values"],
    "lossless": ["mark", "heads", "values"],
    "qsgd": ["scales", "codes"],
    "qsgd:bits=4,wire=zstd": ["scales", "codes"],
    "qsgd:bits=4,wire=elias": ["mark", "scales", "codes"],
    "dqsg": ["scales", "codes"],
    "dqsg:step=1.2": ["scales", "codes"],
    "ndqsg": ["head", "scales", "codes"],
    "eden": ["scales", "codes"],
    "global-qsgd": ["scales", "codes"],
    "thc": ["scales", "codes"],
    "global-qsgd:dither=exponential": ["scales", "codes"],
    "fft": ["head", "coefficients", "scales", "bitmap"],
    "fft:drop=0.9": ["head", "coefficients", "scales", "gaps"],
    "fft:drop=0": ["head", "coefficients", "scales"],
    "fft:wire=zstd": ["head", "frame"],
    "topk": ["head", "levels", "codes", "gaps"],
}


def test_every_codec_is_split():
    learning = {gw.parse(spec).name for spec in LEARNING}
    assert {gw.parse(spec).name for spec in SPLIT} | {"fp16"} == set(REGISTRY) - learning


@pytest.mark.parametrize("spec", SPLIT)
def test_what_the_parts_are(spec):
    codec, numel = gw.parse(spec), 5000
    message = gw.encode(codec, torch.randn(numel, generator=torch.Generator().manual_seed(0)))
    parts = Message.read(message).anatomy()
    assert list(parts) == ["header", *SPLIT[spec], "checksum"]
    assert sum(parts.values()) == len(message)
    if "scales" in parts:
        width = 2 if codec.name == "fft" else 4
        assert parts["scales"] == width * -(-numel // (codec.block or numel))
    if "coefficients" in parts:
        kept = codec.num_kept(numel, step=0)
        assert parts["coefficients"] == -(-kept // 8) * codec.bits


@pytest.mark.parametrize("spec", [spec for spec in SPLIT if "values" not in SPLIT[spec]])
def test_a_payload_too_short_for_its_parts_is_refused(spec):
    with pytest.raises(ValueError, match=r"bytes, expected \d+"):
        gw.parse(spec).anatomy(torch.zeros(3, dtype=torch.uint8), 5000)


def test_what_is_printed(message, tmp_path):
    (tmp_path / "x.gw").write_bytes(message)
    printed = run(tmp_path / "x.gw").stdout
    assert "50 x 20 (1,000 values)" in printed
    assert "seed=8, step=7" in printed
    assert "checksum ok" in printed
    assert ["scales", "8", "0.064", "0.0020"] in [line.split() for line in printed.splitlines()]
    assert run("-", stdin=message).stdout == printed


def test_one_value_is_not_values():
    assert "scalar (1 value) " in run("-", stdin=gw.encode("none", torch.tensor(1.0))).stdout


def test_a_standard_input_that_is_closed(monkeypatch):
    with pytest.raises(ValueError, match="standard input cannot be read: it is closed"):
        monkeypatch.setattr("sys.stdin", None)
        inspect_command._read(inspect_command.STDIN)


def test_json_goes_to_a_file_and_the_table_to_standard_output(message, tmp_path):
    done = run("-", "--json", tmp_path / "x.json", stdin=message)
    assert "bits/value" in done.stdout
    assert json.loads((tmp_path / "x.json").read_text())[0]["key"]["step"] == 7


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda m: b"", "at least 44 bytes, got 0"),
        (lambda m: b"PK\3\4" + bytes(10**6), "starts with b'GRDW'"),
        (lambda m: m[:-1], "cut short"),
        (lambda m: m + bytes(10**4), "something was added"),
        (lambda m: m[:-5] + b"\xff" + m[-4:], "checksum is wrong"),
    ],
)
def test_a_bad_message_is_one_sentence(message, damage, sentence):
    done = run("-", stdin=damage(message))
    assert done.exit_code == 1
    assert done.stdout == ""
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_cannot_be_read_or_written(message, tmp_path):
    for arguments in ([tmp_path / "none.gw"], [tmp_path], ["-", "--json", tmp_path]):
        done = run(*arguments, stdin=message)
        assert done.exit_code == 2
        assert "Error: " in done.stderr
        assert done.stderr.count("\n") == 1


def test_help_has_a_worked_example():
    assert "gradwire inspect x.gw" in run("--help").stdout
