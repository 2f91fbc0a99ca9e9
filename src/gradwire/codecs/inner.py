"""A codec within a codec: `inner=`, for what is left of a gradient after a linear map."""

from __future__ import annotations

from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import SummableCodec
from gradwire.codecs.cast import Identity


def inner_codec(inner: SummableCodec | str | None) -> SummableCodec:
    """The codec that `inner` is or spells, with ";" for ","; float32 if it is None."""
    from gradwire.codecs import parse  # it knows the modules that ask

    if inner is None:
        return Identity()
    codec = parse(inner.replace(";", ",")) if isinstance(inner, str) else inner
    if not isinstance(codec, SummableCodec) or isinstance(codec, AdaptiveCodec):
        raise ValueError(
            f"`inner` must be a codec whose codes can be added, got {codec!r}; "
            "`fp16`, `bf16` and `global-qsgd` are."
        )
    return codec


def spelled_inner(inner: SummableCodec | str | None) -> str | None:
    """How a spec says it; None for float32.

    >>> spelled_inner("global-qsgd:block=64;bits=8"), spelled_inner("none")
    ('global-qsgd:bits=8;block=64', None)
    """
    codec = inner_codec(inner)
    return None if isinstance(codec, Identity) else str(codec).replace(",", ";")
