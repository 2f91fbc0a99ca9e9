"""`gradwire selftest` notices what is broken, names it, and says how to see it again."""

import json
import shlex

import pytest
import torch
from typer.testing import CliRunner

import gradwire as gw
from gradwire import kernels
from gradwire.cli.app import app
from gradwire.collectives import COLLECTIVES
from gradwire.kernels import cpu
from gradwire.lab import workers
from gradwire.lab.selftest import collectives, plan, trouble
from gradwire.lab.selftest.collectives import CollectiveCheck
from gradwire.lab.selftest.differences import difference
from gradwire.lab.selftest.kernel_calls.table import call
from gradwire.lab.selftest.kernels import CPU, KernelCheck, few, moved
from gradwire.lab.selftest.plan import Plan
from gradwire.lab.selftest.records import Begun, Checked, Failure, Trained
from gradwire.lab.selftest.stages import stages
from gradwire.lab.selftest.training import TrainingCheck, judge
from gradwire.reduction.rehearsal import check_sizes
from gradwire.transport.gpu import Here


def run(*arguments):
    return CliRunner().invoke(app, ["selftest", *arguments])


@pytest.fixture
def in_here(monkeypatch, tmp_path):
    """Kernels are checked by this process, so that a test can break one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    monkeypatch.setattr(workers, "run", lambda job, count, listener, **how: job(listener))


# The command.


def test_real_workers_find_that_all_is_well(tmp_path):
    path = tmp_path / "report.json"
    only = ("--only", "kernels/philox", "--only", "collectives/qsgd/two_shot")
    done = run("--device", "cpu", *only, "--output", str(path))
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].startswith("All is well with gradwire")
    [report] = json.loads(path.read_text())
    found = {stage["stage"]: stage for stage in report["stages"]}
    assert {name: stage["cases"] for name, stage in found.items()} == {
        "kernels": 52,
        "collectives": 2 * len(collectives.NUMELS),
    }
    assert report["passed"]
    assert report["about"]["torch"] == torch.__version__


def one_bit_off(*args, **how):
    """`dequantize`, but for one value in long vectors."""
    cpu_dequantize(*args, **how)
    if args[2].numel() > 600:
        args[2].view(torch.int32)[599] ^= 1


cpu_dequantize = cpu.dequantize


def test_a_broken_kernel_is_named_and_can_be_looked_at_again(in_here, monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "dequantize", one_bit_off)
    broken = run("--device", "cpu", "--only", "kernels/dequantize", "--only", "kernels/philox")
    assert broken.exit_code == 1
    assert "Traceback" not in broken.output
    assert "All is not well" in broken.stdout.splitlines()[-1]
    assert broken.stdout.endswith("attach gradwire-selftest.json.\n")
    [report] = json.loads((tmp_path / "gradwire-selftest.json").read_text())
    [stage] = report["stages"]
    assert stage["failed"] > len(stage["failures"]) == 10
    first = stage["failures"][0]
    assert first["case"] == "kernels/dequantize/float32/1500/0"
    assert "1 of 1,500 values differs, number 599 is the first: expected" in first["what"]
    assert first["details"]["width"] == "2"
    program, command, *arguments = shlex.split(first["repeat"])
    assert (program, command) == ("gradwire", "selftest")
    again = run(*arguments)
    assert again.exit_code == 1
    assert "kernels: 1 kernel, 1 case: 1 FAILED" in again.output


def test_an_error_in_a_kernel_is_a_line(in_here, monkeypatch):
    def refuses(*args, **how):
        raise RuntimeError("an illegal memory access\nCompile with a debugger.")

    monkeypatch.setattr(cpu, "philox", refuses)
    done = run("--device", "cpu", "--only", "kernels/philox/float32/9")
    assert done.exit_code == 1
    assert "kernels/philox/float32/9/0: RuntimeError: an illegal memory access\n" in done.stdout


def test_a_kernel_that_the_device_has_not_is_no_failure(in_here, monkeypatch):
    class Few:
        def __getattr__(self, name):
            raise NotImplementedError(f"there is no `{name}` for GPUs yet.")

    monkeypatch.setattr(kernels, "for_device", lambda device: Few())
    said = []
    KernelCheck(Plan("cpu", ("kernels/philox",)))(said.append)
    assert said[1] == Checked("kernels/philox", 0, missing="there is no `philox` for GPUs yet.")


def test_a_codec_is_refused_in_certain_words_alone():
    """A payload that a GPU has damaged is an error of the same type."""
    device, codec = torch.device("cuda", 0), gw.parse("qsgd:wire=elias")
    with pytest.raises(ValueError, match="differ in size") as refused:
        check_sizes(codec, Here(device))
    with pytest.raises(ValueError, match=r"\w") as damaged:
        codec.decode(torch.zeros(3, dtype=torch.uint8), 100, gw.Key())
    assert trouble.is_refusal(refused.value, codec, device)
    assert trouble.is_refusal(NotImplementedError("no such kernel"), codec, device)
    assert not trouble.is_refusal(damaged.value, codec, device)
    assert not trouble.is_refusal(refused.value, gw.QSGD(bits=4), device)
    assert not trouble.is_refusal(refused.value, codec, CPU)


def test_a_worker_that_dies_is_a_failure_and_other_stages_go_on(monkeypatch):
    def dies(job, count, listener, **how):
        if isinstance(job, KernelCheck):
            listener(Begun("kernels/quantize", 1))
            raise workers.WorkerError("worker 1 was killed by SIGSEGV.")
        listener(Checked("collectives/none", 0, 3))

    monkeypatch.setattr(workers, "run", dies)
    first, second = stages(Plan("cpu", ("kernels", "collectives/none")), lambda done, what: None)
    [failure] = first.failures
    assert failure.what == "worker 1 was killed by SIGSEGV. Under way: kernels/quantize."
    assert (second.cases, second.failures) == (3, [])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--device", "tpu"], "tpu"),
        (["--device", "cpu", "--only", "kernel/philox"], "begins with one of kernels, collectives"),
        (["--device", "cpu", "--only", "kernels/filox"], "nothing that is called as"),
        (["--device", "cpu", "--output", "no/such/file"], "cannot be written"),
    ],
)
def test_what_cannot_be_tested_is_refused(arguments, complaint):
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert complaint in refused.output


@pytest.mark.parametrize(
    ("cuda", "available", "triton", "complaint"),
    [
        (None, False, True, "needs a PyTorch for CUDA or ROCm"),
        ("13.0", False, True, "needs a GPU, and PyTorch"),
        ("13.0", True, False, "needs Triton, which is not installed"),
        ("13.0", True, True, None),
    ],
)
def test_what_a_gpu_lacks_is_said(monkeypatch, cuda, available, triton, complaint):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(plan, "find_spec", lambda name: triton or None)
    if complaint is None:
        plan.check_device("cuda")
    else:
        with pytest.raises(ValueError, match=complaint):
            plan.check_device("cuda")


@pytest.mark.parametrize(
    ("count", "workers", "backend"), [(1, 2, "gloo"), (2, 2, "nccl"), (8, 8, "nccl")]
)
def test_gpus_get_a_worker_each_or_share_the_only_one(monkeypatch, count, workers, backend):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert (Plan("cuda").workers, Plan("cuda").backend) == (workers, backend)


# Kernels.


def test_what_shares_memory_goes_on_to_share_it():
    rows = torch.arange(12.0).view(3, 4)
    (a, [b]), same = moved(((rows[:, 1:3], [rows[1]]), rows), CPU, {})
    assert torch.equal(a, rows[:, 1:3])
    assert a.stride() == (4, 1)
    b[1] = -1
    assert a[1, 0] == same[1, 1] == -1
    assert rows[1, 1] == 5


def test_bits_are_compared_and_on_gpus_nan_with_nan():
    quiet, other = (
        torch.tensor([word], dtype=torch.int32).view(torch.float32)
        for word in (0x7FC00000, 0x7FC00001)
    )
    assert difference(torch.zeros(1), -torch.zeros(1)) is not None
    assert difference(quiet.clone(), other) is not None
    assert difference(quiet, other, any_nan=True) is None
    assert difference(quiet, torch.ones(1), any_nan=True) is not None
    assert "expected float32 of shape (1,), got uint8" in difference(quiet, other.view(torch.uint8))


def test_a_few_settings_are_from_all_over_the_table():
    calls = [call(numel, width=width) for width in range(20) for numel in (1, 2)]
    widths = [calls[i].how["width"] for i in few(calls)]
    assert widths == [w for w in range(0, 20, 4) for _ in range(2)]


# Workers.


def check_collectives(rank, only, off):
    """What a worker says; the last one gets other bits from the network, if asked to."""
    said, all_reduce = [], gw.all_reduce

    def unequal(x, *args, **how):
        all_reduce(x, *args, **how)
        x.view(torch.int32)[-1] += 1

    with pytest.MonkeyPatch.context() as patch:
        if off and rank == 1:
            patch.setattr(gw, "all_reduce", unequal)
        CollectiveCheck(Plan("cpu", only))(said.append)
    return said


def test_every_collective_is_tried(in_here, monkeypatch):
    monkeypatch.setattr(collectives, "NUMELS", (777,))
    specs = collectives.specs(Plan("cpu"))
    tried = {case.collective for spec in specs for case in collectives.cases(spec, CPU)}
    assert tried == {None, *COLLECTIVES}


def test_workers_get_the_mean_of_one_process(worlds):
    only = tuple(f"collectives/{spec}" for spec in ("none", "powersgd", "gradiveq", "ndqsg"))
    for said in worlds[2].run(check_collectives, only, False):
        checked = [each for each in said if isinstance(each, Checked)]
        assert {each.subject for each in checked} == set(only)
        assert all(each.cases > 10 and not each.failures for each in checked)


def test_a_worker_with_other_bits_is_named(worlds):
    only = ("collectives/qsgd/all_gather",)
    first, second = worlds[2].run(check_collectives, only, True)
    assert not first[-1].failures
    assert [failure.case for failure in second[-1].failures] == [
        f"collectives/qsgd/all_gather/{numel}" for numel in collectives.NUMELS
    ]
    assert second[-1].failures[0].what.startswith("worker 1: 1 of 1 values differs")


def train(rank, spec, broken):
    """By the reference, and by kernels of which one may be broken."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwire.lab.selftest.training.STEPS", 3)
        TrainingCheck(Plan("cpu", (f"training/{spec}",)), by_reference=True)(said.append)
        if broken:
            patch.setattr(cpu, "dequantize_mean", a_bit_too_long)
        TrainingCheck(Plan("cpu", (f"training/{spec}",)), by_reference=False)(said.append)
    return [each for each in said if isinstance(each, Trained)]


cpu_dequantize_mean = cpu.dequantize_mean


def a_bit_too_long(scales, codes, out, **how):
    cpu_dequantize_mean(scales, codes, out, **how)
    out *= 1 + 2**-10


def test_training_has_the_losses_of_the_reference_kernels(worlds):
    for broken in (False, True):
        answers = worlds[2].run(train, "qsgd", broken)
        expected, got = zip(*answers, strict=True)
        assert len(got[0].losses) == 3
        failures = list(judge(expected, got, exact=True))
        assert [failure.case for failure in failures] == ["training/qsgd"] * (2 * broken)


def test_trainings_are_judged():
    def ran(rank, losses, weights="a"):
        return Trained("training/qsgd", rank, losses, weights)

    def words(*got, exact=False):
        return [failure.what for failure in judge([ran(0, (2.0, 1.0))], got, exact=exact)]

    assert words(ran(0, (2.0, 1.001), "b")) == []
    assert words(ran(0, (2.0, 1.1), "b"))[0].startswith("worker 0: the loss of step 1 is 1.1")
    assert words(ran(0, (2.0, float("nan")))) != []
    assert words(ran(0, (2.0, 1.0), "b"), exact=True)[0].endswith("the reference kernels give")
    assert words(ran(0, (2.0, 1.0)), ran(1, (2.0, 1.0), "b"))[0].endswith("those of worker 0")


def test_a_worker_that_hangs_says_where(monkeypatch):
    said, ends = [], []
    monkeypatch.setattr(trouble, "PATIENCE_S", 0.0)
    monkeypatch.setattr("os._exit", ends.append)
    with trouble.in_time("collectives/qsgd", 1, said.append):
        while not ends:
            pass
    assert said == [
        Checked(
            "collectives/qsgd", 1, 1,
            (Failure("collectives/qsgd", "worker 1 was not done after 0 s"),),
        )
    ]  # fmt: skip
