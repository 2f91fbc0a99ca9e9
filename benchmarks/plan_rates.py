"""Measure the table of codec speeds that `gradwire plan` uses without a profile.

.venv/bin/python benchmarks/plan_rates.py                # print it
.venv/bin/python benchmarks/plan_rates.py --write        # into src/gradwire/planner/rates.json
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import threading
import time
from pathlib import Path

import torch

from gradwire.planner import rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the built-in table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [rates.measure(spec) for spec in rates.CODECS]
    text = rates.to_json(machine(), send_cpu(), found)
    if options.write:
        rates.TABLE.write_text(text)
    print(text)


def send_cpu() -> float:
    """Seconds of both ends of plain TCP over loopback, for a byte: a worker sends and receives."""
    block, count = bytes(1 << 20), 512
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:
        start = time.process_time()
        sending = threading.Thread(target=lambda: [sender.sendall(block) for _ in range(count)])
        sending.start()
        left = count * len(block)
        while left:
            left -= len(receiver.recv(1 << 20))
        sending.join()
    return (time.process_time() - start) / (count * len(block))


def machine() -> str:
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    name = found[1] if found else "an unknown processor"
    return f"{name}, one of {os.cpu_count()} cores, one thread"


if __name__ == "__main__":
    main()
