"""A server that is killed goes on from its checkpoint, and its workers find it again."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import world
from async_crew import MODEL, Hand, flat, hands, model, serving, sgd
from gradwire.algorithms import AsyncServer, AsyncWorker
from gradwire.algorithms.asynchronous import checkpoint as checkpoints
from gradwire.transport.pair import LostError

pytestmark = pytest.mark.usefixtures("one_gatekeeper")


def be_server(pipe, address, path):
    torch.set_num_threads(1)
    net = model()
    server = AsyncServer(
        net, sgd(net), "qsgd:bits=4", address=address, checkpoint=path, checkpoint_every=2, **MODEL
    )
    pipe.send((server.address, server._gatekeeper._process.pid, server.version, flat(net)))
    server.serve()


def start(address, path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(world._PRELOADED)
    pipe, theirs = context.Pipe()
    process = context.Process(target=be_server, args=(theirs, address, path), daemon=True)
    process.start()
    return process, pipe.recv()


def is_there(pid):
    """Does it run? One that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_killed_server_goes_on_from_its_checkpoint_and_is_found_again(tmp_path):
    path = tmp_path / "server.pt"
    process, (address, gatekeeper, version, _) = start("localhost:0", path)
    assert version == 0
    crew = [Hand(address, "qsgd:bits=4", name=f"hand {i}") for i in range(2)]
    for hand in crew:
        hand.answer()
    for seed in range(5):
        assert crew[seed % 2].do(None, "step", seed) is True
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    for hand in crew:
        hand.begin("step", 7)
    end = time.monotonic() + 60
    while is_there(gatekeeper) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_there(gatekeeper)
    again, (same, _, version, weights) = start(address, path)
    assert (same, version) == (address, 4)
    assert [hand.answer() for hand in crew] == [False, False]
    for hand in crew:
        state = hand.do(None, "state")
        assert state["version"] == 4
        assert torch.equal(state["model"], weights)
        assert state["stats"].counts["joins"] == 2
    assert crew[0].do(None, "step", 8) is True
    assert crew[0].do(None, "state")["version"] == 5
    again.kill()
    again.join()


def with_schedule(path):
    """A server whose optimizer and schedule both have something to remember."""
    net = model()
    optimizer = sgd(net)
    server = AsyncServer(
        net, optimizer, "none", scheduler=StepLR(optimizer, 2, 0.5), checkpoint=path, **MODEL
    )
    server.net = net
    return server


def trained(path, seeds):
    server = with_schedule(path)
    (hand,) = hands(server, 1, "none")
    for seed in seeds:
        assert hand.do(server, "step", seed) is True
    server.close(linger=0.0)
    return server


def test_a_run_that_is_resumed_ends_with_the_same_bits(tmp_path):
    whole = trained(tmp_path / "whole.pt", range(6))
    trained(tmp_path / "parts.pt", range(3))
    resumed = trained(tmp_path / "parts.pt", range(3, 6))
    assert torch.equal(flat(resumed.net), flat(whole.net))
    assert resumed.version == whole.version == 6
    assert resumed.stats().delays == whole.stats().delays == {0: 6}
    assert resumed._seed != whole._seed  # keys are never used again for other values


def test_a_checkpoint_is_whole_or_the_one_before_it(tmp_path, monkeypatch):
    path = tmp_path / "server.pt"
    with serving("none", checkpoint=path) as server:
        before = path.read_bytes()

        def fail(state, file):
            file.write(b"half of it")
            raise OSError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints.torch, "save", fail)
            with pytest.raises(OSError, match="the disk is full"):
                server.save()
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    path = tmp_path / "server.pt"
    with serving("none", checkpoint=path) as server:
        before = path.read_bytes()
        with torch.no_grad():
            server.net[0].bias[3] = torch.inf
    assert path.read_bytes() == before


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path):
    path = tmp_path / "server.pt"
    path.write_bytes(b"no checkpoint")
    net = model()
    with pytest.raises(ValueError, match=r"server\.pt cannot be read"):
        AsyncServer(net, sgd(net), "none", checkpoint=path)
    torch.save({"model": net.state_dict()}, path)
    with pytest.raises(ValueError, match="is no checkpoint of an asynchronous server"):
        AsyncServer(net, sgd(net), "none", checkpoint=path)
    torch.save({key: [] for key in checkpoints._KEYS}, path)
    with pytest.raises(ValueError, match="is of another model"):
        AsyncServer(net, sgd(net), "none", checkpoint=path)


def test_a_worker_looks_for_its_server_only_so_long():
    with pytest.raises(LostError, match=r"no server was found at localhost:9 within 0\.1 s"):
        AsyncWorker(model(), "none", "localhost:9", patience=0.1)
