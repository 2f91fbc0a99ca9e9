"""Calls of the mean of floats."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float
from gradwire.lab.selftest.kernel_calls.values import KEY, finite, huge, soiled, spoilt


@every_float
def mean_floats(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for count in (1, 2, 5):
        rows = soiled(count, numel + 16, dtype=dtype)[:, 8 : 8 + numel]
        for x in (finite, spoilt, lambda numel, dtype, _: huge(numel, dtype)):
            for seed, row in enumerate(rows):
                row.copy_(x(numel, dtype, seed))
            rows[-1, 300:301] = torch.inf
            for out_dtype in dict.fromkeys((dtype, torch.float32)):
                yield call(rows.clone(), soiled(numel, dtype=out_dtype), key=KEY, offset=1024)
        yield call(rows, soiled(numel, dtype=dtype), key=KEY)
