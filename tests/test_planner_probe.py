"""The probe, among real workers: what it measures is whole, and a plan can be made of it."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

import gradwire as gw
from gradwire.cli.app import app
from gradwire.lab.probe.model import Gradients
from gradwire.planner import profile
from gradwire.planner.messages import Messages

pytestmark = pytest.mark.slow
CODECS = ("none", "bf16", "qsgd:bits=4", "global-qsgd", "gradiveq")


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(200, 300), nn.BatchNorm1d(300), nn.Linear(300, 40))


def run_probe(rank):
    ddp = DistributedDataParallel(small())
    before = {name: value.clone() for name, value in ddp.state_dict().items()}
    found = gw.probe(ddp, torch.randn(8, 200), codecs=CODECS, seconds=2.5)
    same = all(torch.equal(value, before[name]) for name, value in ddp.state_dict().items())
    bare = all(p.grad is None for p in ddp.parameters())
    return found.to_json(), same, bare


@pytest.fixture(scope="module")
def probed(worlds):
    return worlds[2].run(run_probe)


def read_again(found, folder):
    path = Path(folder) / "p.json"
    path.write_text(json.dumps([found]))
    return profile.read(path)


def test_a_probe_leaves_the_module_as_it_was(probed):
    assert all(same and bare for _, same, bare in probed)


def test_a_profile_is_whole_and_comes_back_from_its_file(probed, tmp_path):
    found = read_again(probed[0][0], tmp_path)
    assert found.codecs == CODECS
    assert found.to_json() == {**probed[0][0], "exchanges": tuple(probed[0][0]["exchanges"])}
    numbers = [*found.link.values(), found.raw_s, found.cast_s]
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert found.link["rate"] > 0
    assert set(found.curves) == {"all_reduce", "all_to_all", "all_gather"}
    times = [bucket["at_s"] for bucket in found.model["buckets"]]
    assert times == sorted(times)
    assert sum(sum(b["sizes"]) for b in found.model["buckets"]) == sum(
        p.numel() for p in small().parameters()
    )


def test_ranks_agree_on_the_link_and_on_what_codecs_cost(probed):
    (one, *_), (other, *_) = probed
    for part in ("link", "exchanges", "rates", "cores", "beside"):
        assert one[part] == other[part]


def test_bytes_of_exchanges_are_those_of_the_model(probed, tmp_path):
    """What a worker sends for a value, from counting and from the layout of messages."""
    found = read_again(probed[0][0], tmp_path)
    for spec in CODECS[1:]:
        expected = sum(Messages(spec, 2).per_value())
        assert found.work(spec).bytes_per_value == pytest.approx(expected, rel=2e-2), spec
        exchange = next(each for each in found.exchanges if each["codec"] == spec)
        assert exchange["buckets"] == [[300 * 40, 200 * 300]]  # without biases and batch norm


def test_one_whole_step_says_what_compute_loses(probed, tmp_path):
    found = read_again(probed[0][0], tmp_path)
    assert found.beside["codec"] in CODECS[1:4]  # gradiveq would have to learn first
    assert found.beside["step_s"] > 0
    assert 1.0 <= found.setting().slowdown <= 2.0


def test_a_plan_follows_from_a_profile_and_can_be_changed(probed, tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps([probed[0][0]]))
    runs = {
        "here": [], "slow": ["--bandwidth", "10mbit"], "large": ["--params", "1e9"],
        "many": ["--workers", "64", "--latency", "1ms"],
    }  # fmt: skip
    plain = {}
    for name, changes in runs.items():
        out = tmp_path / f"{name}.json"
        done = CliRunner().invoke(
            app, ["plan", "--profile", str(path), "--json", str(out), *changes]
        )
        assert done.exit_code == 0, done.output
        (found,) = json.loads(out.read_text())
        assert [row["codec"] for row in found["codecs"]] == list(CODECS)
        plain[name] = found["plain_s"]
    assert min(plain, key=plain.get) == "here"


def test_a_codec_that_was_not_probed_is_refused(probed, tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps([probed[0][0]]))
    done = CliRunner().invoke(app, ["plan", "--profile", str(path), "-c", "fft"])
    assert done.exit_code == 2
    assert "has not measured fft" in done.output


@pytest.mark.parametrize("text", ["", "[]", "{}", '[{"version": 1}]'])
def test_what_is_no_profile_is_refused(text, tmp_path):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no profile"):
        profile.read(path)


def test_a_profile_of_another_version_is_refused(probed, tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps([{**probed[0][0], "version": 99}]))
    with pytest.raises(ValueError, match="version 99"):
        profile.read(path)


def test_only_ddp_can_be_probed():
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        gw.probe(small(), torch.zeros(1))


def test_gradients_of_small_parameters_are_not_coded_so_not_measured():
    values = torch.arange(40_030.0)
    found = Gradients(values, ((200, 100), (30,), (2, 10_000))).coded()
    assert found.shapes == ((200, 100), (2, 10_000))
    assert torch.equal(found.values, torch.cat([values[:20_000], values[20_030:]]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "1"], "at least 2"),
        (["--task", "imagenet"], "mnist-cnn"),
        (["--task", "mnist-fc", "--params", "1e6"], "give one of them"),
        (["--seconds", "0"], "at least 1"),
        (["--params", "10"], "1e5 to 1e9"),
        (["-c", "nothing"], "no codec is called"),
    ],
)
def test_what_cannot_be_probed_is_a_sentence(arguments, words):
    done = CliRunner().invoke(app, ["probe", *arguments])
    assert done.exit_code == 2
    assert words in done.output


def test_the_command_starts_workers_and_writes_a_profile(tmp_path):
    path = tmp_path / "p.json"
    done = CliRunner().invoke(
        app,
        ["probe", "-w", "2", "--params", "2e5", "-c", "bf16", "--seconds", "1", "--json",
         str(path)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert profile.read(path).codecs == ("bf16",)
    assert "Gbit/s" in done.output or "Mbit/s" in done.output
