"""Where a step's time went, as bars."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.lab.records import Result
from gradwire.lab.report.panels import name

STAGES = ("compute", "encode", "send", "decode")
WIDEST = 85  # percent of the room; the rest is for the number


def stages(result: Result) -> tuple[float, ...]:
    """Share a step out to compute, encode, send and decode, in seconds.

    What the exchange adds to compute is shared out as the time of its lanes is.

    The lanes work beside the backward pass, so their own seconds do not add up to the step.
    """
    compute = min(result.compute_s, result.step_s)
    lanes = (result.encode_s, result.comm_s, result.decode_s)
    exposed = result.step_s - compute
    whole = sum(lanes) or 1.0
    return (compute, *(exposed * lane / whole for lane in lanes))


def bars(results: Sequence[Result]) -> str:
    """Where each step's time went."""
    longest = max(result.step_s for result in results)
    key = "".join(f'<span class="stage {each}">{each}</span>' for each in STAGES)
    rows = "".join(
        f'<div class="bar" data-series="{i}">{name(result.label)}<div>{_bar(result, longest)}'
        f"<b>{1000 * result.step_s:.0f} ms</b></div></div>"
        for i, result in enumerate(results)
    )
    return f'<p class="stages">{key}</p><div class="bars">{rows}</div>'


def _bar(result: Result, longest: float) -> str:
    return "".join(
        f'<i class="stage {stage}" style="width: {WIDEST * seconds / longest:.2f}%" '
        f'title="{stage}: {1000 * seconds:.1f} ms"></i>'
        for stage, seconds in zip(STAGES, stages(result), strict=True)
    )
