"""Asynchronous training: what a server and its workers owe each other, over real gloo."""

import signal
from itertools import pairwise

import pytest
import torch
from torch import nn

import gradwire as gw
from async_crew import MODEL, NUMEL, Hand, flat, hands, loss_of, model, serving, sgd
from gradwire.algorithms import AsyncServer, per_push
from gradwire.algorithms.asynchronous import updates
from gradwire.algorithms.asynchronous.descent import Descent
from gradwire.algorithms.asynchronous.layout import exchanged
from gradwire.algorithms.asynchronous.settings import AsyncSettings
from gradwire.algorithms.asynchronous.statistics import State
from gradwire.algorithms.flat import Flat
from gradwire.key import Key
from gradwire.reduction.policy import Policy

QSGD = "qsgd:bits=4"
pytestmark = pytest.mark.usefixtures("one_gatekeeper")


def in_order(server):
    """The server's weights as a vector of sections."""
    return server._descent.flat.get()


def records(server):
    return {each.rank: each for each in server.stats().workers}


def test_one_worker_without_compression_is_sgd_bit_for_bit():
    alone = model()
    optimizer = sgd(alone)
    for seed in range(5):
        optimizer.zero_grad()
        loss_of(alone, seed).backward()
        optimizer.step()
    with serving("none") as server:
        (hand,) = hands(server, 1, "none")
        assert [hand.do(server, "step", seed) for seed in range(5)] == [True] * 5
        state = hand.do(server, "state")
        assert torch.equal(flat(server.net), flat(alone))
        assert torch.equal(state["model"], flat(alone))
        assert server.version == state["version"] == 5


@pytest.mark.parametrize("codec", [QSGD, "qsgd:bits=2", "topk:density=0.05"])
def test_the_server_knows_the_weights_of_every_worker_to_the_bit(codec):
    with serving(codec, seed=3) as server:
        crew = hands(server, 2, codec)
        for seed in range(6):
            crew[seed % 3 % 2].do(server, "step", seed)
        for hand in crew:
            state = hand.do(server, "state")
            assert torch.equal(server.held_by(state["rank"]), state["weights"])
            assert not torch.equal(state["weights"], in_order(server))
            assert torch.equal(state["weights"].sort()[0], state["model"].sort()[0])


def test_both_sides_count_the_same_bytes():
    with serving(QSGD) as server:
        (hand,) = hands(server, 1, QSGD)
        for seed in range(3):
            hand.do(server, "step", seed)
        stats = hand.do(server, "state")["stats"]
        hand.do(server, "close")
        server.serve(seconds=0.3)
        record, frame = records(server)[1], 32
        assert stats.steps == record.counted == 3
        assert record.bytes_received - stats.bytes_sent == frame + 96 + len("hand 0") + frame
        welcome = frame + 16 + len(gw.encode("none", torch.zeros(NUMEL)))
        assert record.bytes_sent - stats.counts["bytes_received"] == welcome
        assert stats.raw == ("0.bias", "2.bias")


def drift(codec, pulls):
    """Norms of what a worker lacks while the server stands still, before and after each pull."""
    layout, net, _ = exchanged(model(), codec, Policy(min_numel=0))
    generator = torch.Generator().manual_seed(0)
    held, weights = net.get(), net.get() + torch.randn(net.numel, generator=generator)
    lacking = [float((weights - held).norm())]
    for step in range(pulls):
        updates.encode_update(layout, Key(step=step), weights, held)
        lacking.append(float((weights - held).norm()))
    return lacking


@pytest.mark.parametrize(
    ("codec", "left"),
    [
        (QSGD, 1e-6),
        ("qsgd:bits=2", 1e-3),
        ("topk:density=0.05,block=128", 1e-3),
        ("qsgd:levels=1,norm=l2", 0.5),
    ],
)
def test_what_an_update_loses_is_made_up_for_by_the_next(codec, left, monkeypatch):
    """Where a code has far more variance than the vector, only the factor makes it contract."""
    lacking = drift(codec, 60)
    assert all(b <= a for a, b in pairwise(lacking) if a > 1e-6 * lacking[0])
    assert lacking[-1] < left * lacking[0]
    if codec == "qsgd:levels=1,norm=l2":
        monkeypatch.setattr(updates, "_factor", lambda way, said: 1.0)
        assert drift(codec, 60)[-1] > 100 * lacking[0]


def test_a_gradient_that_is_too_late_does_not_count_and_owes_nothing():
    codec = "topk:density=0.05"
    with serving(codec, max_delay=2) as server:
        late, other = hands(server, 2, codec)
        late.do(server, "step", 0)
        late.do(server, "gradient", 1)
        for seed in range(2):
            other.do(server, "step", 10 + seed)
        assert late.do(server, "push") is True  # two steps late, which is allowed
        owed = late.do(server, "state")["owed"]
        late.do(server, "gradient", 2)
        for seed in range(3):
            other.do(server, "step", 20 + seed)
        before = flat(server.net)
        assert late.do(server, "push") is False
        assert torch.equal(flat(server.net), before)
        assert server.version == 1 + 2 + 1 + 3
        assert records(server)[1].stale == 1
        state = late.do(server, "state")
        assert state["version"] == server.version
        assert owed.norm() > 0
        assert torch.equal(state["owed"], owed)
        assert late.do(server, "step", 3) is True
        assert not torch.equal(late.do(server, "state")["owed"], owed)
        assert server.stats().delays == {0: 5, 1: 2, 2: 1}
        assert state["stats"].counts["stale"] == 1


def test_gradients_in_are_what_has_counted_and_what_is_owed():
    """With SGD of rate 1 without momentum, the weights tell what has counted."""
    codec = "topk:density=0.05"
    with serving(codec, optimizer=lambda net: torch.optim.SGD(net.parameters(), lr=1.0)) as server:
        (hand,) = hands(server, 1, codec)
        start, total, twin = in_order(server), torch.zeros(NUMEL), model()
        own = exchanged(twin, codec, Policy(**MODEL)).flat
        for seed in range(4):
            own.put(hand.do(server, "state")["weights"])
            total += own.gradient(loss_of(twin, seed))
            hand.do(server, "step", seed)
        owed = hand.do(server, "state")["owed"]
        assert owed.norm() > 0.1 * total.norm()
        assert torch.allclose(start - in_order(server) + owed, total, atol=1e-6)


def test_a_worker_that_is_killed_or_frozen_stops_nobody():
    with serving(QSGD, max_delay=3) as server:
        killed, frozen, other = hands(server, 3, QSGD)
        for seed, hand in enumerate((killed, frozen, other)):
            assert hand.do(server, "step", seed) is True
        frozen.do(server, "gradient", 5)
        frozen.kill(signal.SIGSTOP)
        frozen.begin("push")
        killed.begin("push")
        killed.kill()
        for seed in range(6):
            assert other.do(server, "step", seed) is True
        assert server.version >= 9
        frozen.kill(signal.SIGCONT)
        assert frozen.answer(server) is False
        assert frozen.do(server, "state")["version"] == server.version
        assert frozen.do(server, "step", 9) is True
        newcomer = Hand(server.address, QSGD)
        newcomer.answer(server)
        state = newcomer.do(server, "state")
        assert torch.equal(state["weights"], server._descent.ahead())
        assert newcomer.do(server, "step", 1) is True
        states = [record.state for record in server.stats().workers]
        assert states == [State.LOST, State.CONNECTED, State.CONNECTED, State.CONNECTED]
        other.begin("close")
        other.answer(server)
        server.serve(seconds=0.3)
        assert records(server)[3].state is State.LEFT


def test_a_server_that_is_closed_sends_its_workers_home():
    with serving(QSGD) as server:
        first, second = hands(server, 2, QSGD)
        first.do(server, "step", 0)
        second.do(server, "gradient", 0)
        second.begin("push")
        first.begin("push")
        server.close()
        assert [hand.answer() for hand in (first, second)] == [False, False]
        assert all(hand.do(None, "state")["done"] for hand in (first, second))
        assert server.version == 1
        assert {record.state for record in server.stats().workers} == {State.LEFT}


def test_a_gradient_that_is_not_finite_is_not_pushed():
    with serving(QSGD) as server:
        (hand,) = hands(server, 1, QSGD)
        before = flat(server.net)
        assert hand.do(server, "spoiled") is False
        assert torch.equal(flat(server.net), before)
        assert hand.do(server, "state")["stats"].counts["not_finite"] == 1
        assert hand.do(server, "step", 0) is True


def test_late_gradients_are_damped_and_long_ones_clipped():
    def moved(gradient, base, **settings):
        net = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(net.weight)
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        descent = Descent(Flat(net.parameters()), optimizer, None, AsyncSettings(**settings))
        descent.version, descent.usual.mean = 20, 1.0
        assert descent.push(torch.tensor(gradient), base)
        return (-net.weight.detach()).flatten().tolist()

    assert moved([3.0, 4.0], 13, damping=None) == [3.0, 4.0]
    assert moved([3.0, 4.0], 13, damping="inverse") == [3 / 8, 4 / 8]
    assert moved([3.0, 4.0], 13, damping="excess") == [2 * 3 / 8, 2 * 4 / 8]
    assert moved([3.0, 4.0], 19, damping="excess") == [3.0, 4.0]
    assert moved([3.0, 4.0], 20, damping=None, clip=2.5) == [1.5, 2.0]


def test_weights_are_sent_from_where_momentum_will_have_taken_them():
    """If no more gradients come, that is where the model is when the next one is back."""
    net = model()
    flat_net = Flat(net.parameters())
    descent = Descent(flat_net, sgd(net), None, AsyncSettings())
    descent.push(torch.randn(NUMEL, generator=torch.Generator().manual_seed(0)), 0)
    assert torch.equal(descent.ahead(), descent.weights)  # nobody is late
    descent.usual.mean = 2.6
    guess = descent.ahead()
    assert not torch.allclose(guess, descent.weights, atol=1e-3)
    for _ in range(3):
        descent.push(torch.zeros(NUMEL), descent.version)
    assert torch.allclose(guess, descent.weights, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        lambda params: torch.optim.SGD(params, lr=0.1),
        lambda params: torch.optim.Adam(params, lr=0.1),
    ],
)
def test_pushes_of_n_workers_go_as_far_as_a_step_of_all(make):
    """In the long run, with gradients that are all the same."""
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    sync, pushed = make([weights[0]]), per_push(make([weights[1]]), 4)
    for steps, optimizer in ((200, sync), (800, pushed)):
        for _ in range(steps):
            optimizer.param_groups[0]["params"][0].grad = torch.full((1,), -0.5)
            optimizer.step()
    assert weights[1].item() == pytest.approx(weights[0].item(), rel=0.01)


def test_weights_that_are_not_finite_stop_the_server():
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e30)
    descent = Descent(Flat(net.parameters()), optimizer, None, AsyncSettings())
    with pytest.raises(RuntimeError, match="version 1 are not finite: training has diverged"):
        descent.push(torch.full((3,), 1e30), 0)


def with_norm():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    ("net", "codec", "settings", "words"),
    [
        (with_norm, QSGD, {}, "'1' keeps running statistics"),
        (model, "gradiveq", MODEL, "gradiveq.* learns from what all workers say"),
        (model, QSGD, {"policy": Policy(warmup_steps=3)}, "`warmup_steps` of a policy"),
        (model, QSGD, {"max_delay": -1}, "`max_delay` must be an integer of at least 0, got -1"),
        (model, QSGD, {"damping": "half"}, "`damping` must be one of 'excess', 'inverse', None"),
        (model, QSGD, {"lookahead": 2}, "`lookahead` must be from 0 to 1, got 2"),
        (model, QSGD, {"clip": 0.0}, "`clip` must be positive and finite, got 0.0"),
        (model, QSGD, {"address": "here"}, '`address` must be such as "10.0.0.1:29600"'),
        (model, QSGD, {"checkpoint_every": 0}, "`checkpoint_every` must be an integer"),
    ],
)
def test_what_cannot_be_is_refused_in_words(net, codec, settings, words):
    made = net()
    with pytest.raises(ValueError, match=words):
        AsyncServer(made, sgd(made), codec, **settings)


def test_an_optimizer_of_other_parameters_is_refused():
    with pytest.raises(ValueError, match="`optimizer` must have all parameters of `model`"):
        AsyncServer(model(), sgd(model()), QSGD)
