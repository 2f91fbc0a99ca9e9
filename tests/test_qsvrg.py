"""QSVRG converges linearly where QSGD stalls, within the bits of its theorem."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gradwire as gw
from gradwire.algorithms import QSVRG
from gradwire.algorithms.qsvrg.settings import paper_codec
from gradwire.lab.mnist import Logistic, load_mnist

L2, LR, INNER, BATCH, EPOCHS, PLAIN_EPOCHS = 0.02, 4.0, 50, 8, 6, 4
VALUES = 7840


def own_digits(rank, size):
    """A worker's share of the images: digits that others hardly have."""
    train = load_mnist().train
    order = train.targets.argsort(stable=True)
    mine = order[rank * len(order) // size : (rank + 1) * len(order) // size]
    return train.inputs[mine], train.targets[mine]


def converge(rank, size):
    """Weights after every epoch of QSVRG, and what was sent until then; the same of QSGD."""
    images, digits = own_digits(rank, size)
    model = Logistic().double()

    def loss(chosen):
        return F.cross_entropy(model(images[chosen]), digits[chosen])

    settings = {"lr": LR, "inner_steps": INNER, "batch": BATCH, "l2": L2}
    optimizer = QSVRG(model.parameters(), loss, len(images), **settings)
    found = []
    for _ in range(EPOCHS):
        norm = optimizer.epoch()
        found.append((model.weight.detach().clone(), norm, optimizer.stats().bytes_sent))
    return found, plain_qsgd(rank, model, loss, len(images))


def plain_qsgd(rank, model, loss, num_examples):
    """The same steps and messages, but of plain gradients: weights after every epoch."""
    torch.nn.init.zeros_(model.weight)
    drawn, found = torch.Generator().manual_seed(rank), []
    for step in range(1, PLAIN_EPOCHS * INNER + 1):
        chosen = torch.randint(num_examples, (BATCH,), generator=drawn)
        value = loss(chosen) + L2 / 2 * model.weight.square().sum()
        (gradient,) = torch.autograd.grad(value, [model.weight])
        mean = gradient.float()
        gw.all_reduce(mean, paper_codec(VALUES), collective="all_gather")
        with torch.no_grad():
            model.weight -= LR * mean
        if step % INNER == 0:
            found.append(model.weight.detach().clone())
    return found


class Objective:
    """That of all workers together, less its optimum, which L-BFGS finds in float64."""

    def __init__(self):
        self.train = load_mnist().train
        self.model = Logistic().double()
        optimizer = torch.optim.LBFGS(
            self.model.parameters(), max_iter=500, history_size=50, tolerance_grad=1e-10,
            tolerance_change=0, line_search_fn="strong_wolfe",
        )  # fmt: skip

        def closure():
            optimizer.zero_grad()
            value = self._value()
            value.backward()
            return value

        optimizer.step(closure)
        assert self.model.weight.grad.norm() < 1e-8  # so the optimum is right to 1e-16 / 2 L2
        self.least = self._value().item()

    def _value(self):
        outputs = self.model(self.train.inputs)
        return (
            F.cross_entropy(outputs, self.train.targets) + L2 / 2 * self.model.weight.square().sum()
        )

    @torch.no_grad()
    def gap(self, weight):
        self.model.weight.copy_(weight)
        return self._value().item() - self.least


@pytest.mark.slow
def test_convergence_is_linear_where_qsgd_stalls(worlds):
    size = 4
    results = worlds[size].run(converge, size)
    first, plain = results[0]
    for found, _ in results[1:]:
        for (ours, norm, _), (theirs, their_norm, _) in zip(first, found, strict=True):
            assert torch.equal(ours, theirs)
            assert norm == their_norm
    objective = Objective()
    gaps = [objective.gap(torch.zeros(10, 784)), *(objective.gap(weight) for weight, *_ in first)]
    assert all(after < 0.9 * before for before, after in pairwise(gaps))
    assert gaps[-1] < 1e-8 * objective.least
    bound = (32 + 2.8 * VALUES) * (INNER + 1) + 32 * VALUES
    sent = [0, *(nbytes for *_, nbytes in first)]
    written = [8 * (b - a) / (size - 1) for a, b in pairwise(sent)]
    assert all(VALUES * (32 + INNER) < bits < bound for bits in written)
    floor = [objective.gap(weight) for weight in plain]
    assert min(floor) > 1e4 * gaps[-1]
    assert floor[-1] > 0.2 * floor[1]


def direction():
    """The SVRG direction of a batch, between two points near each other."""
    images, digits = own_digits(0, 4)
    model, vectors = Logistic(), []
    for scale in (0.0, 0.1):
        torch.nn.init.normal_(model.weight, std=scale, generator=torch.Generator().manual_seed(0))
        loss = F.cross_entropy(model(images[:BATCH]), digits[:BATCH])
        vectors += torch.autograd.grad(loss, [model.weight])
    return (vectors[1] - vectors[0]).reshape(-1)


def squared_errors(quantize, v, draws=300):
    errors = torch.stack([quantize(v, gw.Key(step=step)) - v for step in range(draws)])
    return errors.double().square().sum(1)


def error_vanishes(quantize, v):
    """Is the mean squared error that of eq. (2) of `codecs/qsgd.py`, at norms however small?"""
    for norm in (1.0, 1e-4, 1e-8):
        x = v * (norm / v.norm())
        levels = paper_codec(VALUES).num_levels
        scaled = x.double().abs() / x.double().norm() * levels
        p = scaled - scaled.floor()
        expected = x.double().square().sum() / levels**2 * (p * (1 - p)).sum()
        assert expected <= x.double().square().sum()  # min(n / s^2, sqrt(n) / s) <= 1
        errors = squared_errors(quantize, x)
        z = (errors.mean() - expected) / (errors.std() / math.sqrt(len(errors)))
        if abs(z) > 5:
            return False
    return True


def test_the_error_vanishes_with_the_norm_of_the_direction():
    codec, v = paper_codec(VALUES), direction()

    def quantize(x, key):
        return codec.decode(codec.encode(x, key), x.numel(), key)

    def with_a_fixed_step(x, key):
        noise = torch.rand(x.numel(), generator=torch.Generator().manual_seed(key.step))
        step = 1.0 / codec.num_levels
        return (x / step + noise).floor() * step

    assert error_vanishes(quantize, v)
    assert not error_vanishes(with_a_fixed_step, v)
    for halvings in (1, 20, 60):  # and bit for bit
        small = v * 2.0**-halvings
        assert torch.equal(quantize(small, gw.Key(1)), quantize(v, gw.Key(1)) * 2.0**-halvings)


def small_sum(rank, epochs, state=None, weights=None, **changed):
    """A least-squares problem of two workers; what a run leaves behind."""
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    targets = torch.randn(12, generator=generator, dtype=torch.float64)
    x = torch.full((5,), float(rank), dtype=torch.float64, requires_grad=True)
    settings = {
        "lr": 0.02,
        "inner_steps": 20,
        "codec": "qsgd:levels=3,norm=l2,block=none",
    } | changed
    examples = settings.pop("num_examples", 12)
    optimizer = QSVRG([x], lambda chosen: (rows[chosen] @ x - targets[chosen]).square().mean(),
                      examples, **settings)  # fmt: skip
    if state is not None:
        with torch.no_grad():
            x.copy_(weights)
        optimizer.load_state_dict(state)
    start = x.detach().clone()
    norms = [optimizer.epoch() for _ in range(epochs)]
    return {"start": start, "x": x.detach(), "state": optimizer.state_dict(), "norms": norms}


def resumed(rank):
    half = small_sum(rank, 2)
    again = small_sum(rank, 1, half["state"], half["x"])
    return half, again, small_sum(rank, 3)


def test_a_run_that_is_resumed_ends_with_the_same_bits(worlds):
    for half, again, whole in worlds[2].run(resumed):
        assert torch.equal(again["x"], whole["x"])
        assert half["norms"] + again["norms"] == whole["norms"]
        assert torch.equal(half["start"], torch.zeros(5, dtype=torch.float64))  # of rank 0
        assert whole["norms"][-1] < whole["norms"][0]


def refused(rank, setting, values):
    with pytest.raises(ValueError, match=f"`{setting}` is .* on rank 0 and .* on rank 1"):
        small_sum(rank, 1, **{setting: values[rank]})


@pytest.mark.parametrize(
    ("setting", "values"),
    [("num_examples", (12, 11)), ("lr", (0.1, 0.2)), ("codec", ("qsgd", "none"))],
)
def test_ranks_that_differ_are_named(worlds, setting, values):
    worlds[2].run(refused, setting, values)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"lr": 0.0}, "`lr` must be positive and finite, got 0.0"),
        ({"lr": math.nan}, "`lr` must be positive"),
        ({"l2": -1.0}, "`l2` must be at least 0"),
        ({"inner_steps": 0}, "`inner_steps` must be an integer of at least 1, got 0"),
        ({"batch": 1.5}, "`batch` must be an integer of at least 1, got 1.5"),
        ({"codec": "gradiveq"}, "gradiveq.* learns .*; use a codec without memory"),
        ({"seed": -1}, "`seed` must be an integer in"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        small_sum(0, 1, **changed)


def test_something_must_be_trained():
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        QSVRG([torch.zeros(3)], lambda chosen: chosen, 1, lr=1.0, inner_steps=1)
