"""A worker: `AsyncWorker`."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter

from torch import Tensor, nn

from gradwire.algorithms.asynchronous.frames import MAX_TEXT_NBYTES, Frame, Kind, room_for
from gradwire.algorithms.asynchronous.joining import Seat, check_not_refused, join
from gradwire.algorithms.asynchronous.layout import exchanged
from gradwire.algorithms.asynchronous.meeting import Address
from gradwire.algorithms.asynchronous.owed import Owed
from gradwire.algorithms.asynchronous.settings import check_positive
from gradwire.algorithms.asynchronous.updates import follow_update, max_update_nbytes
from gradwire.codec import Codec
from gradwire.kernels.exact import is_finite
from gradwire.key import Hop
from gradwire.reduction.policy import Policy, policy_of
from gradwire.reduction.stats import Stats
from gradwire.transport.account import Account
from gradwire.transport.pair import LostError

_logger = logging.getLogger(__name__)


class AsyncWorker:
    """Computes gradients for an `AsyncServer`. There may be any number, on any machines::

        worker = gw.algorithms.AsyncWorker(model, "qsgd:bits=4", "10.0.0.1:29600")
        while not worker.done:
            loss(model, next(batches)).backward()
            worker.step()

    model: has the same parameters as the server's, and takes its weights.
    codec, policy, min_numel: those of the server.
    address: where the server is, "host:port".
    name: what the server calls this worker when it complains.
    feedback: keep what a message has not said of a gradient for the next. By default for codecs
        that are biased.
    patience: seconds in which a server that cannot be found is looked for.
    timeout: seconds to wait for an answer before the server is looked for anew.
    """

    def __init__(
        self,
        model: nn.Module,
        codec: Codec | str,
        address: str,
        *,
        name: str | None = None,
        policy: Policy | None = None,
        min_numel: int | None = None,
        feedback: bool | None = None,
        patience: float = 300.0,
        timeout: float = 600.0,
    ) -> None:
        check_positive("patience", patience)
        check_positive("timeout", timeout)
        self._layout, self._flat, self._raw = exchanged(model, codec, policy_of(policy, min_numel))
        self._owed = Owed(self._layout, feedback)
        self._address, self._timeout, self._patience = Address.parse(address), timeout, patience
        self._name = f"{socket.gethostname()}:{os.getpid()}" if name is None else name
        self._account = Account()
        self._counts = Counter(dict.fromkeys(("counted", "stale", "not_finite", "joins"), 0))
        self._received = self._steps = 0
        self.done = False
        """Has the server all that it wants?"""
        self._seat = self._join()

    @property
    def rank(self) -> int:
        """What the server knows this worker by; another one whenever it joins."""
        return self._seat.rank

    @property
    def version(self) -> int:
        """That of the weights which the model has."""
        return self._seat.version

    @property
    def weights(self) -> Tensor:
        """A copy of the weights as the server knows that they are here."""
        return self._seat.weights.clone()

    @property
    def owed(self) -> Tensor:
        """A copy of what messages have not said of gradients so far; empty without feedback."""
        return self._owed.vector

    def step(self) -> bool:
        """Push the gradients that `backward` has left, and take new weights. Did they count?

        They do not if the server has made more than `max_delay` steps since the model got its
        weights, if they are not finite, or if the connection was lost: this worker has joined again
        then, and has all weights anew.
        """
        if self.done:
            return False
        gradient = self._flat.gradients()
        for param in self._flat.params:
            param.grad = None
        self._steps += 1
        if not is_finite(gradient):
            _logger.warning("a gradient is not finite, and was not pushed.")
            self._counts["not_finite"] += 1
            self.pull()
            return False
        return self._push(self._owed.added_to(gradient))

    def _push(self, owing: Tensor) -> bool:
        key = self._seat.key(self._seat.pushes + 1, Hop.OWN)
        with self._account.timed("encode"):
            body = self._layout.encode(owing, key)
        self._account.message(owing.numel(), len(body))
        counted = self._exchange(Frame(Kind.PUSH, self.version, body))
        if counted:
            self._owed.keep(owing, body, key)
        self._counts["counted"] += counted is True
        self._counts["stale"] += counted is False
        return bool(counted)

    def pull(self) -> None:
        """Take new weights without pushing anything."""
        if not self.done:
            self._exchange(Frame(Kind.PULL, self.version))

    def stats(self) -> Stats:
        """What this worker has done. Its messages are those of its gradients.

        `counts` has "bytes_received", updates of weights; how many pushes were "counted", and how
        many were "stale" or "not_finite"; and "joins".
        """
        account = self._account
        return Stats(
            steps=self._steps,
            bytes_sent=account.bytes_sent,
            bits_per_value=8 * account.message_bytes / max(account.values, 1),
            encode_s=account.encode_s,
            comm_s=account.comm_s,
            decode_s=account.decode_s,
            raw=self._raw,
            counts={**self._counts, "bytes_received": self._received},
            residual_bytes=self._owed.nbytes,
        )

    def close(self) -> None:
        """Say goodbye."""
        if not self.done:
            self.done = True
            self._seat.leave()

    def _exchange(self, frame: Frame) -> bool | None:
        """Send a frame and follow the answer. Did a push count? None: nobody knows, or cares."""
        seat = self._seat
        room = room_for(max(max_update_nbytes(self._layout), MAX_TEXT_NBYTES))
        try:
            with self._account.timed("comm"):
                seat.pair.exchange(frame.pack(), room, self._timeout)
            answer = Frame.unpack(room, Kind.UPDATE, Kind.CLOSED, Kind.REFUSED)
        except LostError as error:
            _logger.warning("the server was lost (%s); looking for it", error)
            self._seat = self._join()
            return None
        self._account.bytes_sent += frame.nbytes
        self._received += answer.nbytes
        seat.pushes += frame.kind is Kind.PUSH
        check_not_refused(answer)
        if answer.kind is Kind.CLOSED:
            self.done = True
            return None
        self._follow(answer)
        return answer.counted

    def _follow(self, update: Frame) -> None:
        seat = self._seat
        seat.pulls += 1
        with self._account.timed("decode"):
            body, key = memoryview(update.body), seat.key(seat.pulls, Hop.WEIGHTS)
            follow_update(self._layout, key, body, seat.weights)
        seat.version = update.number
        self._flat.put(seat.weights)

    def _join(self) -> Seat:
        seat = join(self._address, self._layout, self._name, patience=self._patience)
        self._counts["joins"] += 1
        self._flat.put(seat.weights)
        return seat
