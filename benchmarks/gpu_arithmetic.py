"""What a compiled kernel computes otherwise than the reference has it: rounded once, or roughly.

For NVIDIA every instruction of the PTX that has to do with floats must be known to be exact, or
rounded to nearest: `add.f32` without `.rn` is not, since it may be fused, nor are `div.full`,
`.approx` and `.ftz`. For AMD the same is looked up in LLVM's code; what the assembler fuses is
seen only in kernels without a division or a root, which are made of fused multiply-adds.
"""

import re
from typing import Any

FUSED = {"add_products", "row_products", "column_products", "settle_outer"}
"""Kernels that are sums of fused multiply-adds, as the reference has them."""

_FLOATS = re.compile(r"\b[a-z]\w*(?:\.\w+)*\.(?:b?f16|b?f16x2|f32|f64)(?:\.\w+)*\b")
_EXACT = re.compile(
    r"""(?:add|sub|mul|div)\.rn\.f(?:32|64) | sqrt\.rn\.f64
    | (?:abs|neg|min|max|selp|mov|setp\.\w+(?:\.\w+)?)\.(?:b?f16|b?f16x2|f32|f64)
    | cvt\.(?:f64\.(?:f32|b?f16)|f32\.b?f16)
    | cvt\.rn\.(?:b?f16|f32|f64)\.\w+ | cvt\.rzi\.[su]\d+\.f\d+""",
    re.X,
)
_LOOSE = re.compile(
    r"\b(?:fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)\b(?= )|!fpmath|preserve-sign"
    r"|llvm\.(?:fmuladd|sqrt\.f32|exp|log|sin|cos|pow)\w*|__ocml_\w+"
    r"|llvm\.amdgcn\.(?:rcp|rsq|sqrt|exp2|log|fdiv|fmad|fmed3)[\w.]*"
)
_ASKED = re.compile(r"llvm\.fma\.\w+")
_DIVIDES = re.compile(r"\b(?:fdiv|[su]div|[su]rem)\b|llvm\.sqrt")
_FUSES = re.compile(r"\bv_(?:pk_)?(?:fma|mad|mac)\w*_f(?:16|32|64)")


def loose(name: str, kernel: Any) -> set[str]:
    """Instructions that might give other bits than the reference."""
    if "ptx" in kernel.asm:
        used = set(_FLOATS.findall(re.sub("//.*", "", kernel.asm["ptx"])))
        asked = {"fma.rn.f32"} if name in FUSED else set()
        return {op for op in used - asked if not _EXACT.fullmatch(op)}
    code, assembly = re.sub(";.*", "", kernel.asm["llir"]), kernel.asm["amdgcn"]
    found = set(_LOOSE.findall(code))
    if name not in FUSED:
        found |= set(_ASKED.findall(code))
        found |= set() if _DIVIDES.search(code) else set(_FUSES.findall(assembly))
    modes = dict(re.findall(r"amdhsa_float_(\w+) (\d)", assembly))
    return found | {f"{mode} {value}" for mode, value in modes.items()
                    if value != ("0" if mode.startswith("round") else "3")}  # fmt: skip
