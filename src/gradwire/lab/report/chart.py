"""Line charts without scripts: lines in an SVG that stretches, labels that do not.

The SVG has no shape of its own: it fills its box, however wide, and strokes are not scaled.
Labels and dots are elements placed in percent, so that text stays legible on a phone and on paper.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gradwire.lab.report.axes import Axis
from gradwire.lab.report.series import Style

SCALE = 1000  # of the SVG's coordinates


@dataclass(frozen=True)
class Line:
    """One codec's points, and the one that stands out, if any."""

    style: Style
    points: Sequence[tuple[float, float]]
    mark: tuple[float, float] | None = None


@dataclass(frozen=True)
class Chart:
    """Lines over two axes; `goal` is a height to reach."""

    name: str
    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    goal: float | None = None

    def html(self) -> str:
        """The figure, with its title."""
        lines = "".join(self._line(i, line) for i, line in enumerate(self.lines))
        return (
            f'<figure class="panel" id="{self.name}"><h2>{escape(self.title)}</h2>'
            f'<div class="axis">{escape(self.y.title)}</div>'
            f'<div class="plot" data-axes="{escape(self._scales())}">'
            f'<svg viewBox="0 0 {SCALE} {SCALE}" preserveAspectRatio="none" role="img" '
            f'aria-label="{escape(self.title)}">{self._grid()}{lines}</svg>'
            f"{self._labels()}{self._marks()}</div>"
            f"<figcaption>{escape(self.x.title)}</figcaption></figure>"
        )

    def _scales(self) -> str:
        return json.dumps({"x": self.x.scale(), "y": self.y.scale()})

    def _at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a point, from the upper left corner."""
        return self.x.place(x), 1 - self.y.place(y)

    def _line(self, index: int, line: Line) -> str:
        return "".join(
            f'<polyline data-series="{index}" style="{line.style.css}" points="{piece}"/>'
            for piece in self._pieces(line.points)
        )

    def _pieces(self, points: Sequence[tuple[float, float]]) -> list[str]:
        """The line, which is broken where a loss is not a number."""
        pieces: list[list[str]] = [[]]
        for x, y in points:
            if math.isfinite(y) and (x > 0 or not self.x.is_log):
                pieces[-1].append(",".join(f"{SCALE * each:.1f}" for each in self._at(x, y)))
            elif pieces[-1]:
                pieces.append([])
        return [" ".join(piece) for piece in pieces if piece]

    def _grid(self) -> str:
        heights = [SCALE * (1 - self.y.place(tick)) for tick in self.y.ticks()]
        widths = [SCALE * self.x.place(tick) for tick in self.x.ticks()]
        path = [f"M0 {y:.1f}H{SCALE}" for y in heights] + [f"M{x:.1f} 0V{SCALE}" for x in widths]
        goal = ""
        if self.goal is not None:
            goal = (
                f'<path class="goal" d="M0 {SCALE * (1 - self.y.place(self.goal)):.1f}H{SCALE}"/>'
            )
        return f'<path class="grid" d="{"".join(path)}"/>{goal}'

    def _labels(self) -> str:
        places = [("down", "top", 1 - self.y.place(t), self.y.label(t)) for t in self.y.ticks()]
        places += [("across", "left", self.x.place(t), self.x.label(t)) for t in self.x.ticks()]
        return "".join(
            f'<span class="{kind}" style="{side}: {100 * place:.2f}%">{label}</span>'
            for kind, side, place, label in places
        )

    def _marks(self) -> str:
        return "".join(
            f'<i class="mark" data-series="{index}" style="{line.style.css}; '
            f'left: {100 * x:.2f}%; top: {100 * y:.2f}%"></i>'
            for index, line in enumerate(self.lines)
            if line.mark is not None
            for x, y in [self._at(*line.mark)]
        )
