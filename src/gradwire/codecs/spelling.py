"""The spelling ``name:setting=value,...``, of codecs and of whatever else has settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def read_settings(spec: str, known: Sequence[str]) -> dict[str, Any]:
    """What stands after the colon of `spec`, of settings that are `known`.

    >>> read_settings("qsgd:bits=2,block=none", ["bits", "block"]), read_settings("qsgd", ["bits"])
    ({'bits': 2, 'block': None}, {})
    """
    name, colon, settings = spec.strip().partition(":")
    if not colon:
        return {}
    values: dict[str, Any] = {}
    for item in settings.split(","):
        setting, equals, text = item.partition("=")
        if not item:
            raise ValueError(
                f"{spec!r} lacks a setting; write `{name}` alone, or `{name}:setting=value`, "
                f"settings are {', '.join(known) or 'none'}."
            )
        if not equals or setting not in known:
            raise ValueError(
                f"{item!r} in {spec!r} is not a setting of {name}; write `setting=value`, "
                f"settings are {', '.join(known) or 'none'}."
            )
        if setting in values:
            raise ValueError(f"{spec!r} says `{setting}` twice; say it once.")
        values[setting] = _value(text)
    return values


def _value(text: str) -> Any:
    """None, an int or a float if it reads as one; else the word itself."""
    if text.lower() == "none":
        return None
    try:
        return float(text) if set(text) & set(".en") else int(text)
    except ValueError:
        return text
