"""The codecs by their spec names, and the spelling ``name:setting=value,...``."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from gradwire.codec import Codec
from gradwire.codecs.cast import Cast, Identity
from gradwire.codecs.gradiveq import GradiVeQ
from gradwire.codecs.qsgd import QSGD


@dataclass(frozen=True)
class Entry:
    """What `gradwire codecs` says of a codec, and what the contract tests run."""

    make: Callable[..., Codec]
    summary: str
    examples: tuple[str, ...]


REGISTRY: dict[str, Entry] = {
    "none": Entry(Identity, "float32 as it is; trains bit for bit like plain DDP", ("none",)),
    "fp16": Entry(partial(Cast, "fp16"), "rounded to float16", ("fp16",)),
    "bf16": Entry(partial(Cast, "bf16"), "rounded to bfloat16", ("bf16",)),
    "qsgd": Entry(
        QSGD,
        "stochastic rounding to levels of the block's norm (Alistarh et al. 2017)",
        (
            "qsgd",
            "qsgd:bits=2,block=128",
            "qsgd:bits=8",
            "qsgd:levels=5,norm=l2,block=64",
            "qsgd:bits=4,wire=zstd",
            "qsgd:levels=1,norm=l2,block=none,wire=elias",
            "qsgd:bits=3,block=1024,wire=elias",
        ),
    ),
    "gradiveq": Entry(
        GradiVeQ,
        "coordinates in a subspace learned from earlier gradients (Yu et al. 2018)",
        ("gradiveq", "gradiveq:slice=2048,energy=0.9,inner=fp16"),
    ),
}


def parse(spec: str) -> Codec:
    """The codec that `spec` spells; `str(codec)` spells it back.

    >>> parse("qsgd:bits=2,block=128")
    QSGD(bits=2, levels=None, norm='max', block=128, wire='packed')
    >>> str(parse("qsgd:levels=7"))
    'qsgd:bits=4'
    """
    name, _, settings = spec.strip().partition(":")
    if name not in REGISTRY:
        near = difflib.get_close_matches(name, REGISTRY, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no codec is called {name!r}; there are {', '.join(REGISTRY)}.{hint}")
    make = REGISTRY[name].make
    known = _setting_names(make)
    values = {}
    for item in filter(None, settings.split(",")):
        setting, equals, text = item.partition("=")
        if not equals or setting not in known:
            raise ValueError(
                f"{item!r} in {spec!r} is not a setting of {name}; write `setting=value`, "
                f"settings are {', '.join(known) or 'none'}."
            )
        values[setting] = _value(text)
    return make(**values)


def _setting_names(make: Callable[..., Codec]) -> list[str]:
    if isinstance(make, partial):  # the spec name is the setting
        return []
    return [field.name for field in fields(make)]  # type: ignore[arg-type]


def _value(text: str) -> Any:
    """None, a bool, an int or a float if it reads as one; else the word itself."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return float(text) if set(text) & set(".en") else int(text)
    except ValueError:
        return text
