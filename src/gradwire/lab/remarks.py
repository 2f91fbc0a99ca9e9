"""What is to be known of a run beside its numbers: what was logged, and what a codec left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import gradwire as gw
from gradwire.lab.records import Listener, Remark
from gradwire.terminal.output import counted

COMPRESSING = (
    "compress",
    "nested",
    "plain",
)  # how `Stats.learned` starts if something is compressed
HOPELESS = "whole"  # and for one that gains nothing


class _Passing(logging.Handler):
    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.heard: list[str] = []
        self._listener = listener

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())
        self._listener(Remark(record.getMessage()))


@contextmanager
def remarks_to(listener: Listener) -> Iterator[list[str]]:
    """Let `listener` hear what gradwire logs in here; it does not go to standard error.

    Yields a list that fills with the same.
    """
    logger, handler = logging.getLogger("gradwire"), _Passing(listener)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)  # what `auto` decides is no warning
    try:
        yield handler.heard
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def on_run(
    codec: str, workers: int, learned: Sequence[dict[str, str]], end: gw.Stats
) -> Iterator[str]:
    """What the numbers of a run do not say; `learned` is `Stats.learned` before each step."""
    if workers == 1:
        yield "A single worker has nobody to send to, so there are no bytes and no ratio."
    if end.learned:
        yield from _on_learning(codec, learned, end.learned)
    if fallbacks := end.counts.get("fallbacks"):
        yield (
            f"{codec} sent its plain code {counted(int(fallbacks), 'time')} in "
            f"{counted(len(learned), 'step')}, once for each parameter and step in which workers "
            "differed too much for the nested one."
        )


def _on_learning(
    codec: str, learned: Sequence[dict[str, str]], end: dict[str, str]
) -> Iterator[str]:
    whole = sum(not any(s.startswith(COMPRESSING) for s in step.values()) for step in learned)
    hopeless = sum(state.startswith(HOPELESS) for state in end.values())
    if hopeless:
        yield (
            f"{codec} cannot compress {hopeless} of {counted(len(end), 'parameter')}; "
            "what it cannot compress travels whole."
        )
    if whole == len(learned) and hopeless < len(end):
        yield (
            f"{codec} was still learning in all {counted(whole, 'step')} and sent them whole, so "
            "its bytes and its score are those of its inner codec. Train for more steps, or give "
            "it fewer `warmup_steps` and `train_steps`."
        )
    elif whole:
        steps = f"{whole} of {counted(len(learned), 'step')}"
        yield f"{codec} was still learning in {steps}, sent whole."
