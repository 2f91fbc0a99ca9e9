"""Network namespaces, one a worker, joined by a bridge and shaped by `tc tbf`.

Needs root and iproute2. Nothing of the host's network is touched, and everything is removed at the
end; by a watchdog if this process is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

IFACE = "eth0"
ADDRESS = "10.77.0."
BURST = "512kb"  # 0.4 ms at 10 Gbit/s: larger ones carry no more, and let more through unshaped


def require_root() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"This needs {' and '.join(missing)}: install iproute2 (apt install iproute2).")
    if os.geteuid() != 0:
        sys.exit("This makes network namespaces and needs root: run it with sudo.")


@contextmanager
def namespaces(workers: int, rate: str) -> Iterator[list[str]]:
    """The names of `workers` namespaces whose interfaces send at `rate`, as `tc` spells it."""
    prefix = f"gw{os.getpid()}"
    names, switch = [f"{prefix}w{i}" for i in range(workers)], f"{prefix}s"
    removal = "; ".join(f"ip netns del {name}" for name in [*names, switch])
    watchdog = subprocess.Popen(  # its pipe closes when this process ends, however it ends
        ["setsid", "sh", "-c", f"read line; {removal}"], stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _run(f"ip netns add {switch}")
        _run(f"ip -n {switch} link add br0 type bridge")
        _run(f"ip -n {switch} link set br0 up")
        for i, name in enumerate(names):
            _run(f"ip netns add {name}")
            _run(f"ip link add {IFACE} netns {name} type veth peer name port{i} netns {switch}")
            _run(f"ip -n {switch} link set port{i} master br0 up")
            _run(f"ip -n {name} addr add {ADDRESS}{i + 1}/24 dev {IFACE}")
            _run(f"ip -n {name} link set {IFACE} up")
            _run(f"ip -n {name} link set lo up")
            shape = f"root tbf rate {rate} burst {BURST} latency 100ms"
            _run(f"tc -n {name} qdisc add dev {IFACE} {shape}")
        yield names
    finally:
        assert watchdog.stdin is not None
        watchdog.stdin.close()
        watchdog.wait()


def _run(command: str) -> None:
    done = subprocess.run(command.split(), check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(
            f"`{command}` failed ({done.stderr.strip()}). In a container, namespaces need "
            "CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)."
        )
