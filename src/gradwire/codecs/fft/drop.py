r"""Which fraction of the coefficients is dropped at which step.

    0.85                       always
    0.9@0/0.8@1000/0.5@5000    from each of these steps on
    0.9*linear@10000           0.9 sqrt(1 - t / T), T = 10000, and nothing from step T on
    0.9*cosine@10000           0.9 cos(pi t / (2 T)), and nothing from step T on
    0.9*rsqrt@10000            0.9 (1 + t / T)^(-1/4)

The convergence theorem asks for theta_t^2 = L eta_t: the square of the drop diminishes with the
learning rate. A codec knows the step but not the rate, so the last three are the square roots of
the rates that training uses most: linear to zero, cosine to zero, and 1 / sqrt(1 + t / T).
`drop_with_rate` makes a schedule of steps for any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise

import torch

from gradwire.kernels.exact import cos_turns

_DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda time: math.sqrt(max(0.0, 1 - time)),
    "cosine": lambda time: max(0.0, _cosine(min(time, 1.0) / 4)),
    "rsqrt": lambda time: 1 / math.sqrt(math.sqrt(1 + time)),
}
_FORMS = "write 0.85, or 0.9@0/0.5@1000, or 0.9*linear@10000 (or *cosine, *rsqrt)"


def _cosine(turns: float) -> float:
    return float(cos_turns(torch.tensor(turns, dtype=torch.float64)))


def drop_at(drop: float | str, step: int) -> float:
    """The fraction to drop at `step`.

    >>> drop_at("0.9@0/0.5@1000", 999), drop_at("0.9@0/0.5@1000", 1000)
    (0.9, 0.5)
    >>> round(drop_at("0.8*linear@100", 75), 3)
    0.4
    """
    if not isinstance(drop, str):
        return drop
    first, decay, steps = _read(drop)
    if decay is not None:
        return first * _DECAYS[decay](step / steps[0][0])
    return next(value for start, value in reversed(steps) if start <= step)


def least_drop(drop: float | str) -> float:
    """The smallest fraction at any step."""
    if not isinstance(drop, str):
        return drop
    _, decay, steps = _read(drop)
    return 0.0 if decay is not None else min(value for _, value in steps)


def most_drop(drop: float | str) -> float:
    """The largest fraction at any step."""
    if not isinstance(drop, str):
        return drop
    first, decay, steps = _read(drop)
    return first if decay is not None else max(value for _, value in steps)


def check_drop(drop: object) -> None:
    """Refuse what is neither a fraction in [0, 1) nor a schedule of such."""
    if isinstance(drop, str):
        _read(drop)
    elif isinstance(drop, bool) or not isinstance(drop, int | float):
        raise ValueError(f"`drop` must be a fraction or a schedule, got {drop!r}; {_FORMS}.")
    else:
        _check_fraction(drop, drop)


def drop_with_rate(drop: float, rates: Mapping[int, float]) -> str:
    """A schedule that follows the learning rate, drop * sqrt(rate / first rate).

    drop: the fraction at the first step. rates: the rate from each step on, the first 0.

    >>> drop_with_rate(0.8, {0: 0.1, 1000: 0.025})
    '0.8@0/0.4@1000'
    """
    if 0 not in rates or not all(0 <= rate < math.inf for rate in rates.values()) or not rates[0]:
        raise ValueError(
            f"`rates` must map steps, 0 among them, to finite learning rates, got {rates!r}; "
            "the rate at step 0 must be above 0: where it warms up, start with the rate reached."
        )
    drops = {step: drop * math.sqrt(rates[step] / rates[0]) for step in sorted(rates)}
    schedule = "/".join(f"{value:.6g}@{step}" for step, value in drops.items())
    check_drop(schedule)
    return schedule


@lru_cache(256)
def _read(text: str) -> tuple[float, str | None, list[tuple[int, float]]]:
    """The first fraction, the name of its decay, and (step, fraction) in order."""
    head, star, rest = text.partition("*")
    if star:
        decay, _, period = rest.partition("@")
        if decay not in _DECAYS or not _is_count(period) or int(period) == 0:
            raise ValueError(f"`drop` cannot be read from {text!r}; {_FORMS}.")
        return _fraction(head, text), decay, [(int(period), 0.0)]
    pairs = [item.partition("@") for item in text.split("/")]
    if not all(_is_count(step) for _, _, step in pairs):
        raise ValueError(f"`drop` cannot be read from {text!r}; {_FORMS}.")
    steps = [(int(step), _fraction(value, text)) for value, _, step in pairs]
    order = [step for step, _ in steps]
    if order[0] != 0 or any(a >= b for a, b in pairwise(order)):
        raise ValueError(
            f"the steps of the `drop` schedule {text!r} must begin at 0 and grow, got {order}; "
            "for example 0.9@0/0.5@1000."
        )
    return steps[0][1], None, steps


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def _fraction(text: str, source: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"`drop` cannot be read from {source!r}; {_FORMS}.") from None
    _check_fraction(value, source)
    return value


def _check_fraction(value: float, source: object) -> None:
    if not 0 <= value < 1:
        raise ValueError(
            f"`drop` must be at least 0 and below 1 at every step, got {source!r}; 1 would send "
            "nothing: 0.99 keeps one coefficient in a hundred, 0 keeps all."
        )
