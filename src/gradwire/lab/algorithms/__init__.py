"""The algorithms of `gradwire train --algorithm`, by name.

A new one is a file with an `Algorithm`, and a line here; nothing else knows their names.
"""

from __future__ import annotations

from dataclasses import fields

from gradwire.codecs.spelling import read_settings
from gradwire.lab.algorithms.asynchronous import Async
from gradwire.lab.algorithms.base import Algorithm
from gradwire.lab.algorithms.local import Local
from gradwire.lab.algorithms.qsvrg import Qsvrg
from gradwire.lab.algorithms.sync import Sync

ALGORITHMS: dict[str, type[Algorithm]] = {
    "sync": Sync,
    "qsvrg": Qsvrg,
    "local": Local,
    "async": Async,
}


def parse_algorithm(spec: str) -> Algorithm:
    """The algorithm that `spec` spells, as codecs are spelled.

    >>> parse_algorithm("local:every=10") == Local(every=10)
    True
    """
    name = spec.strip().partition(":")[0]
    if name not in ALGORITHMS:
        raise ValueError(f"`--algorithm` must be one of {', '.join(ALGORITHMS)}, got {name!r}.")
    make = ALGORITHMS[name]
    known = [field.name for field in fields(make)]  # type: ignore[arg-type]
    return make(**read_settings(spec, known))
