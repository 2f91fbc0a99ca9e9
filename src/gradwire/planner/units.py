"""Numbers with units, as people type them and as they like to read them."""

from __future__ import annotations

import math
import re

_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12, "bit": 1.0}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|inf)"


def rate(text: str, option: str = "--bandwidth") -> float:
    """Bytes a second from bits a second.

    >>> rate("10gbit")
    1250000000.0
    """
    return _number(text, _RATES, option, "10gbit") / 8


def seconds(text: str, option: str) -> float:
    """Seconds.

    >>> seconds("300ms", "--compute")
    0.3
    """
    return _number(text, _TIMES, option, "50us")


def count(text: str, option: str) -> int:
    """A whole number of at least 1, which may be typed as 1.3e9.

    >>> count("1.3e9", "--params")
    1300000000
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 <= value < 1e15 or value != int(value):
        raise ValueError(f"`{option}` must be a whole number such as 1.3e9, got {text!r}.")
    return int(value)


def _number(text: str, units: dict[str, float], option: str, example: str) -> float:
    found = re.fullmatch(_NUMBER + r"\s*([a-z]+)(?:/s)?", text.strip().lower())
    if not found or found[2] not in units:
        raise ValueError(
            f"`{option}` must be a number with a unit ({', '.join(units)}) such as {example}, "
            f"got {text!r}."
        )
    value = float(found[1]) * units[found[2]]
    if value <= 0 and option != "--latency":
        raise ValueError(f"`{option}` must be above 0, got {text!r}.")
    return value


def show_rate(rate: float) -> str:
    """Bits a second, for people.

    >>> show_rate(1.25e8), show_rate(3.3e5)
    ('1 Gbit/s', '2.64 Mbit/s')
    """
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if 8 * rate >= size:
            return f"{8 * rate / size:.3g} {unit}"
    return f"{8 * rate / 1e3:.3g} kbit/s"


def show_seconds(value: float) -> str:
    """A time, for people.

    >>> show_seconds(0.0123), show_seconds(4.5e-5), show_seconds(12.34)
    ('12.3 ms', '45 us', '12.3 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def show_bytes(value: float) -> str:
    """Bytes, for people.

    >>> show_bytes(12.5e6), show_bytes(800)
    ('12.5 MB', '800 B')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B"
