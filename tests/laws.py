"""What must hold of every codec, each law a short function. See `test_contract.py`."""

import torch
from torch import Tensor

import gradwire as gw
from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Adder, Codec
from gradwire.codecs import REGISTRY
from gradwire.codecs.gradiveq import GradiVeQ
from gradwire.codecs.powersgd import PowerSGD
from gradwire.collectives.parts import Part
from gradwire.reduction.reducer import Reducer
from gradwire.transport.executor import Inline

EXAMPLES = [spec for entry in REGISTRY.values() for spec in entry.examples]
LEARNING = [spec for spec in EXAMPLES if isinstance(gw.parse(spec), GradiVeQ | PowerSGD)]
MESSAGES = [spec for spec in EXAMPLES if spec not in LEARNING]
"""What a message can be of: it has nothing before it to learn from."""
TWO_OF_EACH = [spec for entry in REGISTRY.values() for spec in entry.examples[:2]]
"""For laws of what surrounds a codec: its settings change nothing there."""


KEY = gw.Key()


def roundtrip(codec: gw.Codec, x: Tensor, key: gw.Key = KEY) -> Tensor:
    return codec.decode(codec.encode(x, key), x.numel(), key)


def alone(codec: gw.Codec, numel: int) -> gw.Codec:
    """What encodes a vector on its own: of a codec that must learn first, the inner one."""
    return codec.first(numel) if isinstance(codec, GradiVeQ) else codec


def block_of(codec: gw.Codec, numel: int) -> int:
    """How many values share a fate with each other."""
    return getattr(alone(codec, numel), "block", 1) or max(numel, 1)


def edge_sizes(codec: gw.Codec) -> list[int]:
    block = block_of(codec, 512)
    return sorted({0, 1, 7, 8, 9, max(block - 1, 0), block, block + 1, 513, 3 * 512 + 5})


def slope(x: Tensor, y: Tensor) -> float:
    """How far `y` has come along `x`: 1 if it is `x`, 0 if it says nothing of it."""
    return float((x.double() @ y.double()) / (x.double() @ x.double()))


def assert_follows(codec: gw.Codec, x: Tensor, y: Tensor) -> None:
    """`y` says of Gaussian `x` what this codec can say of it in one go.

    What is unbiased has a slope of one but for chance, however large its error is; what is biased
    keeps some of the energy, so it misses by less than nothing at all would.
    """
    if codec.unbiased:
        assert abs(slope(x, y) - 1) < 0.5
    else:
        assert (y - x).double().norm() < 0.98 * x.double().norm()


def said(codec: gw.Codec, vectors: list[Tensor], key: gw.Key, collective: str) -> list[Tensor]:
    """What the codes of each worker say of its vector."""
    world, numel = len(vectors), vectors[0].numel()
    statistics = [codec.statistics(x) for x in vectors]
    shared = statistics[0]
    for other in statistics[1:]:
        shared = torch.maximum(shared, other) if codec.statistics_op == "max" else shared + other
    adder, found = adder_of(codec, collective, world, shared), []
    for rank, x in enumerate(vectors):
        message = torch.empty(adder.code_nbytes(numel), dtype=torch.uint8)
        own, minus = key.of(rank=rank), torch.zeros(numel)
        adder.encode(x, message, own)
        adder.subtract(message, minus, own)
        found.append(-minus)
    return found


def adder_of(codec: gw.SummableCodec, collective: str, world: int, shared: Tensor) -> Adder:
    """What adds for a collective."""
    make = codec.network_adder if collective == "all_reduce" else codec.adder
    adder = make(world, shared)
    assert adder is not None
    return adder


def is_summed_by_network(codec: Codec) -> bool:
    return isinstance(codec, gw.SummableCodec) and codec.network_adder(2) is not None


def steps_of(spec: str, numel: int) -> list[Codec]:
    """The codec that `spec` spells; of one that learns, what may encode a step."""
    codec = gw.parse(spec)
    return list(codec.examples(numel)) if isinstance(codec, AdaptiveCodec) else [codec]


def reduce_now(reducer: Reducer, x: Tensor, name: str = "") -> None:
    """Replace `x` by its mean; that is a step."""
    part = Part(x, 0, name=name)
    reducer.begin_step()
    reducer.submit(Inline(reducer.link), x, [part], last=True).wait()


def bias_z(codec: gw.Codec, x: Tensor, draws: int) -> Tensor:
    """By how many standard errors the mean over fresh keys misses `x`, in many directions.

    The directions are the sums over twenty values at a time, of the errors and of the errors
    times the sign of the value: rounding down shows in the one, rounding to zero in the other.
    The allowance of 2^-15 of the largest value is for 16 random bits and float32.
    """
    keys = [gw.Key(seed=7, step=i) for i in range(draws)]
    error = torch.stack([roundtrip(codec, x, key) for key in keys]).double() - x.double()
    groups = torch.stack((error, error * x.sign())).view(2, draws, -1, 20).sum(3)
    allowed = 20 * x.abs().max() * 2.0**-15
    excess = (groups.mean(1).abs() - allowed).clamp_min(0)
    return excess / (groups.std(1) / draws**0.5).clamp_min(1e-30)


def assert_unbiased(codec: gw.Codec, x: Tensor, draws: int = 2000, z: float = 5.0) -> None:
    worst = bias_z(codec, x, draws).max().item()
    assert worst < z, f"{codec} misses the mean by {worst:.1f} standard errors"
