"""Links of the lab: that they are what was asked for, carry the training, and leave nothing behind.

Namespaces are made where that is allowed, by root and by users without any rights.
"""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gradwire.lab import workers
from gradwire.lab.links import namespaces
from gradwire.lab.links.namespaces import IFACE, address, network, sent_bytes
from gradwire.lab.links.shape import Shape
from gradwire.lab.records import Remark

TRAIN = [sys.executable, "-m", "gradwire", "train", "-w", "2", "-t", "mnist-fc", "-c", "none"]
FAST = Shape.parse("1gbit")
DROPPED = {
    "an ordinary user": ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
    "root without rights": ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"],
}
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]  # no user namespace either


def refusal(shape):
    try:
        with network(1, shape):
            return ""
    except ValueError as error:
        return str(error)


needs_links = pytest.mark.skipif(bool(why := refusal(FAST)), reason=f"no links here: {why}")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can drop its rights"
)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("200mbit", Shape(2e8)),
        ("1Gbit", Shape(1e9)),
        ("2.5gbit", Shape(2.5e9)),
        ("50mbit,delay=20ms", Shape(5e7, 0.02)),
        ("640kbit,delay=50us", Shape(6.4e5, 5e-5)),
    ],
)
def test_a_link_is_read_and_written_alike(text, shape):
    assert Shape.parse(text) == shape
    assert str(shape) == text.lower()
    assert Shape.parse(str(shape)) == shape


@pytest.mark.parametrize(
    "text", ["", "fast", "200", "mbit", "200mbits", "-1mbit", "1e3mbit", "1..2mbit", "nanmbit",
             "0mbit", "1kbit", "9000gbit", "1gbit,delay=1h", "1gbit,delay=", "1gbit,delay=20ms,",
             "1gbit,delay=11s", "1gbit,loss=1", "20ms"],
)  # fmt: skip
def test_what_is_no_link_is_refused(text):
    with pytest.raises(ValueError, match=r"a link must .*; got"):
        Shape.parse(text)


def said_in(namespace, *command):
    run = lambda: subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: E731
    return namespace.call(run).stdout


@needs_links
def test_every_worker_sends_at_the_rate_and_nothing_of_the_host_changes():
    before = Path("/proc/net/dev").read_text().count("\n")
    with network(3, Shape.parse("50mbit")) as made:
        for rank, worker in enumerate(made.workers):
            (queue,) = [
                each for each in json.loads(said_in(worker, "tc", "-j", "qdisc"))
                if each["dev"] == IFACE
            ]  # fmt: skip
            assert (queue["kind"], queue["options"]["rate"]) == ("tbf", 50e6 / 8)
            assert f"{address(rank)}/24" in said_in(worker, "ip", "-br", "addr")
        assert Path("/proc/net/dev").read_text().count("\n") == before


VALUES = 1 << 20


def network_of(process):
    """The name that the kernel gives a namespace."""
    return str(Path(f"/proc/{process}/ns/net").readlink())


def _send(listener):
    """Say what the workers see: their namespaces, their addresses, what their interfaces sent."""
    before = sent_bytes()
    dist.all_reduce(torch.ones(VALUES))
    dist.barrier()  # whatever is still queued
    mine = {
        "namespace": network_of("self"),
        "interface": os.environ["GLOO_SOCKET_IFNAME"],
        "sent": sent_bytes() - before,
    }
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    listener(Remark(json.dumps(everyone)))


@needs_links
def test_workers_are_apart_and_talk_over_their_links():
    heard = []
    workers.run(_send, 3, heard.append, FAST)
    (found,) = [json.loads(event.text) for event in heard]
    apart = {each["namespace"] for each in found} | {network_of("self")}
    assert len(apart) == 4
    for each in found:
        assert each["interface"] == IFACE
        assert 1 <= each["sent"] / (2 * 2 / 3 * 4 * VALUES) < 1.1  # a ring, and headers


def held(names):
    """Which of these namespaces a process is in, or has a file open on."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        for place in (process / "ns" / "net", *_files(process)):
            with contextlib.suppress(OSError):
                found.add(str(place.readlink()))
    return found & set(names)


def _files(process):
    with contextlib.suppress(OSError):
        yield from (process / "fd").iterdir()


def wait_until_gone(names):
    deadline = time.monotonic() + 30
    while held(names):
        assert time.monotonic() < deadline, "namespaces were left behind"
        time.sleep(0.05)


@needs_links
def test_namespaces_are_held_until_they_are_let_go():
    with network(2, FAST) as made:
        names = [str(Path(each.path).readlink()) for each in (made.hub, *made.workers)]
        assert held(names) == set(names)
    wait_until_gone(names)


@contextlib.contextmanager
def training(*prefix):
    """A run on links that would take hours, once it has begun; the namespaces of its workers."""
    terminal, tty = pty.openpty()
    command = [*prefix, *TRAIN, "--steps", "99999", "--link", "1gbit"]
    process = subprocess.Popen(command, stdin=tty, stdout=tty, stderr=tty, start_new_session=True)
    os.close(tty)
    try:
        shown = b""
        while not re.search(rb"[1-9]\d*/99999", shown):
            shown += os.read(terminal, 4096)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        places = {network_of(pid): int(pid) for pid in children}
        del places[network_of(process.pid)]  # where Python's resource tracker is
        assert len(places) == 2
        yield process, places
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


@pytest.mark.slow
@needs_links
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]
)
def test_nothing_is_left_of_a_run_that_is_ended(number, code):
    with training() as (process, places):
        process.send_signal(number)
        assert process.wait(timeout=30) == code
        wait_until_gone(places)


@pytest.mark.slow
@needs_links
def test_nothing_is_left_if_a_worker_is_killed():
    with training() as (process, places):
        os.kill(next(iter(places.values())), signal.SIGKILL)
        assert process.wait(timeout=30) == 1
        wait_until_gone(places)


def run(*command, **environment):
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=240,
        env=os.environ | environment,
    )  # fmt: skip


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("who", DROPPED)
def test_links_need_no_root(who, tmp_path):
    tmp_path.chmod(0o777)
    inside = [*DROPPED[who], "unshare", "--user", "--map-root-user"]
    tried = run(*inside, sys.executable, "-c", "import gradwire.lab.links")
    if tried.returncode:
        pytest.skip(f"{who} can start no Python in a user namespace: {tried.stderr.strip()}")
    command = [*DROPPED[who], *TRAIN, "--steps", "3", "--link", "1gbit", "--json", "-"]
    done = run(*command, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert (result["link"], result["steps"]) == ("1gbit", 3)


@needs_root
def test_who_may_have_no_namespaces_is_told_how_to_get_them():
    done = run(*POWERLESS, *TRAIN, "--link", "1gbit")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"Error: links need network namespaces, .*refused.*\n", done.stderr)
    assert "run as root" in done.stderr
    assert "--privileged" in done.stderr


@needs_links
def test_a_delay_is_there_or_refused_before_anything_starts():
    """20 ms each way, if the kernel has netem; a sentence, if it does not."""
    slow = Shape(1e9, 0.02)
    if refused := refusal(slow):
        assert re.match(r"`delay=` needs the kernel's netem, which is not there \(.*\): ", refused)
        done = run(*TRAIN, "--link", str(slow))
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"Error: {refused}\n")
        return
    with network(2, slow) as made:
        queues = json.loads(said_in(made.hub, "tc", "-j", "qdisc"))
        delays = [q["options"]["delay"]["delay"] for q in queues if q["kind"] == "netem"]
        assert delays == [0.02, 0.02]


def test_missing_tools_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(namespaces, "PLACES", str(tmp_path))
    assert refusal(FAST) == "links need `ip` and `tc`: install iproute2 (`apt install iproute2`)."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--link", "fast"], "a link must be a rate"),
        (["--link", "1gbit", "-w", "201"], "`--link` joins at most 200 workers, got 201."),
    ],
)
def test_a_link_that_cannot_be_is_refused(arguments, sentence):
    done = run(*TRAIN, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert sentence in done.stderr


def test_links_are_not_for_workers_of_torchrun():
    done = run(*TRAIN, "--link", "1gbit", TORCHELASTIC_RUN_ID="x", WORLD_SIZE="2", RANK="0")
    assert done.returncode == 2
    assert "torchrun started these; leave out one of the two." in done.stderr
