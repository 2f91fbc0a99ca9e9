"""Awkward calls of every kernel: a table over `Kernels`, whose tests are in `test_kernels.py`.

The files are those of `kernels/protocol`, and `table` and `values`, which they share. A function
there has the name of the kernel that it is for. Given a length and a type of floats, it
yields calls of that kernel; whoever runs one copies its arguments first. What is written to is
soiled before, so that values that a backend leaves out are seen. Inputs that only another kernel
can make are made by `cpu`.
"""

from gradwire.lab.selftest.kernel_calls import (  # noqa: F401  (they fill the table)
    dithered,
    elias,
    entropy,
    exponential,
    fields,
    floats,
    huffman,
    levels,
    lossless,
    low_rank,
    nested,
    philox,
    quantize,
    rotated,
    scales,
    sparse,
    spectra,
    subspace,
    sums,
    topk,
    turned,
)
from gradwire.lab.selftest.kernel_calls.table import TABLE, Call
from gradwire.lab.selftest.kernel_calls.values import LENGTHS

__all__ = ["LENGTHS", "TABLE", "Call"]
