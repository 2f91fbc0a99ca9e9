"""What is checked, on which device and by how many workers."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.util import find_spec

import torch

STAGES = ("kernels", "collectives", "training", "speed")


@dataclass(frozen=True)
class Plan:
    """What the user asked for; picklable, so that workers get it.

    `only` has the cases to run, or what their names begin with: `kernels`, `kernels/quantize`.
    """

    device: str
    only: tuple[str, ...] = ()
    thorough: bool = False

    @property
    def workers(self) -> int:
        """One a device, but at least two."""
        return 2 if self.device == "cpu" else max(2, torch.cuda.device_count())

    @property
    def backend(self) -> str:
        """NCCL wants a device for every worker."""
        few = self.device == "cpu" or torch.cuda.device_count() < self.workers
        return "gloo" if few else "nccl"

    def concerns(self, name: str) -> bool:
        """Is anything wanted of what is called so, or of what is below it?"""
        return not self.only or any(
            _within(name, each) or _within(each, name) for each in self.only
        )

    def includes(self, case: str) -> bool:
        """Is this case wanted?"""
        return not self.only or any(_within(case, each) for each in self.only)

    def repeat(self, case: str) -> str:
        """The command that runs a case again."""
        thorough = " --thorough" if self.thorough else ""
        return f"gradwire selftest --device {self.device}{thorough} --only {shlex.quote(case)}"

    def own_device(self, rank: int) -> torch.device:
        """That of a worker, who works on it from now on."""
        if self.device == "cpu":
            return torch.device("cpu")
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device


def default_device() -> str:
    """A GPU, if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Raise `ValueError` with a sentence that says what is missing."""
    if device == "cpu":
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise ValueError(
            f"`--device cuda` needs a PyTorch for CUDA or ROCm, and this is {torch.__version__}, "
            "for CPUs alone; install one (https://pytorch.org), or say `--device cpu`."
        )
    if not torch.cuda.is_available():
        raise ValueError(
            f"`--device cuda` needs a GPU, and PyTorch {torch.__version__} finds none; see whether "
            "`nvidia-smi` or `rocm-smi` does, or say `--device cpu`."
        )
    if find_spec("triton") is None:
        raise ValueError(
            "`--device cuda` needs Triton, which is not installed: `pip install gradwire[gpu]`, "
            "or say `--device cpu`."
        )


def check_only(only: tuple[str, ...]) -> None:
    """Raise `ValueError` for what no stage begins with."""
    for each in only:
        if each.partition("/")[0] not in STAGES:
            raise ValueError(
                f"`--only` begins with one of {', '.join(STAGES)}, as in kernels/quantize, "
                f"got {each}."
            )


def _within(name: str, place: str) -> bool:
    return name == place or name.startswith(place.rstrip("/") + "/")
