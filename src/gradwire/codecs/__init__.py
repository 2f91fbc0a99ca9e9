"""The codecs by their spec names, and the spelling ``name:setting=value,...``."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

from gradwire.codec import Codec
from gradwire.codecs.cast import Cast, Identity
from gradwire.codecs.dqsg import DQSG
from gradwire.codecs.eden import EDEN
from gradwire.codecs.fft import FFTSparse
from gradwire.codecs.global_qsgd import GlobalQSGD
from gradwire.codecs.gradiveq import GradiVeQ
from gradwire.codecs.lossless import Lossless
from gradwire.codecs.ndqsg import NDQSG
from gradwire.codecs.powersgd import PowerSGD
from gradwire.codecs.qsgd import QSGD
from gradwire.codecs.settings import SpelledCodec
from gradwire.codecs.spelling import read_settings
from gradwire.codecs.thc import THC
from gradwire.codecs.topk import TopK


@dataclass(frozen=True)
class Entry:
    """What `gradwire codecs` says of a codec, and what the contract tests run."""

    make: Callable[..., SpelledCodec]
    summary: str
    examples: tuple[str, ...]


REGISTRY: dict[str, Entry] = {
    "none": Entry(Identity, "float32 as it is; trains bit for bit like plain DDP", ("none",)),
    "fp16": Entry(partial(Cast, "fp16"), "rounded to float16", ("fp16",)),
    "bf16": Entry(partial(Cast, "bf16"), "rounded to bfloat16", ("bf16",)),
    "lossless": Entry(
        Lossless, "every bit of every value, with exponents in a prefix code", ("lossless",)
    ),
    "qsgd": Entry(
        QSGD,
        "stochastic rounding to levels of the block's norm (Alistarh et al. 2017)",
        (
            "qsgd",
            "qsgd:bits=2,block=128",
            "qsgd:bits=8",
            "qsgd:levels=5,norm=l2,block=64",
            "qsgd:bits=4,wire=zstd",
            "qsgd:bits=4,wire=huffman",
            "qsgd:levels=1,norm=l2,block=none,wire=elias",
            "qsgd:bits=3,block=1024,wire=elias",
        ),
    ),
    "dqsg": Entry(
        DQSG,
        "quantization with a dither that the receiver subtracts (Abdi and Fekri 2019)",
        (
            "dqsg",
            "dqsg:levels=1,block=64",
            "dqsg:levels=7,block=none",
            "dqsg:levels=127,block=1024,wire=zstd",
            "dqsg:levels=3,wire=elias",
            "dqsg:step=1.2",
            "dqsg:step=0.25,block=512,wire=elias",
            "dqsg:step=0.5,block=64,wire=packed",
            "dqsg:step=0.1,wire=zstd",
            "dqsg:bits_per_value=2.0",
        ),
    ),
    "ndqsg": Entry(
        NDQSG,
        "dithered, and some workers lean on what the others have sent (Abdi and Fekri 2019)",
        (
            "ndqsg",
            "ndqsg:levels=7,ratio=5,alpha=0.9,nested_fraction=0.7,block=64",
            "ndqsg:levels=3,block=512,wire=packed",
        ),
    ),
    "eden": Entry(
        EDEN,
        "a random rotation, and the best levels for what that makes (Vargaftik et al. 2022)",
        ("eden", "eden:bits=1,block=512", "eden:bits=3,block=4096", "eden:bits=4"),
    ),
    "global-qsgd": Entry(
        GlobalQSGD,
        "levels of a norm that all workers share, summed without decoding (Xin et al. 2023)",
        (
            "global-qsgd",
            "global-qsgd:bits=8,norm=l2-max,block=64",
            "global-qsgd:levels=5,norm=l2,block=1024",
            "global-qsgd:bits=3,norm=max-l2,block=none",
            "global-qsgd:bits=4,dither=subtractive",
            "global-qsgd:bits=2,norm=l2,dither=subtractive",
            "global-qsgd:bits=4,dither=exponential",
            "global-qsgd:bits=8,block=1024,dither=exponential",
        ),
    ),
    "thc": Entry(
        THC,
        "a random rotation, and levels that all workers share and add (Li et al. 2024)",
        ("thc", "thc:bits=2,block=512", "thc:bits=3", "thc:bits=8,block=4096"),
    ),
    "fft": Entry(
        FFTSparse,
        "the largest coefficients of the spectrum, in range floats (Wang et al. 2020)",
        (
            "fft",
            "fft:drop=0.9,bits=6,mantissa=2,domain=auto",
            "fft:drop=0.5,domain=dct,block=64,wire=zstd",
            "fft:drop=0.99,bits=8,mantissa=3,domain=time",
            "fft:drop=0.9@0/0.5@4,block=1024",
            "fft:drop=0.8*cosine@100,bits=16,mantissa=9,block=64",
            "fft:drop=0,bits=none,domain=time,block=512",
        ),
    ),
    "topk": Entry(
        TopK,
        "the largest values of every block, in two bits each (Sarfi et al. 2025)",
        (
            "topk",
            "topk:density=0.03,bits=1,block=512",
            "topk:density=0.125,block=64",
            "topk:density=0.01,block=16384",
        ),
    ),
    "gradiveq": Entry(
        GradiVeQ,
        "coordinates in a subspace learned from earlier gradients (Yu et al. 2018)",
        (
            "gradiveq",
            "gradiveq:slice=2048,energy=0.9,inner=fp16",
            "gradiveq:inner=global-qsgd:bits=8;block=64",
        ),
    ),
    "powersgd": Entry(
        PowerSGD,
        "matrices by two thin factors, from a power iteration (Vogels et al. 2019)",
        (
            "powersgd",
            "powersgd:rank=1,inner=fp16",
            "powersgd:rank=6,inner=global-qsgd:bits=8;block=64",
        ),
    ),
}


def parse(spec: str) -> SpelledCodec:
    """The codec that `spec` spells; `str(codec)` spells it back.

    >>> parse("qsgd:bits=2,block=128")
    QSGD(bits=2, levels=None, norm='max', block=128, wire='packed')
    >>> str(parse("qsgd:levels=7"))
    'qsgd:bits=4'
    """
    if not isinstance(spec, str):
        raise TypeError(f"a spec is a string such as 'qsgd:bits=4', got {spec!r}.")
    name = spec.strip().partition(":")[0]
    _refuse_auto(name)
    if name not in REGISTRY:
        raise ValueError(
            f"no codec is called {name!r}; there are {', '.join(REGISTRY)}.{_hint(name)}"
        )
    make = REGISTRY[name].make
    try:
        return make(**read_settings(spec, _setting_names(make)))
    except RecursionError:
        raise ValueError("the spec has codecs within codecs, too many to unfold.") from None


def _hint(name: str) -> str:
    """The name that was probably meant: also if it is that of a class, or in capitals."""
    known = {type(entry.make()).__name__.lower(): spelled for spelled, entry in REGISTRY.items()}
    known |= {spelled: spelled for spelled in REGISTRY}
    near = difflib.get_close_matches(name.lower(), known, 1)
    return f" Did you mean {known[near[0]]!r}?" if near else ""


def _refuse_auto(name: str) -> None:
    """`auto` is taken where it can plan, and by nothing that asks for a codec."""
    if name == "auto":
        raise ValueError(
            "'auto' is no codec: it chooses one for each layer of a DDP module, and is for "
            "`gw.attach(ddp, 'auto')` and `gradwire train -c auto` alone; here name a codec, such "
            "as 'qsgd:bits=4'."
        )


def _setting_names(make: Callable[..., SpelledCodec]) -> list[str]:
    if isinstance(make, partial):  # the spec name is the setting
        return []
    return [field.name for field in fields(make)]  # type: ignore[arg-type]


def as_codec(codec: object) -> Codec:
    """`codec` itself, or what it spells; whoever takes a codec takes a spec too.

    >>> str(as_codec("qsgd:bits=2"))
    'qsgd:bits=2'
    """
    if isinstance(codec, str):
        return parse(codec)
    if not isinstance(codec, Codec):
        _refuse_auto(str(codec).partition(":")[0])
        raise TypeError(
            f"`codec` must be a codec such as `gw.QSGD(bits=4)` or its spec, got {codec!r}."
        )
    return codec
