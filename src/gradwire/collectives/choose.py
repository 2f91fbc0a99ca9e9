"""Which collective suits a codec, and which does not."""

from __future__ import annotations

from gradwire.codec import Codec, ReducibleCodec, SummableCodec

NAMES = ("all_reduce", "all_gather", "two_shot", "code_reduce")


def choose(codec: Codec, world: int) -> str:
    """The collective for `codec` among `world` workers."""
    if codec.collective is not None:
        return codec.collective
    if isinstance(codec, SummableCodec):
        return "all_reduce"
    return "all_gather" if world <= 2 else "two_shot"


def check(codec: Codec, collective: str, world: int = 1) -> None:
    """Refuse a pair that has no meaning, or terms that have no sum among `world` workers."""
    if collective not in NAMES:
        raise ValueError(f"`collective` must be one of {', '.join(NAMES)}, got {collective}.")
    if collective == "all_reduce" and not isinstance(codec, SummableCodec):
        raise TypeError(
            f"payloads of {codec!r} cannot be summed by all_reduce; use `{choose(codec, 3)}`, or a "
            "codec that can, `GlobalQSGD`."
        )
    if collective == "code_reduce" and not isinstance(codec, ReducibleCodec):
        raise TypeError(
            f"payloads of {codec!r} cannot be added as codes; use `{choose(codec, 3)}`, or a codec "
            "that can, such as `GlobalQSGD` or `Cast`."
        )
    if collective == "all_reduce" and isinstance(codec, SummableCodec):
        codec.term_nbytes(0, world)
    if collective == "code_reduce" and isinstance(codec, ReducibleCodec):
        codec.total_nbytes(0, world)
