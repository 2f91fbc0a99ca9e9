"""What a link carries: plain TCP from every worker to the next, all at once."""

from __future__ import annotations

import socket
import threading
import time

import torch
import torch.distributed as dist

WARM_UP_S, TIMED_S = 0.3, 0.7  # the first for the burst that a token bucket lets through
BLOCK = 1 << 18


def reached_bps(master: str) -> float:
    """Bits of payload a second that arrive at a worker, the mean of all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    places: list = [None] * world
    with socket.create_server((own_address(master), 0)) as server:
        dist.all_gather_object(places, server.getsockname())
        sender = socket.create_connection(places[(rank + 1) % world])
        receiver, _ = server.accept()
    with sender, receiver:
        dist.barrier()
        sending = threading.Thread(target=send, args=(sender,))
        sending.start()
        bps = torch.tensor(receive(receiver) * 8 / TIMED_S)
        sending.join()
        dist.all_reduce(bps)
    return bps.item() / world


def own_address(master: str) -> str:
    """The address that this worker has on the master's network."""
    host, port = master.split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # sends nothing
        return probe.getsockname()[0]


def send(sender: socket.socket) -> None:
    block = bytes(BLOCK)
    end = time.perf_counter() + WARM_UP_S + TIMED_S
    while time.perf_counter() < end:
        sender.sendall(block)
    sender.shutdown(socket.SHUT_WR)


def receive(receiver: socket.socket) -> int:
    """Bytes that come in while it is timed; what comes before and after is read as well."""
    block = bytearray(BLOCK)
    start = time.perf_counter() + WARM_UP_S
    counted = 0
    while nbytes := receiver.recv_into(block):
        if 0 <= time.perf_counter() - start < TIMED_S:
            counted += nbytes
    return counted
