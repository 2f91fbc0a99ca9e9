"""Two ranks on two processors: one runs code for any x86, the other code for this machine.

Both train through every example of the registry, and their means and states are equal bit for bit.
The kernels of the generic one are compiled once and kept beside the others.
"""

import hashlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from beside import Beside
from gradwire.codecs import global_qsgd
from gradwire.kernels import exact
from gradwire.reduction import checkpoint
from laws import EXAMPLES
from world import World, data
from world import _serve as serve

HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
GENERIC = {
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "default",
    "NUMBA_CACHE_DIR": str(HOME / "gradwire" / "generic"),
}
NATIVE = {name: value for name, value in os.environ.items() if name not in GENERIC}
"""Code for this machine, even if these tests themselves run on the generic processor."""
STEPS, LEARNING_STEPS = 5, 15
PHASES = "slice=64,energy=0.2,warmup_steps=2,train_steps=8,compress_steps=3"
PASS = "golden or equals_the_reference and not float16"
"""Also runs on the generic processor: float32, since other types are only read differently."""
HERE = Path(__file__).parent
BESIDE = Beside(
    [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", PASS,
     str(HERE / "test_wire.py"), str(HERE / "test_kernels.py")],
    GENERIC,
)  # fmt: skip
SUMS_SQUARES = "global-qsgd:levels=5,norm=l2,block=1024"


class TwoProcessors(World):
    """Two ranks, each started by itself: what they have in their environment is read at once."""

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        store = Path(tempfile.mkdtemp()) / "store"
        for rank, environment in enumerate((NATIVE | GENERIC, NATIVE)):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, 2, store, theirs))
            with mock.patch.dict(os.environ, environment, clear=True):
                process.start()
            self._workers.append((process, ours))


@pytest.fixture(scope="module")
def processors() -> Iterator[World]:
    world = TwoProcessors(2)
    yield world
    world.close()


def brief(spec: str) -> str:
    """The example itself, but with phases so short that a few steps pass through all of them."""
    if not spec.startswith("gradiveq"):
        return spec
    given = dict(item.split("=", 1) for item in spec.partition(":")[2].split(",") if item)
    settings = given | dict(item.split("=") for item in PHASES.split(","))
    return "gradiveq:" + ",".join(f"{name}={value}" for name, value in settings.items())


def digest(value: object) -> str:
    """Of tensors, the bytes; of everything else, how it is written."""
    if isinstance(value, Tensor):
        return hashlib.sha256(value.detach().contiguous().view(torch.uint8).numpy()).hexdigest()
    if isinstance(value, dict):
        return str({key: digest(item) for key, item in value.items()})
    return str([digest(v) for v in value]) if isinstance(value, tuple | list) else repr(value)


def train(rank: int, spec: str, sqrt: str = "exact") -> tuple[list[str], list[str], set[str], int]:
    """Digests of the means and of the common states of all steps; phases; fallbacks."""
    torch.manual_seed(7)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(70, 90), nn.Tanh(), nn.Linear(90, 11)))
    handle = gw.attach(ddp, gw.parse(brief(spec)), min_numel=64)
    means, states, phases = [], [], set()
    with mock.patch.object(global_qsgd, "sqrt", SQRT[sqrt](rank)):
        for step in range(LEARNING_STEPS if "gradiveq" in spec else STEPS):
            common, own = data(0, 32 * 70, seed=step), data(rank + 1, 32 * 70, seed=step)
            ddp((common + 0.02 * own).view(32, 70)).square().mean().backward()
            means.append(digest([p.grad for p in ddp.parameters()]))
            for parameter in ddp.parameters():
                parameter.data.sub_(parameter.grad * 0.125)
                parameter.grad = None
            saved = handle.state_dict()
            del saved[f"rank{rank}"]
            saved["learned"] = checkpoint.unpack(saved["learned"])
            states.append(digest(saved))
            for parameters in saved["learned"].values():
                learned = parameters["0.weight"]
                if "phase" in learned:
                    phases.add(learned["phase"] + " with a basis" * (learned["basis"] is not None))
    fallbacks = handle.stats().counts.get("fallbacks", 0)
    handle.close()
    return means, states, phases, fallbacks


SQRT = {
    "exact": lambda rank: exact.sqrt,
    "off by one": lambda rank: exact.sqrt if rank else _next_root,
    "fused": lambda rank: lambda x: torch.add(exact.sqrt(x), exact.sqrt(x), alpha=1 / 3),
}
"""Roots of Global-QSGD's scales: as they are, wrong on one rank, and as a processor likes."""


def _next_root(x: Tensor) -> Tensor:
    root = exact.sqrt(x).numpy()
    return torch.from_numpy(np.nextafter(root, np.float32(np.inf)))


def capability(rank: int) -> tuple[str, str]:
    from numba.core import config  # of this process

    return torch.backends.cpu.get_cpu_capability(), str(config.CPU_NAME)


def test_the_processors_are_two(processors):
    generic, native = processors.run(capability)
    assert generic == ("DEFAULT", "generic")
    assert native[1] == "None"


@pytest.mark.parametrize("spec", EXAMPLES)
def test_means_and_states_are_bitwise_equal(processors, spec):
    (means, states, phases, fallbacks), other = processors.run(train, spec)
    assert means == other[0]
    assert states == other[1]
    assert fallbacks == 0, "nothing nested was sent"
    if spec.startswith("gradiveq"):
        assert {"warmup", "train", "compress with a basis", "deliver"} <= phases


@pytest.mark.parametrize("sqrt", ["off by one", "fused"])
def test_a_difference_in_the_last_bit_is_noticed(processors, sqrt):
    """A root that one rank rounds otherwise, and a sum that only some processors round twice.

    Of torch's own functions, `add(alpha=)` and products of matrices differ between the two on any
    machine that can multiply and add at once; `torch.sqrt` does on some.
    """
    (means, *_), (others, *_) = processors.run(train, SUMS_SQUARES, sqrt)
    assert means != others


def test_golden_messages_and_kernels_on_the_generic_processor():
    """What a second machine would get, in a process of its own."""
    code, output = BESIDE.result()
    assert code == 0, output
    assert "passed" in output
