"""Strangers at the gates of a server: whatever they send, they are refused and hurt nobody."""

import re
import struct
import threading
import time
import zlib

import pytest
import torch

import gradwire as gw
from async_crew import MODEL, NUMEL, flat, hands, model, serving
from gradwire.algorithms.asynchronous.frames import (
    Frame,
    Kind,
    room_for,
)
from gradwire.algorithms.asynchronous.joining import _join_once
from gradwire.algorithms.asynchronous.layout import exchanged
from gradwire.algorithms.asynchronous.meeting import JOINS, Address, find_store, room_of
from gradwire.algorithms.asynchronous.statistics import State
from gradwire.key import Hop
from gradwire.reduction.policy import Policy
from gradwire.transport.pair import LostError, Pair

CODEC = "qsgd:bits=4"
pytestmark = pytest.mark.usefixtures("one_gatekeeper")
GRADIENT = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def server(one_gatekeeper):
    """One for all strangers, with an honest worker that has made a step."""
    with serving(CODEC) as server:
        (server.honest,) = hands(server, 1, CODEC)
        assert server.honest.do(server, "step", 0) is True
        yield server


def everything(server):
    """All that a stranger must not change."""
    buffers = [state["momentum_buffer"] for state in server._descent.optimizer.state.values()]
    return [flat(server.net), *(each.clone() for each in buffers)]


def visit(server, deed):
    """What became of a worker that joins and does `deed`, and what it was told."""
    told = []

    def run():
        try:
            told.append(deed(server))
        except LostError as error:
            told.append(str(error))

    before, version, known = everything(server), server.version, len(server.stats().workers)
    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        server.serve(seconds=0.05)
        if not thread.is_alive() and server.stats().workers[-1].reason:
            break
    thread.join()
    assert len(server.stats().workers) == known + 1
    assert server.version == version
    for mine, theirs in zip(before, everything(server), strict=True):
        assert torch.equal(mine, theirs)
    return server.stats().workers[-1], told[0]


def joined(server):
    layout = exchanged(model(), CODEC, Policy(**MODEL)).layout
    return _join_once(Address.parse(server.address), layout, "a \x1b[31mstranger"), layout


def said_to(pair, frame):
    """The words in which the server refuses `frame`."""
    room = room_for(10_000)
    pair.exchange(frame, room, 10.0)
    return Frame.unpack(room, Kind.REFUSED).text()


def push(**changes):
    """A deed: a push, of which something was changed."""

    def deed(server):
        seat, layout = joined(server)
        codec = changes.get("codec", CODEC)
        if "codec" in changes:
            layout = exchanged(model(), codec, Policy(**MODEL)).layout
        key = seat.key(1, Hop.OWN).of(**changes.get("key", {}))
        gradient = changes.get("gradient", GRADIENT)
        body = layout.encode(gradient, key)
        body = changes.get("body", lambda body: body)(body)
        number = seat.version + changes.get("ahead", 0)
        frame = Frame(changes.get("kind", Kind.PUSH), number, body).pack()
        frame = changes.get("frame", lambda frame: frame)(frame)
        return said_to(seat.pair, frame)

    return deed


def flipped(place):
    def change(octets):
        octets = bytearray(octets)
        octets[place] ^= 1
        return bytes(octets)

    return change


def framed(change):
    """`change` of the bytes of a frame."""
    return lambda frame: torch.frombuffer(
        bytearray(change(frame.numpy().tobytes())), dtype=torch.uint8
    )


def headed(kind=2, length=100, form=1):
    """A header whose checksum is right, whatever it says."""

    def change(octets):
        head = struct.pack("<4sBBBxQQ", b"GWAF", form, kind, 0, 1, length)
        return head + struct.pack("<I4x", zlib.crc32(head)) + octets[32:]

    return framed(change)


def halved(body):
    """Of float16."""
    return gw.encode("none", torch.ones(50).half()).ljust(200, b"\0") + body


def larger(body):
    return gw.encode("none", torch.ones(51)) + body


def vast(body):
    """A few bytes that stand for a million million values."""
    honest = bytearray(gw.encode("none", torch.ones(50)))
    honest[36:44] = struct.pack("<Q", 10**12)
    return bytes(honest)


def spoiled(value):
    gradient = GRADIENT.clone()
    gradient[500] = value
    return gradient


DEEDS = {
    "magic": (push(frame=framed(flipped(0))), "a frame starts with b'GWAF'"),
    "format": (push(frame=headed(form=2)), "frames are of format 1 here, got 2"),
    "header": (push(frame=framed(flipped(9))), "the checksum of a header is wrong"),
    "kind of a server": (push(kind=Kind.WELCOME), "PUSH or PULL or BYE may come now, got kind 16"),
    "kind unknown": (push(frame=headed(kind=99)), "may come now, got kind 99"),
    "length": (push(frame=headed(length=1 << 40)), "a body has at most .* here, got 1099511627776"),
    "payload": (push(body=flipped(600)), "the checksum is wrong: the message was damaged"),
    "message": (push(body=flipped(0)), "a message starts with b'GRDW'"),
    "cut short": (push(body=lambda body: body[:-64]), "cut short"),
    "nothing": (push(body=lambda body: b""), "a message has at least 44 bytes, got 0"),
    "more": (push(body=lambda body: body + bytes(8)), "the messages take .* bytes, got"),
    "codec": (push(codec="qsgd:bits=8"), "must have the codec qsgd:bits=4, got qsgd:bits=8"),
    "type": (push(body=halved), "must have the .*, got"),
    "shape": (push(body=larger), r"must have the shape \(50,\), got \(51,\)"),
    "vast": (push(body=vast), r"must have the shape \(50,\), got \(1000000000000,\)"),
    "seed": (push(key={"seed": 9}), "must have the key"),
    "step": (push(key={"step": 2}), "must have the key"),
    "rank": (push(key={"rank": 1}), "must have the key"),
    "hop": (push(key={"hop": 3}), "must have the key"),
    "nan": (push(gradient=spoiled(torch.nan)), "has values that are not finite"),
    "inf": (push(gradient=spoiled(-torch.inf)), "has values that are not finite"),
    "future": (push(ahead=1), "are of version 1, but it says 2"),
    "past": (push(ahead=-1), "are of version 1, but it says 0"),
}


@pytest.mark.parametrize("name", DEEDS)
def test_a_hostile_push_is_refused_by_name_and_changes_nothing(server, name):
    deed, words = DEEDS[name]
    record, told = visit(server, deed)
    assert record.state is State.REFUSED
    assert record.name == "a ?[31mstranger"
    assert record.reason == told
    assert re.search(words, told), told


def flood(server):
    """More bytes than any frame has: gloo ends the process that receives them."""
    seat, _ = joined(server)
    seat.pair.send(torch.zeros(1_000_000, dtype=torch.uint8), 10.0)
    return said_to(seat.pair, Frame(Kind.PULL, seat.version).pack())


def noise(server):
    seat, layout = joined(server)
    generator = torch.Generator().manual_seed(0)
    size = (layout.max_nbytes,)
    return said_to(seat.pair, torch.randint(256, size, dtype=torch.uint8, generator=generator))


def test_who_sends_more_than_there_is_room_for_ends_only_its_own_connection(server):
    record, _ = visit(server, flood)
    assert record.state is State.REFUSED
    assert "what it sent ended the process that read it" in record.reason
    assert "1000000 vs" in record.reason
    assert server.honest.do(server, "pull") is None


def test_noise_is_refused(server):
    record, told = visit(server, noise)
    assert record.state is State.REFUSED
    assert "a frame starts with" in told


def hello(body):
    """A deed: another HELLO."""

    def deed(server):
        address = Address.parse(server.address)
        store = find_store(address, 5.0)
        pair = Pair(room_of(store, store.add(JOINS, 1)), 1, host=address.host, timeout=10.0)
        return said_to(pair, Frame(Kind.HELLO, body=body).pack())

    return deed


def digests(net, codec, policy):
    return exchanged(net, codec, policy).layout.digests


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"short", "a HELLO has at least 96 bytes"),
        (digests(torch.nn.Linear(20, 40), CODEC, Policy(**MODEL)), "the model must be the same"),
        (digests(model(), "qsgd:bits=8", Policy(**MODEL)), "the codec must be the same"),
        (digests(model(), CODEC, Policy(min_numel=5)), "the policy must be the same"),
    ],
)
def test_who_has_something_else_in_mind_is_told_so(server, body, words):
    record, told = visit(server, hello(body))
    assert record.state is State.REFUSED
    assert words in told
    assert told == record.reason


def test_honest_workers_notice_nothing(server):
    """After all of them: this file is run in order."""
    version = server.version
    state = server.honest.do(server, "state")
    assert torch.equal(server.held_by(state["rank"]), state["weights"])
    assert server.honest.do(server, "step", 1) is True
    assert server.version == version + 1
    assert server.stats().refused == len(server.stats().workers) - 1
