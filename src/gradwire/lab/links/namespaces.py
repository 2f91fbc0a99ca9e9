"""Network namespaces, one a worker, joined by a bridge and shaped by `tc`.

A namespace has no name here: it lives as long as this process has a file open on it, or a process
is in it. So nothing is left behind, however a run ends, and the host's network is not touched.

Every worker's interface sends at the link's rate (`tbf`). A delay is added where packets leave the
bridge (`netem`), so that the two do not meet in one queue.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gradwire.lab.links.shape import Shape

IFACE = "eth0"
SUBNET = "10.77.0."
BURST = "512kb"  # 0.4 ms at 10 Gbit/s: larger ones carry no more, and let more through unshaped
QUEUE = "100ms"  # a packet that would wait longer is dropped
DELAYED_PACKETS = 100_000  # that may be under way to a worker at once
CLONE_NEWNET = 0x40000000
PLACES = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

Answer = TypeVar("Answer")


class RefusedError(ValueError):
    """This process may not make namespaces; with more rights it might."""


class Namespace:
    """A network of its own, with nothing in it but a loopback interface."""

    def __init__(self) -> None:
        self._file = _in_a_thread(_unshare)

    @property
    def path(self) -> str:
        """Where other processes find it while this one has it open."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def call(self, function: Callable[[], Answer]) -> Answer:
        """Call `function` inside: its sockets, threads and processes stay there."""

        def inside() -> Answer:
            _setns(self._file)
            return function()

        return _in_a_thread(inside)

    def run(self, command: str) -> None:
        """Run a command of iproute2 inside."""
        self.call(lambda: _run(command))

    def close(self) -> None:
        """Let go of it; it is gone when its last process is."""
        os.close(self._file)


@dataclass(frozen=True)
class Network:
    """The namespaces of the workers, by rank, and the one of the bridge that joins them."""

    hub: Namespace
    workers: tuple[Namespace, ...]

    def command(self, rank: int) -> list[str]:
        """What to put before a command to run it as this worker."""
        return ["nsenter", f"--net={self.workers[rank].path}"]


@contextmanager
def network(workers: int, shape: Shape) -> Iterator[Network]:
    """Make the links of `workers`. Raises `ValueError` where that cannot be, and says why."""
    check_tools()
    with ExitStack() as stack:

        def namespace() -> Namespace:
            made = Namespace()
            stack.callback(made.close)
            return made

        made = Network(namespace(), tuple(namespace() for _ in range(workers)))
        made.hub.run("ip link add br0 type bridge")
        made.hub.run("ip link set br0 up")
        for rank, worker in enumerate(made.workers):
            _join(made.hub, worker, rank, shape)
        yield made


def address(rank: int) -> str:
    """The address of a worker on its link."""
    return f"{SUBNET}{rank + 1}"


def enter(path: str) -> None:
    """Move this thread, and those that it starts from now on, into the namespace at `path`."""
    file = os.open(path, os.O_RDONLY)
    try:
        _setns(file)
    finally:
        os.close(file)


def sent_bytes(iface: str = IFACE) -> int:
    """Bytes that an interface of this process's network has sent, by the kernel's own count."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == iface:
            return int(counts.split()[8])
    raise ValueError(f"there is no interface `{iface}` here.")


def check_tools() -> None:
    """Raise `ValueError` unless there is what makes links."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool, path=PLACES) is None]
    if missing:
        raise ValueError(
            f"links need {' and '.join(f'`{tool}`' for tool in missing)}: install iproute2 "
            "(`apt install iproute2`)."
        )


def _join(hub: Namespace, worker: Namespace, rank: int, shape: Shape) -> None:
    """Put a cable between a worker and the bridge, and shape it."""
    port = f"port{rank}"
    hub.run(f"ip link add {port} type veth peer name {IFACE} netns {worker.path}")
    hub.run(f"ip link set {port} master br0 up")
    worker.run("ip link set lo up")
    worker.run(f"ip addr add {address(rank)}/24 dev {IFACE}")
    worker.run(f"ip link set {IFACE} up")
    rate = f"tbf rate {shape.rate:.0f}bit burst {BURST} latency {QUEUE}"
    worker.run(f"tc qdisc add dev {IFACE} root {rate}")
    if shape.delay:
        delay = f"netem delay {1e6 * shape.delay:.0f}us limit {DELAYED_PACKETS}"
        hub.run(f"tc qdisc add dev {port} root {delay}")


def _run(command: str) -> None:
    done = subprocess.run(
        command.split(),
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": PLACES},
    )
    if done.returncode:
        raise _complaint(command, " ".join(done.stderr.split()))


def _complaint(command: str, said: str) -> ValueError:
    if "not permitted" in said:
        return RefusedError(f"`{command}` was refused ({said})")
    for queue, use in (("netem", "`delay=`"), ("tbf", "a rate")):
        if f" {queue} " in command:
            return ValueError(
                f"{use} needs the kernel's {queue}, which is not there ({said}): load it with "
                f"`modprobe sch_{queue}`, or use a kernel that has it."
            )
    return ValueError(f"`{command}` failed: {said}.")


def _in_a_thread(function: Callable[[], Answer]) -> Answer:
    """Namespaces belong to threads: whoever enters one must not come back among the others."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def _unshare() -> int:
    """Move this thread into a new namespace, and return an open file that keeps it."""
    _call("unshare", CLONE_NEWNET)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _setns(file: int) -> None:
    _call("setns", file, CLONE_NEWNET)


def _call(name: str, *arguments: int) -> None:
    """Call the C library, as `os.unshare` and `os.setns` of Python 3.12 do."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) == 0:
        return
    number = ctypes.get_errno()
    said = f"{name}: {os.strerror(number)}"
    if number == errno.EPERM:
        raise RefusedError(said)
    raise ValueError(f"the kernel made no network namespace ({said}).")
