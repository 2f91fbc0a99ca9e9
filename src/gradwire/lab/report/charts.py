"""The charts of a report: the score against time first, then against bytes and steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gradwire.lab.records import Evaluation, Result
from gradwire.lab.report.axes import Axis, axis
from gradwire.lab.report.chart import Chart, Line
from gradwire.lab.report.series import Style
from gradwire.lab.scores import score_title

WORST = 0.2  # the share of scores, those of the first steps, that would press the others together
MARGIN = 0.03  # for marks at the very top

Across = Callable[[Evaluation], float]


def charts(results: Sequence[Result], styles: Sequence[Style]) -> list[Chart]:
    """In the order in which they are read."""
    score = results[0].score_name.replace("_", " ")
    of_score: list[tuple[str, str, str, Across]] = [
        ("time", "seconds of training", "s", lambda each: each.seconds),
        ("bytes", "MB that a worker sent", "MB", lambda each: each.bytes / 1e6),
        ("steps", "steps", "steps", lambda each: float(each.step)),
    ]
    found = []
    for what, title, unit, across in of_score:
        values = [across(each) for result in results for each in result.scores]
        is_log = unit == "MB"
        x = axis(title, unit, values, is_log=is_log, from_zero=not is_log)
        lines = _lines(across, results, styles)
        heading = f"{score} against {what}".capitalize()
        y = _score_axis(results)
        found.append(Chart(f"score-{what}", heading, x, y, lines, results[0].target))
    return [*found, _of_loss(results, styles)]


def _lines(across: Across, results: Sequence[Result], styles: Sequence[Style]) -> list[Line]:
    return [
        Line(
            style,
            [(across(each), each.score) for each in result.scores],
            None if result.reached is None else (across(result.reached), result.reached.score),
        )
        for result, style in zip(results, styles, strict=True)
    ]


def _score_axis(results: Sequence[Result]) -> Axis:
    """An axis that leaves out the worst scores, which all runs begin with."""
    first = results[0]
    found = sorted(each.score for result in results for each in result.scores)
    found = [each for each in found if math.isfinite(each)]
    dropped = int(WORST * len(found))
    kept = found[dropped:] if first.higher_is_better else found[: len(found) - dropped]
    goal = [] if first.target is None else [first.target]
    unit = "%" if first.score_name == "accuracy" else ""
    return axis(score_title(first), unit, [*kept, *goal], margin=MARGIN)


def _of_loss(results: Sequence[Result], styles: Sequence[Style]) -> Chart:
    losses = [point.loss for result in results for point in result.curve]
    steps = [float(point.step) for result in results for point in result.curve]
    lines = [
        Line(style, [(float(point.step), point.loss) for point in result.curve])
        for result, style in zip(results, styles, strict=True)
    ]
    x = axis("steps", "steps", steps, from_zero=True)
    y = axis("training loss", "", losses, is_log=True)
    return Chart("loss-steps", "Training loss against steps", x, y, lines)
