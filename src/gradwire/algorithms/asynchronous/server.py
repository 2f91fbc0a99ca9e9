"""The server: `AsyncServer`."""

from __future__ import annotations

import selectors
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gradwire.algorithms.asynchronous.channel import Note, Topic
from gradwire.algorithms.asynchronous.checkpoint import Checkpoint
from gradwire.algorithms.asynchronous.descent import Descent
from gradwire.algorithms.asynchronous.gate import GateSettings
from gradwire.algorithms.asynchronous.gates import Gatekeeper, OpenGate
from gradwire.algorithms.asynchronous.layout import exchanged
from gradwire.algorithms.asynchronous.meeting import JOINS, Address, open_store
from gradwire.algorithms.asynchronous.settings import EXCESS, AsyncSettings, check_limits
from gradwire.algorithms.asynchronous.statistics import Ledger, ServerStats, State
from gradwire.codec import Codec
from gradwire.reduction.policy import Policy, policy_of
from gradwire.reduction.streams import check_seed, seed_of

POLL_S = 0.05  # how often it is looked whether somebody wants to join
CONNECT_S = 30.0  # for a worker that has asked to join
_ENDS = {Topic.LEFT: State.LEFT, Topic.LOST: State.LOST, Topic.REFUSED: State.REFUSED}


class AsyncServer:
    """Has the weights. Workers push gradients to it, each of which makes a step, and pull weights.

    Nothing happens but in `serve`, which returns when the model has made as many steps as asked
    for; between two calls the model may be evaluated or saved, while workers wait.

    model: has the first weights, and all later ones.
    optimizer, scheduler: make a step of the model with every gradient that counts. That is n times
        as many as in synchronous training with n workers: `per_push` turns its optimizer into one.
    codec: such as `gw.QSGD(bits=4)`, or its spec, for gradients and updates; workers have the same.
    address: where workers find it, "host:port"; port 0 is any that is free.
    max_delay, damping, clip, lookahead: `AsyncSettings` says what they do.
    policy: which parameters travel otherwise; `min_numel` is short for `Policy(min_numel=...)`.
    seed: of the random streams of the codec.
    checkpoint: a file that is written every `checkpoint_every` steps, and gone on from.
    max_workers: that may be connected at once; others wait.
    timeout: seconds after which a worker that says nothing is given up.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        codec: Codec | str,
        *,
        address: str = "localhost:0",
        scheduler: LRScheduler | None = None,
        max_delay: int = 100,
        damping: str | None = EXCESS,
        clip: float | None = None,
        lookahead: float = 1.0,
        policy: Policy | None = None,
        min_numel: int | None = None,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 1000,
        max_workers: int = 64,
        timeout: float = 3600.0,
    ) -> None:
        self.settings = AsyncSettings(max_delay, damping, clip, lookahead)
        check_seed(seed)
        check_limits(max_workers, timeout)
        self._layout, flat, _ = exchanged(model, codec, policy_of(policy, min_numel))
        self._descent = Descent(flat, optimizer, scheduler, self.settings)
        self._most, self._timeout = max_workers, timeout
        path = None if checkpoint is None else Path(checkpoint)
        self._checkpoint = Checkpoint(path, checkpoint_every, model, self._descent)
        self._seed = seed_of(seed, self._checkpoint.starts)
        self._store, self._address = open_store(Address.parse(address))
        self._gatekeeper = Gatekeeper(sorted({str(each.codec) for each in self._layout.sections}))
        self._gates: dict[int, OpenGate] = {}
        self._selector = selectors.DefaultSelector()
        self._ledger = Ledger()
        self._admitted, self._looked = 0, 0.0
        self._closing = False

    @property
    def address(self) -> str:
        """Where workers find it."""
        return str(self._address)

    @property
    def version(self) -> int:
        """Steps that the model has made."""
        return self._descent.version

    def serve(self, until: int | None = None, *, seconds: float | None = None) -> None:
        """Serve workers until the model has made `until` steps in all, or for so many seconds."""
        end = None if seconds is None else time.monotonic() + seconds
        while until is None or self.version < until:
            if end is not None and time.monotonic() >= end:
                return
            self._admit()
            for key, _ in self._selector.select(POLL_S):
                self._hear(key.data)
                if until is not None and self.version >= until:
                    return

    def stats(self) -> ServerStats:
        """What happened since it was started."""
        return self._ledger.stats(self._descent)

    def held_by(self, rank: int) -> torch.Tensor:
        """The weights that a connected worker has, to the bit, as one vector."""
        return torch.clone(self._gates[rank].memory.held)

    def save(self) -> None:
        """Write the checkpoint now."""
        self._checkpoint.save()

    def close(self, linger: float = 10.0) -> None:
        """Write the checkpoint, tell workers that there is no more to do, and end all processes.

        A worker hears of it when it pushes next, for which the server stays so many seconds.
        """
        if self._closing:
            return
        self._checkpoint.at_end()
        self._closing = True
        end = time.monotonic() + linger
        while self._gates and time.monotonic() < end:
            for key, _ in self._selector.select(POLL_S):
                self._hear(key.data)
        for gate in list(self._gates.values()):
            self._let_go(gate, State.LEFT, "the server was closed.")
        self._gatekeeper.close()
        self._selector.close()

    def _admit(self) -> None:
        """Open a gate for everyone who has asked for it."""
        if time.monotonic() < self._looked + POLL_S:
            return
        self._looked = time.monotonic()
        asked = self._store.add(JOINS, 0)
        while self._admitted < asked and len(self._gates) < self._most:
            self._admitted += 1
            self._open(self._admitted)

    def _open(self, rank: int) -> None:
        host, port = self._address
        settings = GateSettings(
            host, port, rank, self._seed, CONNECT_S, self._timeout, self._layout.to_json()
        )
        record = self._ledger.open(rank)
        gate = self._gates[rank] = self._gatekeeper.open(settings, record, self._layout.numel)
        self._selector.register(gate.channel, selectors.EVENT_READ, gate)

    def _hear(self, gate: OpenGate) -> None:
        note = gate.channel.receive()
        if note is None:
            words = f"what it sent ended the process that read it: {gate.last_words()}"
            self._let_go(gate, State.REFUSED, words)
            return
        self._ledger.moved(gate.record, note)
        if note.topic in _ENDS:
            self._let_go(gate, _ENDS[note.topic], note.text)
        else:
            self._answer(gate, note)

    def _answer(self, gate: OpenGate, note: Note) -> None:
        counted = False
        if note.topic is Topic.JOINED:
            self._ledger.joined(gate.record, note.text, self.version)
        elif note.topic is Topic.PUSH and not self._closing:
            counted = self._push(gate, note.number)
        topic = Topic.CLOSED if self._closing else Topic.CURRENT
        gate.memory.weights.copy_(self._descent.ahead())
        with suppress(OSError):  # if it is gone, that is heard next
            gate.channel.send(Note(topic, self.version, counted))

    def _push(self, gate: OpenGate, base: int) -> bool:
        counted = self._descent.push(gate.memory.gradient, base)
        self._ledger.pushed(gate.record, counted=counted)
        if counted:
            self._checkpoint.after_step()
        return counted

    def _let_go(self, gate: OpenGate, state: State, reason: str) -> None:
        self._ledger.ended(gate.record, state, reason)
        self._selector.unregister(gate.channel)
        del self._gates[gate.record.rank]
        gate.close()
