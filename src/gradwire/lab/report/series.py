"""How the codecs are told apart: six colours that colour-blind people can, and dashes.

The colours are those of Okabe and Ito without black and yellow, which vanish on dark or on light.
`none`, with which the others are compared, has the colour of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.lab.scores import NONE

HUES = 6  # --hue-0 to --hue-5 in the style sheet
DASHES = ("", "7 4", "2 3", "12 4 2 4", "16 5", "2 2 8 2", "1 6")


@dataclass(frozen=True)
class Style:
    """A colour of the style sheet, and a pattern of the line."""

    color: str
    dash: str

    @property
    def css(self) -> str:
        """As the style of an element and of what is in it."""
        return f"--codec: var(--{self.color}); --dash: {self.dash or 'none'}"


def styles(codecs: Sequence[str]) -> list[Style]:
    """One for each codec; up to 42 differ.

    >>> [(style.color, style.dash) for style in styles(["none", "fp16", "qsgd"])]
    [('text', ''), ('hue-0', ''), ('hue-1', '')]
    """
    found, place = [], 0
    for codec in codecs:
        if codec == NONE:
            found.append(Style("text", ""))
            continue
        found.append(Style(f"hue-{place % HUES}", DASHES[place // HUES % len(DASHES)]))
        place += 1
    return found
