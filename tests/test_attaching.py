"""`attach`, the same call for DDP and FSDP2: signature, options, specs in place of codecs."""

import inspect
import typing

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.adapters import functional
from gradwire.adapters.ddp import attach as ddp
from gradwire.adapters.fsdp import attach as fsdp
from test_ddp_use import Net, batch
from world import data


def options_of(function):
    """The names of the keywords, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_every_option_is_in_the_signature_and_in_the_help():
    of_ddp, of_fsdp, found = options_of(ddp.attach), options_of(fsdp.attach), options_of(gw.attach)
    assert found.keys() == of_ddp.keys() | of_fsdp.keys()
    for name, default in found.items():
        theirs = {of[name] for of in (of_ddp, of_fsdp) if name in of}
        assert default in theirs, name
        assert f"    {name}: " in gw.attach.__doc__


@pytest.mark.skipif(not hasattr(typing, "get_overloads"), reason="of Python 3.11")
def test_overloads_have_the_options_of_their_kind():
    for overload, kind in zip(typing.get_overloads(gw.attach), (ddp, fsdp), strict=True):
        assert options_of(overload).keys() == options_of(kind.attach).keys()


def gradient(rank, kind, codec, **options):
    """The mean gradient of a step, or this rank's shard of it."""
    torch.manual_seed(0)
    net = nn.Linear(128, 128)
    module = DistributedDataParallel(net) if kind == "ddp" else fully_shard(net)
    handle = gw.attach(module, codec, **options)
    assert isinstance(handle, gw.Handle)
    module(batch(rank, 0)).square().sum().backward()
    handle.close()
    found = net.weight.grad
    return found if kind == "ddp" else found.to_local()


def spelled(rank, kind):
    options = {"weights": "qsgd:bits=8"} if kind == "fsdp" else {"policy": gw.Policy()}
    made = {"weights": gw.QSGD(bits=8)} if kind == "fsdp" else {}
    return (
        gradient(rank, kind, "qsgd:bits=2", **options),
        gradient(rank, kind, gw.QSGD(bits=2), **made),
    )


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_spec_stands_for_a_codec(worlds, kind):
    for by_spec, by_codec in worlds[2].run(spelled, kind):
        assert torch.equal(by_spec, by_codec)
        assert by_spec.abs().max() > 0


def spelled_without_a_module(rank):
    means = []
    for codec in ("qsgd:bits=2", gw.QSGD(bits=2)):
        functional._steps.pop(dist.group.WORLD, None)
        means.append(gw.all_reduce(data(rank, 2000), codec))
    return means


def test_so_it_does_in_all_reduce_and_simulate(worlds):
    vectors = [data(rank, 2000) for rank in range(2)]
    for by_spec, by_codec in worlds[2].run(spelled_without_a_module):
        assert torch.equal(by_spec, by_codec)
    assert torch.equal(*(gw.simulate(c, vectors, gw.Key()) for c in ("qsgd", gw.QSGD())))
    with pytest.raises(TypeError, match="`codec` must be a codec such as"):
        gw.simulate(4, vectors, gw.Key())


def attach_wrongly(rank):
    wrapped, sharded = DistributedDataParallel(Net()), fully_shard(Net())
    with pytest.raises(TypeError, match="`weights` is no option of DistributedDataParallel, which"):
        gw.attach(wrapped, "qsgd", weights="qsgd:bits=8")
    with pytest.raises(TypeError, match=r"`lanes` is no option of FSDP2, which takes .* replicas,"):
        gw.attach(sharded, "qsgd", lanes=2)
    with pytest.raises(TypeError, match="`policy` is no option of FSDP2"):
        gw.attach(sharded, "qsgd", policy=gw.Policy())
    with pytest.raises(ValueError, match="`seed` must be an integer"):
        gw.attach(sharded, "qsgd", seed=-1)
    with pytest.raises(ValueError, match="no codec is called 'qsdg'"):
        gw.attach(wrapped, "qsdg")
    with pytest.raises(TypeError, match="`codec` must be a codec such as"):
        gw.attach(wrapped, gw.QSGD)


def test_options_of_the_other_kind_are_refused(worlds):
    worlds[2].run(attach_wrongly)
