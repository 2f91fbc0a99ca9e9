"""Which parameters are coded, by which codec, and from when on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gradwire.codec import Codec
from gradwire.codecs import as_codec

MIN_NUMEL = 10_000
"""Parameters with fewer values are most of the trouble and almost none of the bytes."""


@dataclass(frozen=True)
class Policy:
    """Exceptions from "every parameter of some size goes through the codec that was attached".

    Patterns are of the shell, as in `fnmatch`, and must match the name of a parameter in full.

    skip: parameters that travel raw.
    codecs: other codecs, or their specs, for some parameters; the first pattern that matches
        decides.
    warmup_steps: steps at the start in which everything travels raw.
    min_numel: parameters with fewer values travel raw, whatever `codecs` says.

    >>> from gradwire import QSGD
    >>> policy = Policy(skip=("*.bias", "embed*"), codecs={"head.*": QSGD(bits=8)})
    >>> policy.codec_for("embed.weight", QSGD()) is None
    True
    >>> str(policy.codec_for("head.weight", QSGD()))
    'qsgd:bits=8'
    """

    skip: tuple[str, ...] = ()
    codecs: Mapping[str, Codec | str] = field(default_factory=dict)
    warmup_steps: int = 0
    min_numel: int = MIN_NUMEL

    def __post_init__(self) -> None:
        if not isinstance(self.skip, tuple):
            raise TypeError(f"`skip` must be a tuple of patterns, got {self.skip!r}.")
        for pattern, codec in self.codecs.items():
            if not isinstance(codec, Codec | str):
                raise TypeError(
                    f"`codecs[{pattern!r}]` must be a codec such as `gw.QSGD(bits=8)`, got "
                    f"{codec!r}; to send such parameters raw, name them in `skip`."
                )
        codecs = {pattern: as_codec(codec) for pattern, codec in self.codecs.items()}
        object.__setattr__(self, "codecs", codecs)
        for name in ("warmup_steps", "min_numel"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"`{name}` must be an integer of at least 0, got {value!r}.")

    def codec_for(self, name: str, default: Codec) -> Codec | None:
        """The codec for the parameter of this name, whatever its size; None: it travels raw."""
        if any(fnmatchcase(name, pattern) for pattern in self.skip):
            return None
        matches = (c for pattern, c in self.codecs.items() if fnmatchcase(name, pattern))
        return as_codec(next(matches, default))

    def check(self, names: Sequence[str]) -> None:
        """Refuse patterns that match none of `names`: they are misspelled."""
        for pattern in (*self.skip, *self.codecs):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"no parameter matches {pattern!r} of the policy; there are {', '.join(names)}."
                )

    def __str__(self) -> str:
        codecs = ", ".join(f"{pattern}={codec}" for pattern, codec in self.codecs.items())
        return (
            f"skip=({', '.join(self.skip)}), codecs=({codecs}), "
            f"warmup_steps={self.warmup_steps}, min_numel={self.min_numel}"
        )


def policy_of(policy: Policy | None, min_numel: int | None) -> Policy:
    """The policy that a user has given, of which `min_numel` alone is the short form."""
    if policy is None:
        return Policy() if min_numel is None else Policy(min_numel=min_numel)
    if not isinstance(policy, Policy):
        raise TypeError(
            f'`policy` must be a policy such as `gw.Policy(skip=("embed*",))`, got {policy!r}.'
        )
    if min_numel is not None:
        raise ValueError("`min_numel` is said twice; put it into the policy.")
    return policy
