"""The GPU kernels as compilers make them for devices that are not here.

`benchmarks/gpu_compile.py` does it for every kernel and target; here are some of each kind.
"""

import re
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="the GPU kernels need Triton: pip install gradwire[gpu]")

from triton.runtime.jit import JITFunction

import gpu_compile
from gpu_arithmetic import loose
from gpu_compile import distance, facts, sass, variants
from gpu_launches import TARGETS, THREADS, compiled
from gradwire.kernels import gpu
from gradwire.lab.selftest.kernel_calls import TABLE


def usual(name, target="sm_80"):
    """The most usual variant of a kernel."""
    return min((v for v in variants(name, target) if v.name == name), key=distance)


@pytest.fixture(scope="module", params=["sm_80", "gfx1100"])
def target(request, tmp_path_factory):
    """Compiled anew: nothing of earlier runs is used."""
    cache = gpu_compile.knobs.cache
    before, cache.dir = cache.dir, str(tmp_path_factory.mktemp("triton"))
    yield request.param
    cache.dir = before


@pytest.mark.parametrize("name", ["quantize", "dequantize_mean", "mean_floats"])
def test_nothing_spills_and_floats_travel_by_128_bits(target, name):
    kernel = compiled(usual(name, target), TARGETS[target])
    found = facts(kernel)
    assert found.spills == 0
    assert loose(name, kernel) == set()
    at_once = 2 if name == "mean_floats" else 3  # programs on a multiprocessor; float64 takes room
    assert at_once * THREADS * found.registers <= 65_536
    wide = {access for access in found.accesses if access.endswith("128")}
    assert wide >= ({"load 128"} if name != "dequantize_mean" else {"store 128"})


@pytest.mark.parametrize(
    ("hip", "name", "room"),
    [(None, "exp_dequantize", 255), (None, "dequantize", None), ("7.0", "exp_dequantize", None)],
)
def test_threads_that_need_it_are_given_all_registers(monkeypatch, hip, name, room):
    """On NVIDIA's devices; AMD's compiler does not know the option."""
    given = []

    def run(*args, maxnreg=None, **how):
        given.append(maxnreg)

    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(JITFunction, "run", run)
    call = next(TABLE[name].calls(513, torch.float32))
    getattr(gpu, name)(*call.args, **call.how)
    assert given == [room]


def test_products_are_fused_nowhere_else(target):
    """What would be is noticed, in the PTX and in AMD's assembly."""
    adding = next(v for v in variants("dequantize", target) if dict(v.constants)["ADD"])
    assert loose("dequantize", compiled(adding, TARGETS[target])) == set()
    fused = compiled(adding, TARGETS[target], enable_fp_fusion=True)
    assert loose("dequantize", fused)


@pytest.mark.parametrize(
    "op",
    ["add.f32", "mul.f64", "fma.rn.f32", "fma.rn.f64", "div.full.f32", "div.approx.f32",
     "sqrt.approx.f32", "sqrt.rn.f32", "ex2.approx.ftz.f32", "add.rn.ftz.f32", "rcp.rn.f32",
     "cvt.rz.f16.f32", "cvt.rni.f32.f32", "red.global.add.f32", "add.rn.f16x2"],
)  # fmt: skip
def test_an_instruction_that_rounds_otherwise_is_noticed(op):
    ptx = f"\tadd.rn.f32 \t%f1, %f2, %f3;\n\t@%p1 {op} \t%f1, %f2, %f3; // mul.rn.f32\n"
    assert loose("quantize", SimpleNamespace(asm={"ptx": ptx})) == {op}


@pytest.mark.parametrize(
    ("llir", "assembly", "found"),
    [
        ("%3 = fmul contract float %1, %2", "", "contract"),
        ("%3 = fdiv float %1, %2, !fpmath !4", "", "!fpmath"),
        ("call float @llvm.fmuladd.f32(", "", "llvm.fmuladd"),
        ("call float @llvm.fma.f32(", "", "llvm.fma.f32"),
        ("call float @llvm.amdgcn.rcp.f32(", "", "llvm.amdgcn.rcp.f32"),
        ("", "v_fmac_f32_e32 v1, v2", "v_fmac_f32"),
        ("", "\t.amdhsa_float_denorm_mode_32 0", "denorm_mode_32 0"),
        ("", "\t.amdhsa_float_round_mode_32 3", "round_mode_32 3"),
    ],
)
def test_the_same_of_amd_is_noticed(llir, assembly, found):
    kernel = SimpleNamespace(asm={"llir": llir, "amdgcn": assembly})
    assert loose("quantize", kernel) == {found}


def test_products_are_not_fused_with_sums():
    """In `accumulate` a product is added to what is there; by default Triton would fuse them."""
    adding = next(v for v in variants("dequantize") if dict(v.constants)["ADD"])
    exact = compiled(adding, TARGETS["sm_80"])
    fused = compiled(adding, TARGETS["sm_80"], enable_fp_fusion=True)
    assert not re.search(r"\bfma\.", exact.asm["ptx"])
    assert not re.search(r"\bFFMA\b", sass(exact))
    assert re.search(r"\bFFMA\b", sass(fused))


def test_products_are_fused_with_sums_where_the_reference_has_it():
    """In `combine` and nowhere beside: the squares of energies are added in two steps."""
    tile = next(v for v in variants("combine") if v.name == "add_products")
    code = compiled(tile, TARGETS["sm_80"]).asm["ptx"]
    assert set(re.findall(r"\bfma\.\S+", code)) == {"fma.rn.f32"}
    assert not re.search(r"\b(?:add|sub|mul)\S*\.f32", code)
    energies = next(v for v in variants("project") if v.name == "energies")
    assert not re.search(r"\bfma\.", compiled(energies, TARGETS["sm_80"]).asm["ptx"])


def test_divisions_and_roots_are_rounded_to_nearest_and_nothing_is_flushed():
    code = compiled(usual("quantize"), TARGETS["sm_80"]).asm["ptx"]
    assert set(re.findall(r"\bdiv\.\S*f32", code)) == {"div.rn.f32"}
    rooted = next(v for v in variants("block_scales")
                  if v.name == "block_scales" and dict(v.constants)["L2"])  # fmt: skip
    root = compiled(rooted, TARGETS["sm_80"]).asm["ptx"]
    assert set(re.findall(r"\bsqrt\.\S+", root)) == {"sqrt.rn.f64"}
    for text in (code, root):
        assert ".ftz" not in text
        assert not re.search(r"\b(?:add|sub|mul)\.f(?:32|64)", text)  # without .rn they may fuse
