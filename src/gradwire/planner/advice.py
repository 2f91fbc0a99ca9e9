"""Which codec, in a sentence; and what is said of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradwire.planner import paper
from gradwire.planner.predict import Setting, breakeven, bytes_of
from gradwire.planner.units import show_rate, show_seconds
from gradwire.planner.work import Work

NONE, BF16 = "none", "bf16"
WORTH = 1.05
"""A codec that gains less than this over plain DDP is not worth its error."""
MOST_ERROR = 0.25
"""Codecs that lose more of a gradient's energy in a message are not recommended unasked: an
unbiased one needs as many more steps, a biased one leans on error feedback."""


@dataclass(frozen=True)
class Row:
    """One codec. Seconds and bytes are those of a step, and of one worker.

    `pays_below` is the bandwidth, bits a second, below which its step is shorter than that of plain
    DDP: None if that is nowhere, and null in JSON if it is everywhere (`pays_everywhere`).
    `paper_s` is what the model of the Global-QSGD paper says.
    """

    codec: str
    step_s: float
    bytes: float
    speedup: float
    speedup_bf16: float
    nmse: float
    pays_below: float | None
    pays_everywhere: bool
    link_s: float
    compute_s: float
    paper_s: float

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


def rows(setting: Setting, works: Sequence[Work], bf16: Work) -> list[Row]:
    """What is predicted for each codec, in their order."""
    plain = setting.predict(setting.plain()).step_s
    half = setting.predict(bf16).step_s
    return [_row(setting, work, plain, half) for work in works]


def _row(setting: Setting, work: Work, plain: float, half: float) -> Row:
    found = setting.predict(work)
    same = work.collective == "all_reduce"
    below = None if same else breakeven(setting, work, setting.plain())
    everywhere = below == float("inf")
    return Row(
        codec=work.codec,
        step_s=found.step_s,
        bytes=bytes_of(setting, work),
        speedup=plain / found.step_s,
        speedup_bf16=half / found.step_s,
        nmse=work.nmse,
        pays_below=None if below is None or everywhere else 8 * below,
        pays_everywhere=everywhere,
        link_s=found.link_s,
        compute_s=found.compute_s,
        paper_s=paper.step_s(setting, work),
    )


def choice(found: Sequence[Row]) -> Row | None:
    """The fastest codec that is worth it and whose error is bearable; None: do not compress."""
    good = [row for row in found if row.speedup >= WORTH and row.nmse <= MOST_ERROR]
    good = [row for row in good if row.codec != NONE]
    if not good:
        return None
    best = min(good, key=lambda row: row.step_s)
    near = [row for row in good if row.step_s <= best.step_s * WORTH]
    return min(near, key=lambda row: (row.nmse, row.step_s))


def sentence(setting: Setting, found: Sequence[Row]) -> str:
    """The recommendation."""
    plain = setting.predict(setting.plain()).step_s
    best = choice(found)
    where = f"at {show_rate(setting.network.rate)}"
    if best is None:
        waits = max(0.0, plain - setting.model.compute_s)
        return (
            f"Do not compress {where}: plain DDP takes {show_seconds(plain)} a step, "
            f"{show_seconds(waits)} of them beyond computing, and no codec is "
            f"{WORTH - 1:.0%} faster."
        )
    return (
        f"Use `{best.codec}` {where}: {show_seconds(best.step_s)} a step instead of "
        f"{show_seconds(plain)}, {best.speedup:.2g} times as fast as plain DDP and "
        f"{best.speedup_bf16:.2g} times as fast as bf16"
        + (f"; it pays below {show_rate(best.pays_below / 8)}." if best.pays_below else ".")
    )
