"""Transforms: the textbook's, rotations to the last float, and the same bits in every kernel."""

import hashlib
import itertools
import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import scipy.fft
import torch

from gradwire.kernels import twiddles
from gradwire.kernels.cpu import transforms as cpu
from gradwire.kernels.reference import transforms as reference
from gradwire.lab.selftest.kernel_calls.spectra import signals
from gradwire.lab.selftest.kernel_calls.values import STORES, soiled

DOMAINS = ("fft", "dct")
SIZES = [2**i for i in range(17)]
LENGTHS = [0, 1, 2, 7, 8, 9, 63, 255, 256, 257, 1000, 2048, 2049, 5003]
CLOSE = 2.5e-7
"""Relative to the norm: two units of float32's last place, after up to 20 roundings."""


def gaussian(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def cut(numel, block):
    """Whole blocks, then the set bits of what is left, the highest first."""
    rest = numel % block
    return [block] * (numel // block) + [1 << i for i in range(16, -1, -1) if rest >> i & 1]


def textbook(domain, x, block):
    """The coefficients by another route, in float64."""
    out = []
    for part in torch.split(x, cut(x.numel(), block)):
        values, n = part.double().numpy(), part.numel()
        if domain == "dct" or n == 1:
            out.append(scipy.fft.dct(values, norm="ortho"))
            continue
        bins = np.fft.rfft(values) / math.sqrt(n)
        inner = math.sqrt(2) * np.stack((bins.real, bins.imag), 1)[1:-1].reshape(-1)
        out.append(np.concatenate((bins[:1].real, inner, bins[-1:].real)))
    return torch.from_numpy(np.concatenate(out))


def relative(got, expected):
    return float((got.double() - expected).norm() / expected.double().norm())


@pytest.mark.parametrize("domain", DOMAINS)
def test_spectra_are_the_textbook_ones_and_come_back(domain):
    for block in SIZES:
        x = gaussian(3 * block)
        c, y = torch.empty_like(x), torch.empty_like(x)
        cpu.transform(x, c, domain=domain, block=block)
        cpu.transform_back(c, y, domain=domain, block=block)
        assert relative(c, textbook(domain, x, block)) < CLOSE
        assert relative(y, x.double()) < 2 * CLOSE
        assert float(c.double().norm() / x.double().norm()) == pytest.approx(1, abs=CLOSE)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("block", [8, 256, 1024])
def test_what_is_left_is_cut_into_powers_of_two(domain, block):
    for numel in LENGTHS[1:]:
        x = gaussian(numel)
        c, y = torch.empty(numel), torch.empty(numel)
        cpu.transform(x, c, domain=domain, block=block)
        cpu.transform_back(c, y, domain=domain, block=block)
        assert relative(c, textbook(domain, x, block)) < CLOSE
        assert relative(y, x.double()) < 2 * CLOSE


@pytest.mark.parametrize(("name", "row"), [("levels", 5), ("split", 9), ("turns", 9)])
def test_one_number_wrong_by_little_is_not_close(monkeypatch, name, row):
    """The bound rejects tables of which one cosine is wrong by 2^-12."""
    right = twiddles.tables(64)
    wrong = getattr(right, name).copy()
    wrong[row, 0] += 2.0**-12 * (right.scale if name == "turns" else 1)
    monkeypatch.setattr(reference, "tables", lambda size: right._replace(**{name: wrong}))
    x, c = gaussian(640), torch.empty(640)
    reference.transform(x, c, domain="dct", block=64)
    assert relative(c, textbook("dct", x, 64)) > CLOSE


def test_halves_of_angles_are_exact_where_they_can_be():
    cos, sin = twiddles.circle(16)
    assert cos[[0, 4, 8, 12]].tolist() == [1, 0, -1, 0]
    assert sin[[0, 4, 8, 12]].tolist() == [0, 1, 0, -1]
    assert np.array_equal(cos, np.roll(sin, -4))
    assert np.array_equal(cos[1:], cos[:0:-1])


def cosine(angle, terms=14):
    """By its series, in fractions: as exact as `angle` is."""
    total, term = Fraction(0), Fraction(1)
    for k in range(1, terms):
        total += term
        term *= -angle * angle / ((2 * k - 1) * (2 * k))
    return total


PI = Fraction(math.pi) + Fraction(math.sin(math.pi))
"""The sine is what the float is short of."""


def test_roots_of_unity_are_right_to_the_stated_error():
    count = 1 << 18
    cos, sin = twiddles.circle(count)
    for k in [1, 2, 3, 1000, 12_345, 20_000, 32_767, 32_768]:
        error = abs(Fraction(float(cos[k])) - cosine(2 * PI * k / count))
        assert error < Fraction(1, 2**49)
        error = abs(Fraction(float(sin[k])) - cosine(PI / 2 - 2 * PI * k / count))
        assert error < Fraction(1, 2**49)
    error = abs(Fraction(float(cos[1001])) - cosine(2 * PI * 1000 / count))
    assert error > Fraction(1, 2**49)


def test_tables_are_the_same_on_every_machine():
    digest = hashlib.sha256()
    for size in SIZES[1:]:
        for part in twiddles.tables(size)[1:]:
            digest.update(np.asarray(part).tobytes())
    expected = "654bc6a839bba50d72ca20c9654d2aa005466c9898f1385993c815faa125c3fb"
    assert digest.hexdigest() == expected


@pytest.mark.parametrize("backend", [reference, cpu])
def test_transforms_work_in_place(backend):
    for domain in DOMAINS:
        x, c = gaussian(5003), torch.empty(5003)
        backend.transform(x, c, domain=domain, block=64)
        y = x.clone()
        backend.transform(y, y, domain=domain, block=64)
        assert torch.equal(y, c)
        backend.transform_back(c, x, domain=domain, block=64, weight=0.5)
        backend.transform_back(y, y, domain=domain, block=64, weight=0.5)
        assert torch.equal(y, x)


def turned(kernel, x, **how):
    """The bits of what `kernel` makes of `x`."""
    kernel(x, out := soiled(x.numel()), **how)
    return out.view(torch.int32).tolist()


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("block", [8, 16, 32, 64, 256, 1024])
def test_kernels_have_the_bits_of_the_reference(domain, block):
    how = {"domain": domain, "block": block}
    for x in itertools.chain.from_iterable(map(signals, (1, 513, 8 * block, 17 * block + 3))):
        assert turned(cpu.transform, x, **how) == turned(reference.transform, x, **how)
        for store in STORES:
            got = turned(cpu.transform_back, x, **how, **store)
            assert got == turned(reference.transform_back, x, **how, **store)


AT_ONCE = """
import sys, torch
from concurrent.futures import ThreadPoolExecutor
from gradwire.kernels import cpu
from gradwire.codecs.gaps import bitmap_nbytes
from gradwire.kernels.formats.spectra import Form, Kept

FORM = Form(1024, 1024, None, 1)

def turned(x):
    n = x.numel()
    sizes = FORM.scales_nbytes(n), bitmap_nbytes(n), FORM.codes_nbytes(n)
    kept = Kept(*(torch.empty(size, dtype=torch.uint8) for size in sizes))
    assert cpu.keep_spectra(x, [], kept, None, domain=sys.argv[1], form=FORM)
    return kept.codes

inputs = [torch.randn(50_000) for _ in range(4)]
expected = [turned(x) for x in inputs]
with ThreadPoolExecutor(4) as pool:
    for _ in range(100):
        assert all(map(torch.equal, pool.map(turned, inputs), expected))
"""


@pytest.mark.parametrize("domain", DOMAINS)
def test_kernels_that_run_at_once_use_memory_of_their_own(domain):
    """Numba gives an array back after its last use, though an address that was taken of it is still
    in use; with one arena for all, the next thread that asks gets that memory."""
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE, domain],
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
