"""The settings of `auto`, and how they are spelled."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from gradwire.codec import Codec
from gradwire.codecs.spelling import read_settings

NAME = "auto"
LEAST_ERROR, MOST_ERROR = 1e-4, 1.0
LEAST_STEPS = 20


@dataclass(frozen=True)
class Auto:
    """Measure, then choose a codec for each layer, or none: `gw.attach(ddp, "auto")`.

    error: how much of the energy of all gradients the messages of a worker may lose, on average.
    every: after how many steps to look again.

    >>> str(Auto(error=0.05))
    'auto:error=0.05'
    """

    error: float = 0.15
    every: int = 300

    def __post_init__(self) -> None:
        if not isinstance(self.error, int | float) or not LEAST_ERROR <= self.error <= MOST_ERROR:
            raise ValueError(
                f"`error` of auto must be from {LEAST_ERROR:g} to {MOST_ERROR:g}, a share of the "
                f"gradients' energy, got {self.error!r}."
            )
        if not isinstance(self.every, int) or self.every < LEAST_STEPS:
            raise ValueError(
                f"`every` of auto must be an integer of at least {LEAST_STEPS} steps, got "
                f"{self.every!r}."
            )

    def __str__(self) -> str:
        defaults = {field.name: field.default for field in fields(self)}
        said = [f"{name}={v}" for name, v in asdict(self).items() if v != defaults[name]]
        return f"{NAME}:{','.join(said)}" if said else NAME


def as_auto(codec: Codec | Auto | str) -> Auto | None:
    """What `codec` is, or spells, if that is `auto`.

    >>> as_auto("auto:error=0.05"), as_auto("qsgd")
    (Auto(error=0.05, every=300), None)
    """
    if isinstance(codec, Auto):
        return codec
    if not isinstance(codec, str) or codec.strip().partition(":")[0] != NAME:
        return None
    return Auto(**read_settings(codec, [field.name for field in fields(Auto)]))
