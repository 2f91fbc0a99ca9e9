"""Every kernel of the device's backend, compared with the reference to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire import kernels
from gradwire.kernels import reference
from gradwire.lab.selftest.differences import difference
from gradwire.lab.selftest.kernel_calls import LENGTHS, TABLE, Call
from gradwire.lab.selftest.plan import Plan
from gradwire.lab.selftest.records import Begun, Checked, Failure, Say
from gradwire.lab.selftest.trouble import in_time, said_of

FEW_SETTINGS = 6
"""Of a kernel on a GPU, where each takes seconds to compile, unless all are asked for."""

CPU = torch.device("cpu")
Kernel = Callable[..., Any]


@dataclass(frozen=True)
class KernelCheck:
    """What a worker does; the workers share the kernels out, file by file."""

    plan: Plan

    def __call__(self, say: Say) -> None:
        """Check this worker's kernels."""
        torch.set_num_threads(1)
        rank = dist.get_rank()
        device = self.plan.own_device(rank)
        for name in _shares(names(self.plan), dist.get_world_size())[rank]:
            subject = f"kernels/{name}"
            say(Begun(subject, rank))
            with in_time(subject, rank, say):
                checked = self._checked(subject, name, rank, device)
            say(checked)
            if checked.failures and device.type == "cuda":
                torch.cuda.synchronize(device)  # raises if a kernel has broken the device's context

    def _checked(self, subject: str, name: str, rank: int, device: torch.device) -> Checked:
        try:
            kernel = getattr(kernels.for_device(device), name)
        except NotImplementedError as missing:
            return Checked(subject, rank, missing=str(missing))
        cases, failures = 0, []
        for case, call in self._calls(name):
            cases += 1
            what = complaint(getattr(reference, name), kernel, call, device)
            if what is not None:
                how = {setting: repr(value) for setting, value in call.how.items()}
                failures.append(Failure(case, what, how))
        return Checked(subject, rank, cases, tuple(failures))

    def _calls(self, name: str) -> Iterator[tuple[str, Call]]:
        """Those that are wanted, with names of their own."""
        row = TABLE[name]
        every = self.plan.device == "cpu" or self.plan.thorough
        for dtype in row.dtypes:
            short = str(dtype).removeprefix("torch.")
            for numel in LENGTHS:
                if self.plan.concerns(f"kernels/{name}/{short}/{numel}"):
                    calls = list(row.calls(numel, dtype))
                    chosen = range(len(calls)) if every else few(calls)
                    cases = ((f"kernels/{name}/{short}/{numel}/{i}", calls[i]) for i in chosen)
                    yield from (each for each in cases if self.plan.includes(each[0]))


def names(plan: Plan) -> list[str]:
    """The kernels to check."""
    return [name for name in TABLE if plan.concerns(f"kernels/{name}")]


def few(calls: Sequence[Call]) -> list[int]:
    """Numbers of calls with `FEW_SETTINGS` different settings, from all over the list."""
    settings = [repr(call.how) for call in calls]
    distinct = list(dict.fromkeys(settings))
    kept = set(distinct[:: -(-len(distinct) // FEW_SETTINGS)])
    return [i for i, setting in enumerate(settings) if setting in kept]


def complaint(right: Kernel, kernel: Kernel, call: Call, device: torch.device = CPU) -> str | None:
    """How a call of `kernel` on `device` differs from one of `right` on the CPU; None: it does not.

    If both return False, the arguments are damaged: what has been written then is not defined.
    """
    said, expected = outcome(right, call, CPU)
    try:
        answer, got = outcome(kernel, call, device)
    except Exception as error:  # whatever it is, it is what is to be reported
        return said_of(error)
    if answer != said:
        return f"it returns {answer}, the reference {said}"
    pairs = [] if said is False else zip(expected, got, strict=True)
    for place, pair in enumerate(pairs):
        wrong = difference(*pair, any_nan=device != CPU)
        if wrong is not None:
            return f"tensor {place} of arguments and result: {wrong}"
    return None


def outcome(kernel: Kernel, call: Call, device: torch.device) -> tuple[Any, list[Tensor]]:
    """What a call returns but tensors, and all that it was given and has made of it, on the CPU."""
    args = moved(call.args, device, {})
    said = kernel(*args, **call.how)
    tensors = [x.cpu() for x in _tensors((args, said)) if x.dtype != torch.bool]
    if isinstance(said, Tensor) and said.dtype != torch.bool:
        return "a tensor", tensors
    return bool(said) if isinstance(said, Tensor) else said, tensors


def moved(value: Any, device: torch.device, storages: dict[int, Tensor]) -> Any:
    """A copy; what shares memory goes on to share it, and strides stay as they are."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        if storage.data_ptr() not in storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            storages[storage.data_ptr()] = whole.to(device, copy=True)
        whole = storages[storage.data_ptr()].view(value.dtype)
        return whole.as_strided(value.size(), value.stride(), value.storage_offset())
    if isinstance(value, (tuple, list)):
        items = [moved(each, device, storages) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)


def _shares(chosen: Sequence[str], count: int) -> list[list[str]]:
    """Kernels of a file stay together: they have much in common that is compiled once."""
    files = list(dict.fromkeys(_file(name) for name in chosen))
    return [[n for n in chosen if files.index(_file(n)) % count == i] for i in range(count)]


def _file(name: str) -> str:
    return str(getattr(reference, name).__module__)
