"""How a score is written, and how it compares with that of `none`."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.lab.records import SYNC, Result

NONE = "none"  # the codec that the others are compared with
SCORE_FORMATS = {"accuracy": ".2%"}


def score_title(result: Result) -> str:
    """Name the score in words."""
    return "test " + result.score_name.replace("_", " ")


def score_text(result: Result) -> str:
    """Write the score the way its kind is read."""
    return format(result.score, SCORE_FORMATS.get(result.score_name, ".4f"))


def written(score: float, name: str) -> str:
    """Write a score that somebody chose, with no more digits than it has.

    >>> written(0.95, "accuracy"), written(2.6, "bits_per_character")
    ('95%', '2.6')
    """
    return f"{100 * score:g}%" if name == "accuracy" else f"{score:g}"


def direction(result: Result) -> str:
    """Say which way the score is good."""
    return f"{'higher' if result.higher_is_better else 'lower'} is better"


def reference(results: Sequence[Result]) -> Result | None:
    """The result of `none`, if it is among them; that of synchronous training if it is too."""
    found = [each for each in results if each.codec == NONE]
    return min(found, key=lambda each: each.algorithm != SYNC, default=None)


def behind(result: Result, results: Sequence[Result]) -> float | None:
    """Return how much worse the score is than that of `none`, as a share of it; negative if better.

    None if `none` is not among the results, or if its score is zero.
    """
    base = reference(results)
    if base is None or base.score == 0:
        return None
    lost = base.score - result.score if result.higher_is_better else result.score - base.score
    return lost / base.score


def sooner(result: Result, results: Sequence[Result]) -> float | None:
    """Return how many times sooner than `none` the target was reached.

    None if there is no target, or if one of the two did not reach it.
    """
    base = reference(results)
    if base is None or base.reached is None or result.reached is None:
        return None
    return base.reached.seconds / result.reached.seconds
