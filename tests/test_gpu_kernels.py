"""The GPU kernels without a GPU: in Triton's interpreter, with every access checked.

What is compiled for real devices is looked at in `test_gpu_compiled.py`.
"""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from beside import Beside
from gradwire import kernels

pytest.importorskip("triton", reason="the GPU kernels need Triton: pip install gradwire[gpu]")

from gradwire.kernels import gpu

HERE = Path(__file__).parent
FOUND = {"bitmaps", "largest"}
"""Files of what selects values, and says where they are."""
SPECTRA = {"butterflies", "coefficients", "fourier", "kept"}
"""Files that only `spectra` needs."""
BESIDE = Beside([sys.executable, str(HERE / "gpu_worker.py")], {"TRITON_INTERPRET": "1"})
NAMES = [name for name in dir(kernels.Kernels) if not name.startswith("_")]


@pytest.fixture(scope="module")
def report():
    """What `gpu_worker.py` has found."""
    code, output = BESIDE.result()
    assert code == 0, output
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("name", gpu.__all__)
def test_every_kernel_equals_the_reference_and_touches_nothing_else(report, name):
    assert report["failures"][name] is None


def test_broken_kernels_are_noticed(report):
    """Those that touch what was not passed as such, others by their bits."""
    mutants = report["mutants"]
    assert len(mutants) >= 10
    assert [name for name, noticed in mutants.items() if noticed is None] == []


def test_numbers_are_rounded_to_nearest(report):
    assert report["rounding"]


def test_scales_of_many_tiles_are_folded_in_order(report):
    assert report["folding"] is None


def test_what_is_damaged_is_noticed(report):
    assert report["damage"] is None


@pytest.mark.parametrize(
    ("encode", "average"),
    [("quantize", "dequantize_mean"), ("quantize_rotated", "dequantize_rotated")],
)
def test_memory_is_read_and_written_once(report, encode, average):
    """By encoding with its scales, and by averaging what all peers have sent."""
    assert report["traffic"][encode] == [
        [32768, 0, 32768], [0, 64, 64], [0, 4096, 4096],
    ]  # fmt: skip
    *sent, mean = report["traffic"][average]
    assert sent == [[64, 0, 64]] * 3 + [[4096, 0, 4096]] * 3
    assert mean == [0, 32768, 32768]


def test_with_a_debt_memory_is_read_and_written_once_too(report):
    """Gradient, scales, codes, what will be owed, what was owed, and how much of that is due."""
    *vectors, shares = report["traffic"]["owing"]
    assert vectors == [
        [32768, 0, 32768], [0, 64, 64], [0, 4096, 4096], [0, 32768, 32768], [32768, 0, 32768],
    ]  # fmt: skip
    assert shares[1:] == [0, 8]


def test_a_kernel_that_is_not_there_says_so():
    for name in set(NAMES) - set(gpu.__all__):
        with pytest.raises(NotImplementedError, match=rf"no kernel `{name}` for GPUs.*\.cpu\(\)"):
            getattr(gpu, name)
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        _ = gpu.quantise


def test_kernels_have_the_signatures_of_the_protocol():
    assert set(gpu.__all__) <= set(NAMES)
    for name in gpu.__all__:
        declared = inspect.signature(getattr(kernels.Kernels, name))
        declared = declared.replace(parameters=list(declared.parameters.values())[1:])
        assert inspect.signature(getattr(gpu, name)) == declared, name


def test_every_kernel_is_in_the_file_of_its_operation():
    """Files are those of the protocol, but for the operations that docs/gpu.md says are missing."""
    folder, protocol = (
        {path.stem for path in Path(package.__file__).parent.glob("*.py")}
        for package in (gpu, kernels.protocol)
    )
    for name in gpu.__all__:
        kernel, declared = getattr(gpu, name), getattr(kernels.Kernels, name)
        assert kernel.__module__.split(".")[-1] == declared.__module__.split(".")[-1], name
    helpers = {
        "pack", "tiles", "blocks", "compiler", "bitmaps", "debt", "largest", "rotation", "gaussian",
    }  # fmt: skip
    assert folder - protocol == helpers | SPECTRA
    page = (HERE.parent / "docs" / "gpu.md").read_text()
    missing = page.split("## What is missing")[1].split("##")[0]
    assert [name for name in protocol - folder if f"`{name}`" not in missing] == []


def test_a_cuda_tensor_gets_them():
    assert kernels.for_device(torch.device("cuda:0")) is gpu


def test_without_triton_a_sentence_says_what_to_install():
    code = (
        "import sys, torch; sys.modules['triton'] = None; from gradwire import kernels; "
        "kernels.for_device(torch.device('cuda'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "need Triton, which is not installed: `pip install gradwire[gpu]`" in done.stderr


def test_other_devices_are_refused():
    with pytest.raises(NotImplementedError, match=r"CPU and CUDA tensors, got one on meta"):
        kernels.for_device(torch.device("meta"))
