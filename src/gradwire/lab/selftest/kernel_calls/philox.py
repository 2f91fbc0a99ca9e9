"""Calls of the random bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from gradwire.key import Key
from gradwire.lab.selftest.kernel_calls.table import Call, call, float32_only
from gradwire.lab.selftest.kernel_calls.values import KEY, random


@float32_only
def philox(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    counters = torch.randint(0, 2**32, (numel,), generator=random(0))
    for counter, key in itertools.product((counters, counters.view(-1, 1)), (KEY, Key())):
        yield call(counter, key)
