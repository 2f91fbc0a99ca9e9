"""How a worker gets its place with a server, and gets it again when it was lost."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from itertools import count

from torch import Tensor

from gradwire.algorithms.asynchronous.frames import (
    MAX_NAME_NBYTES,
    MAX_TEXT_NBYTES,
    WELCOME_START,
    Frame,
    FrameError,
    Kind,
    room_for,
)
from gradwire.algorithms.asynchronous.layout import Layout
from gradwire.algorithms.asynchronous.meeting import JOINS, Address, find_store, room_of
from gradwire.key import Hop, Key
from gradwire.transport.pair import LostError, Pair
from gradwire.wire import MAX_HEADER_NBYTES, Message, WireError

_logger = logging.getLogger(__name__)

STORE_S, CONNECT_S, GOODBYE_S = 5.0, 30.0, 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


class RefusedError(RuntimeError):
    """The server does not want this worker, and says why."""


@dataclass
class Seat:
    """A connection to a server, and what both sides know of it.

    weights: those that this worker holds, as the server knows, of `version`.
    pushes, pulls: so many were made, which is what keys are made of.
    """

    pair: Pair
    rank: int
    seed: int
    version: int
    weights: Tensor
    pushes: int = 0
    pulls: int = 0

    def key(self, step: int, hop: Hop) -> Key:
        """That of a message."""
        return Key(self.seed, step, rank=self.rank, hop=hop)

    def leave(self) -> None:
        """Say goodbye, if anybody hears it."""
        try:
            self.pair.send(Frame(Kind.BYE).pack(), GOODBYE_S)
        except LostError:
            _logger.info("the server was gone before this worker could say goodbye.")


def join(address: Address, layout: Layout, name: str, *, patience: float) -> Seat:
    """Find the server and take a seat; tries again for `patience` seconds, and says so."""
    end = time.monotonic() + patience
    for attempt in count():
        found = _attempt(address, layout, name, end - time.monotonic())
        if isinstance(found, Seat):
            return found
        left = end - time.monotonic()
        if left <= 0:
            raise LostError(
                f"no server was found at {address} within {patience:g} s ({_brief(found)}); is it "
                "running, and can this machine reach it?"
            ) from found
        _logger.warning(
            "no server at %s (%s); trying for another %.0f s", address, _brief(found), left
        )
        time.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * (1 + attempt), left))
    raise AssertionError


def _attempt(address: Address, layout: Layout, name: str, left: float) -> Seat | Exception:
    """A seat, or why there is none now and may be one later."""
    try:
        return _join_once(address, layout, name, min(STORE_S, max(left, FIRST_PAUSE_S)))
    except RefusedError:
        raise
    except (RuntimeError, LostError) as error:
        return error


def _join_once(address: Address, layout: Layout, name: str, seconds: float = STORE_S) -> Seat:
    store = find_store(address, seconds)
    rank = store.add(JOINS, 1)
    pair = Pair(room_of(store, rank), 1, host=address.host, timeout=CONNECT_S)
    hello = layout.digests + name.encode()[:MAX_NAME_NBYTES]
    room = room_for(WELCOME_START.size + MAX_HEADER_NBYTES + 4 * layout.numel + MAX_TEXT_NBYTES)
    pair.exchange(Frame(Kind.HELLO, body=hello).pack(), room, CONNECT_S)
    frame = Frame.unpack(room, Kind.WELCOME, Kind.REFUSED, Kind.CLOSED)
    return _seat(frame, pair, layout)


def _seat(frame: Frame, pair: Pair, layout: Layout) -> Seat:
    """What the server answered to a HELLO."""
    check_not_refused(frame)
    if len(frame.body) < WELCOME_START.size:
        raise FrameError("a WELCOME is too short.")
    rank, seed = WELCOME_START.unpack(frame.body[: WELCOME_START.size])
    message = Message.read(frame.body[WELCOME_START.size :], max_numel=layout.numel)
    weights = message.values()
    if weights.shape != (layout.numel,):
        raise WireError(f"a WELCOME has {layout.numel} weights, got {tuple(weights.shape)}.")
    return Seat(pair, rank, seed, frame.number, weights)


def check_not_refused(frame: Frame) -> None:
    """Raise what the server has said, if it has refused this worker."""
    if frame.kind is Kind.REFUSED:
        raise RefusedError(f"the server refused this worker: {frame.text()}")


def _brief(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
