"""Triton's interpreter with every access checked: what is touched must have been passed."""

import contextlib
from collections import Counter
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from triton.runtime import interpreter

from gradwire.kernels.reference.subspace import fused

MARGIN = 64
CANARY = 0xA5


class OutsideError(Exception):
    """A load or a store of something that no argument holds."""


class Framed(NamedTuple):
    """A copy of a tensor, with canaries before, behind and between its rows."""

    memory: torch.Tensor
    tensor: torch.Tensor

    def is_whole(self):
        """Are the canaries alive?"""
        inside = torch.zeros_like(self.memory, dtype=torch.bool)
        view(inside, self.tensor).fill_(True)
        return bool((self.memory[~inside] == CANARY).all())


def view(memory, like):
    """The bytes in `memory` that a framed copy of `like` has."""
    size = like.element_size()
    strides = (*(size * step for step in like.stride()), 1)
    return memory.as_strided((*like.shape, size), strides, MARGIN)


def framed(x):
    extent = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1
    nbytes = extent * x.element_size() if x.numel() else 0
    memory = torch.full((nbytes + 2 * MARGIN,), CANARY, dtype=torch.uint8)
    typed = memory[MARGIN : MARGIN + nbytes].view(x.dtype)
    copy = typed.as_strided(x.shape, x.stride()) if x.numel() else typed.view(x.shape)
    copy.copy_(x)
    return Framed(memory, copy)


def spans(x):
    """(start, stop) addresses of the rows of a tensor."""
    if not x.numel():
        return
    for row in x.view(1, -1) if x.is_contiguous() else x:
        yield row.data_ptr(), row.data_ptr() + row.numel() * row.element_size()


def fma(builder, x, y, z):
    """As devices have it: rounded once, where the interpreter would round the product too."""
    terms = (torch.from_numpy(np.array(each.data, np.float32)) for each in (x, y, z))
    return interpreter.TensorHandle(fused(*terms).numpy(), z.dtype.scalar)


class Watch:
    """While it is entered, launches may touch `tensors` and their own arguments, nothing else.

    `read` and `written` count the bytes by the address where a span of `tensors` starts.
    """

    def __init__(self, tensors):
        self.given = [span for x in tensors for span in spans(x)]
        self.read, self.written = Counter(), Counter()
        self.starts = self.stops = np.array([], np.uint64)

    def allow(self, launched):
        """Those given, and the arguments of a launch; what overlaps is one span."""
        merged = []
        for start, stop in sorted({*self.given, *(s for x in launched for s in spans(x))}):
            if merged and start < merged[-1][1]:
                merged[-1][1] = max(stop, merged[-1][1])
            else:
                merged.append([start, stop])
        self.starts, self.stops = np.array(merged or [[0, 0]], np.uint64).T

    def check(self, pointers, mask, counter):
        size = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
        touched = np.broadcast_to(pointers.data, np.broadcast(pointers.data, mask).shape)
        self.touch(touched[np.broadcast_to(mask, touched.shape)].astype(np.uint64), size, counter)

    def touch(self, touched, size, counter):
        """Check, and count, accesses of `size` bytes at addresses."""
        span = np.searchsorted(self.starts, touched, side="right").astype(np.int64) - 1
        bad = (span < 0) | (touched + np.uint64(size) > self.stops[span])
        if bad.any():
            raise OutsideError(f"{int(bad.sum())} of {touched.size} elements of {size} bytes")
        for start, count in zip(*np.unique(span, return_counts=True), strict=True):
            counter[int(self.starts[start])] += int(count) * size

    @contextlib.contextmanager
    def entered(self):
        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        load, store = builder.create_masked_load, builder.create_masked_store
        start, patch, fma_of_two = executor.__call__, interpreter._patch_lang, builder.create_fma
        patched = set()

        def patch_once(function):
            """Triton patches its language for each call of each function: once a file will do."""
            if id(function.__globals__) in patched:
                return SimpleNamespace(restore=lambda: None)
            patched.add(id(function.__globals__))
            return patch(function)

        def checked_load(this, ptrs, mask, *rest):
            self.check(ptrs, mask.data, self.read)
            return load(this, ptrs, mask, *rest)

        def checked_store(this, ptrs, value, mask, *rest):
            self.check(ptrs, mask.data, self.written)
            return store(this, ptrs, value, mask, *rest)

        def checked_start(this, *args, **kwargs):
            patched.clear()
            self.allow([x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)])
            return start(this, *args, **kwargs)

        builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
        executor.__call__, interpreter._patch_lang = checked_start, patch_once
        builder.create_fma = fma
        try:
            yield self
        finally:
            builder.create_masked_load, builder.create_masked_store = load, store
            executor.__call__, interpreter._patch_lang = start, patch
            builder.create_fma = fma_of_two
