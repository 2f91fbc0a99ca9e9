"""The process that gates are forked from: it has imported everything, and has no threads.

It is a fresh interpreter, and not a fork of the server, whose threads a fork would not have. It
ends when the server does.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback

import torch

from gradwire.algorithms.asynchronous.channel import Channel
from gradwire.algorithms.asynchronous.gate import run_gate
from gradwire.codecs import parse
from gradwire.key import Key
from gradwire.wire import decode, encode

COMMAND = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from gradwire.algorithms.asynchronous.gatekeeper import main; main(*sys.argv[1:3])"
)
REHEARSAL_NUMEL = 2048  # with fewer values some kernels are not called
FILES = 3  # that a gate is given: its channel, its memory, and where its last words go


def main(control: str, specs: str) -> None:
    """Fork a gate whenever files for one arrive at socket number `control`.

    specs: the codecs of its messages, whose kernels are ready before the first worker comes.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a gate ended
    torch.set_num_threads(1)
    for spec in specs.split():
        decode(encode(parse(spec), torch.ones(REHEARSAL_NUMEL), Key()))
    with socket.socket(fileno=int(control)) as end:
        end.sendall(b"ready")
        while True:
            message, files, _, _ = socket.recv_fds(end, 1, FILES)
            if not message:
                os._exit(0)
            if os.fork() == 0:
                end.close()
                _be_gate(*files)
            for file in files:
                os.close(file)


def _be_gate(channel: int, memory: int, words: int) -> None:
    """Never returns: what the gatekeeper would do at its end is not a gate's to do."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(words, sys.stderr.fileno())
    try:
        run_gate(Channel(socket.socket(fileno=channel)), memory)
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(0)
