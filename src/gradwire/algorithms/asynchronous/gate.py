"""A gate: the process that one worker talks to, and that reads its bytes.

gloo ends the process that receives more bytes than it has room for, and there may be other ways to
end one. So whatever comes from a worker is received, checked and decoded here. A worker that ends
its gate has ended its own connection and nothing else.
"""

from __future__ import annotations

import json
import os
import select
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass

from gradwire.algorithms.asynchronous.channel import Channel, Memory, Note, Topic
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
from gradwire.algorithms.asynchronous.meeting import Address, find_store, room_of
from gradwire.algorithms.asynchronous.updates import encode_update
from gradwire.codecs.cast import Identity
from gradwire.key import Hop, Key
from gradwire.transport.pair import LostError, Pair
from gradwire.wire import WireError, encode

FAREWELL_S = 5.0  # to tell a worker why it is refused


@dataclass(frozen=True)
class GateSettings:
    """What a gate is for: the worker of this rank that waits at the store at `host` and `port`.

    seed: of the keys of its messages.
    connect_s, idle_s: seconds to wait for it to connect, and for each of its frames.
    """

    host: str
    port: int
    rank: int
    seed: int
    connect_s: float
    idle_s: float
    layout: str

    def to_json(self) -> str:
        """For the gate's process."""
        return json.dumps(asdict(self))


class Gate:
    """The server's side of one connection."""

    def __init__(self, settings: GateSettings, channel: Channel, memory: Memory) -> None:
        self._settings = settings
        self._channel = channel
        self._memory = memory
        self._layout = Layout.from_json(settings.layout)
        self._pushes = self._pulls = self._held = 0
        self._received = self._sent = 0
        host, patience = settings.host, settings.connect_s
        store = find_store(Address(host, settings.port), patience)
        self._pair = Pair(room_of(store, settings.rank), 0, host=host, timeout=patience)

    def run(self) -> Note:
        """Let the worker in, and answer until it leaves; what is to be said of its end."""
        try:
            self._welcome()
            while self._answer(self._receive(Kind.PUSH, Kind.PULL, Kind.BYE)):
                pass
            return self._note(Topic.LEFT)
        except (FrameError, WireError) as error:
            self._farewell(str(error))
            return self._note(Topic.REFUSED, text=str(error))

    def _welcome(self) -> None:
        size = len(self._layout.digests)
        hello = self._receive(Kind.HELLO, nbytes=size + MAX_NAME_NBYTES)
        _check(len(hello.body) >= size, f"a HELLO has at least {size} bytes.")
        name = Frame(Kind.HELLO, body=hello.body[size:]).text()
        current = self._ask(Topic.JOINED, text=name)
        if odd := self._layout.differences(bytes(hello.body[:size])):
            raise FrameError(f"the {odd} must be the same as the server's, and differs.")
        weights, settings = self._memory.weights, self._settings
        key = Key(settings.seed, rank=settings.rank, hop=Hop.WEIGHTS)
        start = WELCOME_START.pack(settings.rank, settings.seed)
        self._memory.held.copy_(weights)
        self._send(Frame(Kind.WELCOME, current.number, start + encode(Identity(), weights, key)))
        self._held = current.number

    def _answer(self, frame: Frame) -> bool:
        """Do what the worker asks; False if that was the last of it."""
        if frame.kind is Kind.BYE:
            return False
        _check(
            frame.number == self._held,
            f"the weights that this worker has are of version {self._held}, but it says "
            f"{frame.number}.",
        )
        if frame.kind is Kind.PUSH:
            self._read(frame)
        topic = Topic.PUSH if frame.kind is Kind.PUSH else Topic.PULL
        current = self._ask(topic, number=frame.number)
        if current.topic is Topic.CLOSED:
            self._send(Frame(Kind.CLOSED, current.number, counted=current.counted))
            return False
        self._pulls += 1
        body = encode_update(
            self._layout,
            self._key(self._pulls, Hop.WEIGHTS),
            self._memory.weights,
            self._memory.held,
        )
        self._send(Frame(Kind.UPDATE, current.number, body, current.counted))
        self._held = current.number
        return True

    def _read(self, push: Frame) -> None:
        self._pushes += 1
        key = self._key(self._pushes, Hop.OWN)
        self._layout.decode(memoryview(push.body), key, self._memory.gradient)

    def _key(self, step: int, hop: Hop) -> Key:
        return Key(self._settings.seed, step, rank=self._settings.rank, hop=hop)

    def _receive(self, *kinds: Kind, nbytes: int | None = None) -> Frame:
        room = room_for(self._layout.max_nbytes if nbytes is None else nbytes)
        self._pair.receive(room, self._settings.idle_s)
        frame = Frame.unpack(room, *kinds)
        self._received += frame.nbytes
        return frame

    def _send(self, frame: Frame) -> None:
        self._pair.send(frame.pack(), self._settings.idle_s)
        self._sent += frame.nbytes

    def _ask(self, topic: Topic, *, number: int = 0, text: str = "") -> Note:
        self._channel.send(self._note(topic, number=number, text=text))
        answer = self._channel.receive()
        if answer is None:
            os._exit(0)  # the server is gone, and so is the connection
        return answer

    def _note(self, topic: Topic, *, number: int = 0, text: str = "") -> Note:
        note = Note(topic, number, text=text, received=self._received, sent=self._sent)
        self._received = self._sent = 0
        return note

    def _farewell(self, reason: str) -> None:
        refusal = Frame(Kind.REFUSED, body=reason.encode()[:MAX_TEXT_NBYTES])
        with suppress(LostError):  # one that does not listen has itself to blame
            self._pair.send(refusal.pack(), FAREWELL_S)


def run_gate(channel: Channel, file: int) -> None:
    """Be a gate: all that a forked process does."""
    threading.Thread(target=_end_with_server, args=(channel,), daemon=True).start()
    start = channel.receive()
    assert start is not None
    settings = GateSettings(**json.loads(start.text))
    memory = Memory(file, Layout.from_json(settings.layout).numel)
    try:
        last = Gate(settings, channel, memory).run()
    except (LostError, RuntimeError) as error:
        last = Note(Topic.LOST, text=str(error))
    channel.send(last)


def _end_with_server(channel: Channel) -> None:
    """A server that is gone must not leave a gate that waits for its worker."""
    poll = select.poll()
    poll.register(channel.fileno(), 0)  # nothing but that the other end is closed
    poll.poll()
    os._exit(0)


def _check(condition: bool, sentence: str) -> None:
    if not condition:
        raise FrameError(sentence)
