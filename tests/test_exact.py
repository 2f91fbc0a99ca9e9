"""The same bits on every processor: how functions are computed, and what may not be called."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import special

import gradwire
from gradwire import kernels
from gradwire.kernels import exact

ROOT = Path(gradwire.__file__).parent
KERNELS = Path(kernels.__file__).parent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_square_roots_are_those_of_ieee(dtype):
    """Rounded to nearest: the square of no neighbour's middle lies between."""
    bits = torch.randint(0, 2**30, (20_000,), generator=torch.Generator().manual_seed(0))
    x = (bits.double() * 2.0**-12).to(dtype)
    root = exact.sqrt(x).numpy().astype(np.longdouble)
    half = np.spacing(exact.sqrt(x).numpy()).astype(np.longdouble) / 2
    true = np.sqrt(x.numpy().astype(np.longdouble))
    assert (np.abs(true - root) <= half * (1 + 1e-6)).all()


def test_sums_are_added_by_halves():
    values = torch.tensor([1.0, 2.0**-30, -1.0, 2.0**-30, 3.0, 0.5, 0.25])
    a, b, c, d, e, f, g = values.numpy()
    assert exact.tree_sum(values).numpy() == ((a + e) + (c + g)) + ((b + f) + d)
    assert torch.equal(exact.tree_sum(torch.empty(3, 0)), torch.zeros(3))


def test_functions_have_the_errors_that_they_state():
    x = np.linspace(-0.5, 0.5, 20_001)
    assert (
        np.abs(exact.sin_half_turns(torch.from_numpy(x)).numpy() - np.sin(np.pi * x)).max() < 4e-16
    )
    x = np.arange(-4000, 4000) / 1024
    cosine = special.cosdg(360 * x)
    assert np.abs(exact.cos_turns(torch.from_numpy(x)).numpy() - cosine).max() < 1e-15
    x = np.linspace(-600, 600, 20_001)
    assert max(abs(exact.exp(float(each)) / np.exp(each) - 1) for each in x) < 5e-16


def test_powers_of_two_are_pinned():
    """Steps of a budget travel as they are; these are not to depend on a library."""
    assert [exact.exp2(k, 256).hex() for k in (-2304, -1, 0, 1, 82, 255, 768)] == [
        "0x1.0000000000000p-9", "0x1.fe9d96b2a23d9p-1", "0x1.0000000000000p+0",
        "0x1.00b1afa5abcbep+0", "0x1.3fa4504ac801bp+0", "0x1.fe9d96b2a23d9p+0",
        "0x1.0000000000000p+3",
    ]  # fmt: skip
    for k in range(-2304, 769, 7):
        assert exact.exp2(k, 256) == pytest.approx(2.0 ** (k / 256), rel=3e-16)


BANNED = {
    "sqrt", "rsqrt", "exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "pow", "erf", "erfc",
    "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "sigmoid", "softmax", "logsumexp", "polar",
    "sum", "nansum", "mean", "nanmean", "std", "var", "prod", "cumsum", "cumprod", "norm",
    "vector_norm", "matrix_norm", "matmul", "mm", "addmm", "bmm", "baddbmm", "mv", "dot", "vdot",
    "inner", "einsum", "tensordot", "eigh", "qr", "svd", "topk", "lerp", "addcmul",
    "addcdiv", "addmv", "ldexp", "float_power", "dist", "cdist",
}  # fmt: skip
"""Calls whose last bit, or whose choice among equals, depends on the machine."""
FUSED = {"add", "sub", "subtract", "rsub"}
"""Calls that are exact unless they are given an `alpha`."""
EXACT = {("np", "sqrt"), ("math", "sqrt"), ("math", "ldexp"), ("math", "prod"), ("exact", None)}
MARK = "# bits: "
CHECKED = [
    path
    for pattern in (
        "codecs/**/*.py",
        "kernels/**/*.py",
        "collectives/*.py",
        "reduction/adaptation.py",
        "algorithms/**/*.py",
    )
    for path in sorted(ROOT.glob(pattern))
]


def inexact_calls(source):
    """(line, what) for every call that may differ between machines and does not say why it may."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        found = offence(node)
        around = lines[max(0, node.lineno - 2) : node.end_lineno] if found else []
        if found and not any(MARK in line for line in around):
            yield node.lineno, found


def offence(node):
    """What is inexact about a node; None if nothing is."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
        return "@"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        power = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
        literal = isinstance(node.left, ast.Constant) and isinstance(power, ast.Constant)
        return None if literal and isinstance(power.value, int) else "**"
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    owner, name = ast.unparse(node.func.value), node.func.attr.removesuffix("_")
    if (owner, node.func.attr) in EXACT or (owner, None) in EXACT:
        return None
    if name in BANNED or {"fft", "linalg"} & set(owner.split(".")):
        return f"{owner}.{node.func.attr}"
    fused = name in FUSED and any(keyword.arg == "alpha" for keyword in node.keywords)
    return f"{owner}.{node.func.attr}(alpha=)" if fused else None


@pytest.mark.parametrize("path", CHECKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_inexact_is_called(path):
    found = list(inexact_calls(path.read_text()))
    assert not found, f"use `kernels/exact.py`, or say `{MARK}` why the bits do not matter"


@pytest.mark.parametrize(
    "planted",
    [
        "torch.sqrt(x)", "x.sqrt_()", "x.double().exp()", "math.log2(x)", "x.sum(1)", "np.mean(x)",
        "torch.linalg.vector_norm(x)", "x @ y", "torch.fft.rfft(x)", "x.add_(y, alpha=2)",
        "x.topk(3)", "2.0**x", "x**0.5", "torch.special.erfc(x)", "x.lerp_(y, 0.5)",
    ],
)  # fmt: skip
def test_what_is_inexact_is_found(planted):
    """In one of the checked files, unless the line or the one above it says why it may be there."""
    source = (ROOT / "codecs" / "rate.py").read_text()
    assert list(inexact_calls(source)) == []
    assert len(list(inexact_calls(f"{source}\n{planted}\n"))) == 1
    assert list(inexact_calls(f"{source}\n{planted}  # bits: sent by one rank\n")) == []
    assert list(inexact_calls(f"{source}\n# bits: sent by one rank\n{planted}\n")) == []


def test_what_is_exact_is_not_found():
    exact_calls = "np.sqrt(x); math.sqrt(x); exact.exp(x); x.add_(y); sum(x); 2.0**-17; x.square()"
    assert list(inexact_calls(exact_calls)) == []


def cache_dirs(*folders, **environment):
    """Where a fresh process keeps the kernels that it compiles from each of `folders`."""
    bare = {name: os.environ[name] for name in os.environ if not name.startswith("NUMBA_CPU_")}
    code = (
        "import sys, pathlib; from gradwire.kernels.cpu.compiler import cache_dir; "
        "print(*(cache_dir(pathlib.Path(folder)) for folder in sys.argv[1:]), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, folders)], capture_output=True, text=True,
        check=True, env=bare | environment,
    )  # fmt: skip
    return done.stdout.split()


def changed(file, folder):
    """A copy of the kernels in which the last byte of `file` is another one."""
    shutil.copytree(KERNELS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    octets = bytearray((folder / file).read_bytes())
    octets[-1] ^= 1
    (folder / file).write_bytes(octets)
    return folder


def test_compiled_kernels_are_kept_by_what_they_are_compiled_from(tmp_path):
    """A byte of any file counts, but of those that nothing compiled has anything of."""
    files = [path.relative_to(KERNELS) for path in sorted(KERNELS.rglob("*.py"))]
    folders = [changed(file, tmp_path / str(i)) for i, file in enumerate(files)]
    own, *others = cache_dirs(KERNELS, *folders)
    same = {file for file, other in zip(files, others, strict=True) if other == own}
    assert same == {file for file in files if file.parts[0] in ("gpu", "protocol", "reference")}
    assert len(set(others)) == len(files) - len(same) + 1


def test_compiled_kernels_are_kept_by_their_processor():
    bare, generic, small = (
        cache_dirs(KERNELS, **environment)[0]
        for environment in ({}, {"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_FEATURES": "+sse2"})
    )
    assert len({bare, generic, small}) == 3


def test_what_is_compiled_in_comes_from_the_kernels():
    """`cpu` imports nothing else of gradwire, but the keys that its callers pass."""
    code = (
        "import sys; before = set(sys.modules); import gradwire.kernels.cpu; "
        "print(*(m for m in set(sys.modules) - before if m.startswith('gradwire.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert {"gradwire.kernels.cpu.sums", "gradwire.kernels.formats.layout"} <= modules
    assert {m for m in modules if not m.startswith("gradwire.kernels")} == {"gradwire.key"}
