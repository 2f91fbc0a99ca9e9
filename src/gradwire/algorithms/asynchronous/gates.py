"""The gates of a server, as it sees them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from gradwire.algorithms.asynchronous.channel import Channel, Memory, Note, Topic
from gradwire.algorithms.asynchronous.gate import GateSettings
from gradwire.algorithms.asynchronous.gatekeeper import COMMAND
from gradwire.algorithms.asynchronous.statistics import WorkerRecord

LAST_WORDS_NBYTES = 2000


@dataclass(eq=False)
class OpenGate:
    """One of them, and what is known of its worker."""

    channel: Channel
    memory: Memory
    words: int
    record: WorkerRecord

    def last_words(self) -> str:
        """The end of what its process has said to nobody, such as what gloo died of."""
        size = os.fstat(self.words).st_size
        said = os.pread(self.words, LAST_WORDS_NBYTES, max(0, size - LAST_WORDS_NBYTES))
        return " ".join(said.decode(errors="replace").split()) or "it said nothing."

    def close(self) -> None:
        """Hang up; a gate that is still there ends by that."""
        self.channel.close()
        os.close(self.words)


class Gatekeeper:
    """Starts gates."""

    def __init__(self, specs: Iterable[str]) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(theirs.fileno()), " ".join(specs), *sys.path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the server's to act on
            )
        if not self._control.recv(5):
            raise RuntimeError("the process that gates are started from did not start; see above.")

    def open(self, settings: GateSettings, record: WorkerRecord, numel: int) -> OpenGate:
        """A gate for the worker that `settings` are about."""
        ours, theirs = socket.socketpair()
        memory, words = os.memfd_create("gradwire"), os.memfd_create("gradwire-words")
        os.ftruncate(memory, Memory.nbytes(numel))
        try:
            socket.send_fds(self._control, [b"g"], [theirs.fileno(), memory, words])
            gate = OpenGate(Channel(ours), Memory(memory, numel), words, record)
        finally:
            theirs.close()
            os.close(memory)
        gate.channel.send(Note(Topic.START, text=settings.to_json()))
        return gate

    def close(self) -> None:
        """End it. Gates end when their channels do."""
        self._control.close()
        self._process.wait()
