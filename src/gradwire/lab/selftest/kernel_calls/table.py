"""Calls, and the table that those of every kernel are put into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

FLOATS = [torch.float32, torch.float16, torch.bfloat16]


class Call(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    how: dict[str, Any]


Calls = Callable[[int, torch.dtype], Iterator[Call]]


class Row(NamedTuple):
    """The calls of one kernel, and the types of floats that it takes."""

    calls: Calls
    dtypes: list[torch.dtype]


TABLE: dict[str, Row] = {}


def float32_only(calls: Calls) -> Calls:
    """Puts calls of a kernel that takes no other floats into the table."""
    TABLE[calls.__name__] = Row(calls, FLOATS[:1])
    return calls


def every_float(calls: Calls) -> Calls:
    """Puts calls of a kernel that reads floats of every type into the table."""
    TABLE[calls.__name__] = Row(calls, FLOATS)
    return calls


def call(*args: Any, **how: Any) -> Call:
    return Call(args, how)
