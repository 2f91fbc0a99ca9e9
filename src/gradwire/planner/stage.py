"""What a step is made of, for `replay`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """`cpu_s` seconds of a core; then `wait_s` seconds of waiting; then `nbytes` on the link.

    `cpu_per_byte` is what the cores do to send. A stage `in_turn` waits until the turns of all
    earlier jobs are over, and ends its own.
    """

    cpu_s: float = 0.0
    wait_s: float = 0.0
    nbytes: float = 0.0
    cpu_per_byte: float = 0.0
    in_turn: bool = False


@dataclass(frozen=True)
class Bucket:
    """`compute_s` seconds of a core make it ready; then its jobs are handed to the lanes."""

    compute_s: float
    jobs: Sequence[Sequence[Stage]]


@dataclass(frozen=True)
class Uplink:
    """The link of one worker: see `Network`."""

    rate: float
    burst: float = 0.0
    peak: float = 0.0


@dataclass(frozen=True)
class Replayed:
    """When a step was over, when its backward pass was, and how long link and cores worked."""

    step_s: float
    compute_s: float
    link_s: float
    cpu_s: float
