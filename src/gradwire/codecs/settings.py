"""How codecs are spelled, and the two ways to say how fine a quantizer is: `bits`, and `levels`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from gradwire.codec import Codec

DEFAULT_BITS = 4


@dataclass(frozen=True)
class SpelledCodec(Codec):
    """A codec that users can name.

    ``eval(repr(codec)) == codec``, and ``parse(str(codec)) == codec``.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in a spec, as in ``qsgd:bits=4``."""

    def settings(self) -> dict[str, Any]:
        """The settings that differ from their defaults, ready for JSON."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: v for name, v in asdict(self).items() if v != defaults[name]}

    def __str__(self) -> str:
        settings = ",".join(f"{name}={str(v).lower()}" for name, v in self.settings().items())
        return f"{self.name}:{settings}" if settings else self.name

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """The bytes of each part of the payload of `numel` values, in their order.

        Raises `ValueError` if it is too short to have them.
        """
        return {"payload": payload.numel()}


def sizes_up_to(rest: str, payload: Tensor, **parts: int) -> dict[str, int]:
    """For `anatomy`: parts of known sizes, and what is left of the payload as `rest`."""
    known = sum(parts.values())
    if payload.numel() < known:
        raise ValueError(f"the payload has {payload.numel()} bytes, expected {known} or more.")
    return {**parts, rest: payload.numel() - known}


def check_size(payload: Tensor, expected: int) -> None:
    """Refuse a payload of fixed size that has another one."""
    if payload.numel() != expected:
        raise ValueError(f"the payload has {payload.numel()} bytes, expected {expected}.")


@dataclass(frozen=True)
class ResolvedCodec(SpelledCodec):
    """A codec with fields `bits` and `levels`, of which either says how fine it is."""

    bits: int = DEFAULT_BITS
    levels: int | None = None

    def _resolve(self) -> None:
        """Check the two, and make one follow from the other."""
        bits, levels = resolve(self.bits, self.levels)
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "levels", levels)

    def settings(self) -> dict[str, Any]:
        """As for any codec, but the resolution comes first, always said and said once."""
        resolution = {"levels": self.levels} if self.levels else {"bits": self.bits}
        rest = super().settings()
        return resolution | {k: v for k, v in rest.items() if k not in ("bits", "levels")}

    @property
    def num_levels(self) -> int:
        """The paper's s."""
        return self.levels or most_levels(self.bits)


def resolve(bits: int, levels: int | None) -> tuple[int, int | None]:
    """`bits` and `levels`, checked, with `bits` derived from `levels` and `levels` dropped where
    `bits` says it all.

    >>> resolve(4, 5), resolve(4, 127)
    ((4, 5), (8, None))
    """
    if levels is not None:
        if not isinstance(levels, int) or not 1 <= levels <= 127:
            raise ValueError(f"`levels` must be an integer from 1 to 127, got {levels!r}.")
        needed = (2 * levels).bit_length()
        if bits not in (DEFAULT_BITS, needed):
            raise ValueError(
                f"`levels={levels}` needs {needed} bits, got `bits={bits}`; give one of the two."
            )
        return needed, None if levels == most_levels(needed) else levels
    if not isinstance(bits, int) or not 2 <= bits <= 8:
        raise ValueError(f"`bits` must be an integer from 2 to 8, got {bits!r}.")
    return bits, None


def most_levels(bits: int) -> int:
    """Levels on each side of zero that codes of `bits` bits have room for."""
    return (1 << bits - 1) - 1
