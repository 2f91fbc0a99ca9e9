"""The CUDA path without a GPU: the order of streams, what is read by the host, and every bit.

`cuda_model.py` has a GPU that computes on the CPU and notices races. Results must be those of the
CPU path, bit for bit, over real gloo: what NCCL would do with the same messages awaits hardware.
"""

import ast
import gc
import inspect
import math
import threading
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten

import gradwire as gw
from cuda_model import GPU, GPUTensor, HostSyncError, Machine, RaceError
from gradwire import kernels
from gradwire.adapters import functional
from gradwire.adapters.ddp import attach as attach_ddp
from gradwire.adapters.ddp.handle import DDPHandle
from gradwire.adapters.fsdp import attach as attach_fsdp
from gradwire.adapters.fsdp.gatherer import Gatherer
from gradwire.adapters.fsdp.handle import FSDPHandle
from gradwire.adapters.fsdp.scatterer import Scatterer
from gradwire.adapters.fsdp.units import Unit
from gradwire.adaptive import Layout
from gradwire.collectives import COLLECTIVES
from gradwire.kernels import cpu
from gradwire.reduction import streams
from gradwire.reduction.checkpoint import unpack
from gradwire.reduction.loss_scale import loss_scale
from gradwire.reduction.parameters import Parameter
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.rehearsal import check_sizes, rehearse
from gradwire.reduction.residuals import Residuals
from gradwire.reduction.route import Route
from gradwire.transport import gpu, groups
from gradwire.transport.device import HOST, Taken, nothing
from gradwire.transport.gpu import Here, Side, Staged, device_for
from gradwire.transport.lanes import Lanes
from gradwire.transport.link import Link
from world import World, data

SHAPES = {"first": (90, 100), "bias": (300,), "second": (50, 100)}
BUCKETS = [("second",), ("first", "bias")]
INF_AT, ZERO_AT, STEPS = 2, 3, 5
PAIRED = ("send", "recv_")
"""Messages between two, which are sent in one batch; nothing is sent of what is empty."""
MADE = "gradwire/test_cuda_path"


def gpu_kernels():
    """The names that `kernels/gpu` has; to import it takes Triton."""
    tree = ast.parse(Path(kernels.__file__).with_name("gpu").joinpath("__init__.py").read_text())
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign)]
    return ast.literal_eval(lists[0])


@contextmanager
def installed(backend="nccl", missing=()):
    """A machine in place of CUDA, whose groups send by `backend`."""
    gc.freeze()  # what was there before need not be looked at again
    machine = Machine()
    names = [name for name in gpu_kernels() if name not in missing]
    old = gpu.CUDA, gpu.Future, kernels._gpu, groups.backend_of
    batch, machine.batched = dist.batch_isend_irecv, 0

    def counted(ops):
        machine.batched += len(ops)
        return batch(ops)

    dist.batch_isend_irecv = counted
    gpu.CUDA, gpu.Future = machine, machine.future
    kernels._gpu = lambda device: machine.kernels(names, cpu)
    groups.backend_of = lambda group, device: backend
    try:
        with machine.running():
            yield machine
    finally:
        gpu.CUDA, gpu.Future, kernels._gpu, groups.backend_of = old
        dist.batch_isend_irecv = batch


class Bucket:
    """What DDP hands to a hook."""

    def __init__(self, buffer, parameters):
        self.buffer, self.parameters = (lambda: buffer), (lambda: parameters)


class Writer:
    """Keeps what is logged, but for seconds."""

    def __init__(self):
        self.found = {}

    def add_scalar(self, tag, value, step):
        if not tag.endswith("_s"):
            self.found[tag, step] = value


class Scaler:
    """A loss scale that falls after the step with an inf, as GradScaler's does."""

    _device = "cuda"

    def __init__(self, scale):
        self._scale, self.steps = scale, 0

    def get_scale(self):
        return float(self._scale)

    def state_dict(self):
        return {"_growth_tracker": self.steps}

    def update(self, *, was_inf):
        self.steps += 1
        self._scale.mul_(0.5 if was_inf else 1.0)


def gradient(rank, name, step, inf_at):
    """Zero on all ranks, zero on one, or inf on one, in steps of their own."""
    values = data(rank, math.prod(SHAPES[name]), seed=10 * step + len(name))
    if step == ZERO_AT and (name == "first" or (name == "second" and rank == 0)):
        values.zero_()
    if step == inf_at and name == "second" and rank == 1:
        values[17] = torch.inf
    return values


def handle_over(device, spec, options, scaler):
    """What `attach` makes, for parameters of no module."""
    rest = {k: v for k, v in options.items() if k in ("collective", "error_feedback")}
    world = dist.group.WORLD
    link = Link(world, device)
    reducer = Reducer(link, gw.parse(spec), min_numel=1000, chunk=4096, **rest)
    for route in reducer.routes.values():
        rehearse(route.codec, route.collective, link.size, device)
    count = 3 if isinstance(device, Staged) else 1
    handle_over.made = getattr(handle_over, "made", 0) + 1
    own = groups.same_members(world, f"{MADE}/{handle_over.made}", count)
    values = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    parameters = [
        Parameter(name, i, x, Layout.of(x), is_trained=True, is_sparse=False)
        for i, (name, x) in enumerate(values.items())
    ]
    lanes = Lanes([Link(group, device) for group in own])
    handle = DDPHandle(
        parameters, reducer, lanes, streams.Stream(3, 0), num_reduced=3, scaler=scaler
    )
    return handle, values


def train(rank, device, spec, options, machine=None):
    """The means of some steps, and what is owed in the end."""
    put = machine.put if machine else torch.Tensor.clone
    get = machine.get if machine else torch.Tensor.clone
    scale = put(torch.tensor([1024.0])) if options.get("scaled") else None
    scaler = None if scale is None else Scaler(scale)
    handle, values = handle_over(device, spec, options, scaler)
    hook, means, writer = handle.hook(), [], Writer()
    if options.get("logged"):
        handle.log_to(writer, every=2, nmse=True)
    hot = machine.hot if machine and not options.get("logged") else nullcontext
    inf_at, dtype = options.get("inf_at", INF_AT), options.get("dtype", torch.float32)
    for step in range(STEPS):
        buckets, futures = [], []
        for names in BUCKETS:
            gradients = [gradient(rank, name, step, inf_at) for name in names]
            buckets.append(put(torch.cat(gradients).to(dtype)))
            with hot():
                futures.append(hook(None, Bucket(buckets[-1], [values[name] for name in names])))
        with hot():
            results = [future.wait() for future in futures]
        assert all(result is bucket for result, bucket in zip(results, buckets, strict=True))
        means += [get(bucket) for bucket in buckets]
        if scaler is not None:
            scaler.update(was_inf=step == inf_at)
        if options.get("resumed") and step == inf_at + 1:
            handle.load_state_dict(handle.state_dict())
    state = handle.state_dict()
    handle.close()
    seen = {"bytes": handle.stats().bytes_sent, **writer.found}
    learned = tree_flatten(unpack(state["learned"]))[0]
    return [torch.cat(means), *learned], state[f"rank{rank}"]["residuals"], seen


def both_ways(rank, spec, options, make, backend):
    """Train by the CPU and by the model of a GPU: equal bits, no race, nothing freed too early."""
    expected, owed, seen = train(rank, HOST, spec, options)
    with installed(backend) as machine:
        found, found_owed, found_seen = train(rank, make(GPU), spec, options, machine)
        gc.collect()
        assert machine.freed == [], machine.freed
        log = [what for what, _ in machine.log]
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert owed.keys() == found_owed.keys()
    for name, residual in owed.items():
        assert torch.equal(found_owed[name], residual), name
    assert {"record", "wait", "record_stream"} <= set(log)
    assert machine.batched == sum(name in PAIRED for name, _ in machine.sent)
    assert found_seen == seen
    return machine.sent


OVER_NCCL = [
    ("qsgd:bits=4", {}),
    ("qsgd:bits=2", {"collective": "two_shot", "error_feedback": True}),
    ("qsgd:bits=2", {"collective": "relay", "error_feedback": True}),
    ("qsgd:bits=2", {"collective": "all_gather", "error_feedback": True, "scaled": True}),
    ("dqsg", {"logged": True}),
    ("dqsg:levels=1", {"collective": "relay", "error_feedback": True, "scaled": True}),
    ("global-qsgd", {"error_feedback": True}),
    ("global-qsgd:norm=l2", {"collective": "all_reduce", "error_feedback": True}),
    ("global-qsgd:dither=subtractive", {"collective": "all_reduce"}),
    ("global-qsgd:dither=exponential", {}),
    ("thc:bits=2", {"collective": "all_reduce"}),
    ("fp16", {"scaled": True}),
    ("bf16", {}),
    ("none", {}),
    ("fft", {}),
    ("fft:drop=0.7", {"collective": "relay", "scaled": True}),
    ("fft:domain=dct,bits=8,mantissa=4", {"error_feedback": True, "inf_at": 0, "logged": True}),
    ("fft:drop=0.0,domain=time", {"collective": "relay", "dtype": torch.float16}),
    ("powersgd", {"resumed": True}),
    ("powersgd:rank=40,inner=fp16", {"inf_at": 0, "logged": True}),
    ("powersgd:rank=3", {"inf_at": 0, "scaled": True}),
    ("powersgd:inner=global-qsgd", {"scaled": True, "dtype": torch.float16, "resumed": True}),
    ("powersgd:rank=2", {"error_feedback": False, "dtype": torch.bfloat16}),
]


AMONG_MORE = [
    ("qsgd:bits=4", {}),
    ("dqsg:levels=1", {"collective": "relay", "error_feedback": True, "scaled": True}),
    ("global-qsgd:norm=l2", {"error_feedback": True}),
    ("thc", {"error_feedback": True}),
    ("bf16", {}),
    ("fft:drop=0.6,bits=None", {"scaled": True}),
    ("powersgd:inner=bf16", {"scaled": True, "inf_at": 0}),
]
"""Where owners of shards do what two workers do for themselves."""


@pytest.mark.parametrize("size", [2, 3])
def test_ddp_over_nccl_is_ordered_by_events_and_bitwise_that_of_the_cpu(worlds, size):
    """All workers send the same messages in the same order, of types that NCCL has."""
    for spec, options in OVER_NCCL if size == 2 else AMONG_MORE:
        sent = worlds[size].run(both_ways, spec, options, Side, "nccl")
        assert sent[0], spec
        shared = [[name for name, _ in each if name not in PAIRED] for each in sent]
        assert all(each == shared[0] for each in shared), spec


@pytest.mark.parametrize("spec", ["qsgd:bits=2,wire=elias", "topk", "ndqsg:max_failures=1"])
def test_ddp_over_gloo_is_staged_and_takes_every_codec(worlds, spec):
    options = {"scaled": spec == "topk"}
    answers = worlds[2].run(both_ways, spec, options, Staged, "gloo")
    assert answers == [[], []]  # nothing was sent from the GPU itself


def fsdp_steps(rank, spec, options, machine=None):
    """Shards of means, weights, and what is owed, with the streams of FSDP's own code."""
    numel, world = 6000, dist.group.WORLD
    device = Here(GPU) if machine else HOST
    shards = world.size()
    like = torch.empty(shards * numel, device="meta")
    unit = Unit("layer", 0, rank, shards, like, like)
    residuals = Residuals(device)
    link = Link(world, Here(GPU) if machine else HOST)
    feeds = {"error_feedback": options["error_feedback"], "min_numel": 100}
    between = Reducer(link, gw.parse(spec), residuals=residuals, **feeds)
    scaler = Scaler((machine.put if machine else torch.clone)(torch.tensor([1024.0])))
    handle = FSDPHandle(
        [unit], Scatterer(gw.parse(spec), residuals, **feeds), between,
        Gatherer(gw.QSGD(bits=8), min_numel=100), residuals, seed=1,
        scaler=scaler if options["error_feedback"] else None, memory=device.memory,
    )  # fmt: skip
    found = []
    for step in range(STEPS):
        weights = data(rank, numel, seed=step)
        gradients = data(rank, shards * numel, seed=100 + step)
        if step == INF_AT and rank == 1:
            gradients[7] = torch.inf
        if machine is None:
            out, mean = torch.empty_like(gradients), torch.empty(numel)
            handle.gather(unit, out, weights, world)
            handle.scatter(unit, gradients, mean, world, None)
            handle.exchange(unit, mean)
            found += [out, mean]
        else:
            found += _as_fsdp_calls(machine, handle, unit, weights, gradients)
        scaler.update(was_inf=step == INF_AT)
    return torch.cat(found), handle.state_dict()[f"rank{rank}"]["residuals"]


def _as_fsdp_calls(machine, handle, unit, weights, gradients):
    """As in `foreach_all_gather` and `foreach_reduce` of torch 2.13."""
    if not hasattr(machine, "fsdp"):
        machine.fsdp = [machine.Stream() for _ in range(3)]
    gathers, scatters, reduces = machine.fsdp
    default, world, found = machine.current_stream(), dist.group.WORLD, []
    weights, buffer = machine.put(weights), machine.put(gradients)
    gathers.wait_stream(default)
    with machine.stream(gathers), machine.hot():
        out = torch.empty(gradients.numel(), device=GPU)
        handle.gather(unit, out, weights, world)
    default.wait_stream(gathers)
    found.append(machine.get(out))
    gathers.wait_stream(default)  # or `out`, which is of that stream, must not be freed
    scatters.wait_stream(default)
    with machine.stream(scatters), machine.hot():
        mean = torch.empty(weights.numel(), device=GPU)
        handle.scatter(unit, buffer, mean, world, None)
    reduces.wait_stream(scatters)
    with machine.stream(reduces), machine.hot():
        handle.exchange(unit, mean)
        cast = mean.to(torch.float64)
    del mean  # FSDP lets go of it here, and its memory is of another stream
    default.wait_stream(reduces)
    found.append(machine.get(cast).float())
    reduces.wait_stream(default)
    return found


def fsdp_both_ways(rank, spec, options):
    expected, owed = fsdp_steps(rank, spec, options)
    with installed() as machine:
        found, found_owed = fsdp_steps(rank, spec, options, machine)
        gc.collect()
        assert machine.freed == [], machine.freed
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert owed.keys() == found_owed.keys()
    assert all(torch.equal(found_owed[name], owed[name]) for name in owed)
    return bool(owed)


@pytest.mark.parametrize(
    ("spec", "feeds"),
    [("qsgd:bits=4", False), ("dqsg:levels=1", True), ("none", False), ("fft:drop=0.7", True)],
)
def test_fsdp_over_nccl_works_on_the_streams_of_fsdp(worlds, spec, feeds):
    assert worlds[2].run(fsdp_both_ways, spec, {"error_feedback": feeds}) == [feeds, feeds]


def functional_both_ways(rank, spec, backend):
    x = data(rank, 7001)
    functional._steps.clear()
    expected = [gw.all_reduce(x.clone(), spec) for _ in range(2)]
    functional._steps.clear()
    with installed(backend) as machine:
        for each in expected:
            tensor = machine.put(x)
            with machine.hot() if backend == "nccl" else nullcontext():
                assert gw.all_reduce(tensor, spec) is tensor
            assert torch.equal(machine.get(tensor), each)
            del tensor
        gc.collect()
        assert machine.freed == [], machine.freed


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_all_reduce_is_on_the_current_stream(worlds, backend):
    for spec in ["qsgd:bits=4", "global-qsgd", "none", "fft"]:
        worlds[2].run(functional_both_ways, spec, backend)


# What the model would notice.


def unordered(self, tensor):
    return Taken(tensor, tensor, nothing)


def elsewhere(self, taken, done):
    with gpu.CUDA.stream(gpu.CUDA.Stream()):
        done.set_result(taken.tensor)


def unlooked(self, taken, done):
    with gpu.CUDA.stream(self._up):
        taken.tensor.copy_(taken.values, non_blocking=True)
    done.set_result(taken.tensor)


MUTANTS = {
    "the side stream does not wait for the bucket": (Side, "take", unordered),
    "the result is that of another stream": (Side, "give", elsewhere),
    "residuals are made on the caller's stream": (Residuals, "of", None),
    "the caller does not wait for the copy back": (Staged, "give", unlooked),
}


def broken_of(self, name, numel):
    if name not in self._owed:
        self._owed[name] = torch.zeros(numel, device=self.device.memory)
    return self._owed[name]


def run_broken(rank, mutant):
    where, name, function = MUTANTS[mutant]
    whole = getattr(where, name)
    setattr(where, name, function or broken_of)
    make, backend = (Staged, "gloo") if where is Staged else (Side, "nccl")
    try:
        both_ways(rank, "qsgd:bits=2", {"error_feedback": True}, make, backend)
    except (AssertionError, RuntimeError) as error:
        return str(error)
    finally:
        setattr(where, name, whole)
    return ""


@pytest.fixture(scope="module")
def broken_world():
    """Of its own: an error in the midst of a step leaves threads behind."""
    world = World(2)
    yield world
    world.close()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wait_that_is_missing_is_noticed(broken_world, mutant):
    assert any("may be at it" in error for error in broken_world.run(run_broken, mutant))


@pytest.mark.parametrize("make", [Side, Here, Staged])
@pytest.mark.parametrize("says", [True, False])
def test_memory_is_kept_for_the_stream_that_uses_it(monkeypatch, make, says):
    if not says:
        monkeypatch.setattr(GPUTensor, "record_stream", lambda tensor, stream: None)
    with installed() as machine:
        device, other = make(GPU), machine.Stream()
        tensor = machine.put(torch.ones(100))
        other.wait_stream(machine.current_stream())
        with machine.stream(other if make is Here else machine.current_stream()):
            taken = device.take(tensor)
            with device.entered():
                taken.ready()
                taken.values.mul_(2.0)
            device.give(taken, device.future())
        del tensor, taken
        gc.collect()
        assert bool(machine.freed) is not says


def test_the_copy_back_waits_for_the_copy_even_if_another_thread_saw_it_done():
    with installed() as machine:
        device, tensor = Staged(GPU), machine.put(torch.ones(100))
        taken, done = device.take(tensor), device.future()
        assert taken.values.isnan().all()
        lane = threading.Thread(target=taken.ready)
        lane.start()
        lane.join()
        taken.values.mul_(2.0)
        device.give(taken, done)
        assert machine.get(done.wait()).eq(2.0).all()


def test_memory_of_a_link_is_handed_from_stream_to_stream():
    with installed() as machine:
        device, x = Here(GPU), torch.zeros(8, device=GPU)
        for stream in (machine.current_stream(), machine.Stream(), machine.Stream()):
            with machine.stream(stream), device.entered():
                x.add_(1.0)


# What is refused.


def test_sizes_that_nccl_cannot_know_are_refused():
    with installed():
        device = Side(GPU)
        for spec in ("qsgd:wire=elias", "qsgd:wire=zstd", "qsgd:wire=huffman", "dqsg:step=1.0"):
            with pytest.raises(ValueError, match=r"differ in size.*use `wire=packed`"):
                check_sizes(gw.parse(spec), device)
        with pytest.raises(NotImplementedError, match=r"decides from step to step.*over gloo"):
            check_sizes(gw.NDQSG(wire="packed"), device)
    check_sizes(gw.parse("qsgd:wire=elias"), HOST)


@pytest.mark.parametrize(
    ("spec", "kernel"),
    [
        ("qsgd:bits=4", "dequantize_mean"),
        ("eden", "dequantize_rotated"),
        ("fft", "add_spectra"),
        ("powersgd", "settle_outer"),
    ],
)
def test_a_kernel_that_is_missing_is_missed_before_training(spec, kernel):
    codec = gw.parse(spec)
    by = Route.of(codec, 2).collective
    with installed():
        rehearse(codec, by, 2, Side(GPU))
    with installed(missing=(kernel,)), pytest.raises(AttributeError):
        rehearse(codec, by, 2, Side(GPU))


@pytest.mark.parametrize("spec", ["fft:domain=auto", "topk", "gradiveq"])
def test_codecs_that_need_the_host_say_so_before_training(spec):
    codec = gw.parse(spec)
    with installed(), pytest.raises(NotImplementedError, match=r"CPU works out.*over gloo"):
        rehearse(codec, COLLECTIVES["all_gather"], 2, Side(GPU))


def test_a_message_of_other_settings_becomes_nan_and_nobody_waits():
    """On the CPU each head is read; on a GPU the host does not look."""
    x, keys = data(0, 5000), [gw.Key(rank=0), gw.Key(rank=1)]
    ours, theirs = gw.FFTSparse(drop=0.75), gw.FFTSparse(drop=0.75, domain="dct")
    sent = ours.encode(x, keys[0]), theirs.encode(x, keys[1])
    assert ours.fixed_size is False or sent[0].numel() == sent[1].numel()
    with installed() as machine:
        payloads, total = [machine.put(each) for each in sent], machine.put(x)
        mean, again = (torch.zeros(x.numel(), device=GPU) for _ in range(2))
        room = torch.zeros_like(payloads[0])
        with machine.hot():
            ours.mean_into([payloads[0]] * 2, mean, keys)
            assert machine.get(mean).isfinite().all()
            ours.mean_into(payloads, mean, keys)
            ours.relay(payloads[1:], total, room, keys[1:], keys[0])
            ours.decode_into(room, again, keys[0])
        for spoilt in (mean, total, again):
            assert machine.get(spoilt).isnan().all()


def test_a_fault_in_a_codec_is_not_taken_for_a_refusal(monkeypatch):
    def broken(*args, **options):
        raise TypeError("a fault")

    monkeypatch.setattr(gw.EDEN, "encode_into", broken)
    with installed(), pytest.raises(TypeError, match="a fault"):
        rehearse(gw.EDEN(), COLLECTIVES["all_gather"], 2, Side(GPU))


def test_what_is_neither_nccl_nor_gloo_is_refused():
    with pytest.raises(NotImplementedError, match=r"CUDA over nccl or gloo; got meta over this"):
        device_for(None, torch.device("meta"), beside=True)
    with installed("ucc"), pytest.raises(NotImplementedError, match=r"got cuda:0 over ucc"):
        device_for(None, GPU, beside=True)
    with installed("gloo"):
        assert isinstance(device_for(None, GPU, beside=True), Staged)


def test_the_model_raises_where_the_host_would_wait():
    with installed() as machine:
        x = machine.put(torch.ones(4))
        with machine.hot():
            for wait in (bool, float, torch.nonzero, GPUTensor.tolist, GPUTensor.cpu):
                with pytest.raises(HostSyncError):
                    wait(x[0] if wait in (bool, float) else x)
            with pytest.raises(HostSyncError):
                machine.default.synchronize()
        with pytest.raises(RaceError), machine.stream(machine.Stream()):
            x.add_(1.0)


def test_tensors_count_the_updates_of_a_scaler():
    """`ScaleOnGPU` relies on it: the host asks no GPU whether the scale has changed."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer, versions = torch.optim.SGD([weight], lr=0.1), []
    for factor in (1.0, torch.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        versions.append(scaler._scale._version)
        assert scaler._scale._version == versions[-1]
        scaler.step(optimizer)
        scaler.update()
    assert len(set(versions)) == 3


def at(device, *, is_sparse=False):
    value = SimpleNamespace(device=torch.device(device))
    return SimpleNamespace(name="embed", value=value, is_sparse=is_sparse)


def test_modules_that_ddp_cannot_train_on_a_gpu_are_refused():
    memory_of = partial(attach_ddp._memory_of, is_auto=False)
    assert memory_of([at(GPU), at(GPU)]) == GPU
    assert memory_of([at("cpu", is_sparse=True)]) == HOST.memory
    with pytest.raises(NotImplementedError, match=r"one device, got one on cpu, cuda:0; attach"):
        memory_of([at(GPU), at("cpu")])
    with pytest.raises(NotImplementedError, match=r"got embed on cuda:0; .*`sparse=False`"):
        memory_of([at(GPU, is_sparse=True)])
    with pytest.raises(NotImplementedError, match=r'"auto" is for .*`qsgd:bits=4`'):
        attach_ddp._memory_of([at(GPU)], is_auto=True)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_fsdp_on_a_gpu_takes_nccl(backend):
    found = [SimpleNamespace(device=GPU, group=None)]
    with installed(backend):
        if backend == "nccl":
            assert attach_fsdp._memory_of(found, None) == GPU
        else:
            with pytest.raises(NotImplementedError, match=r"over nccl, got gloo; make the mesh"):
                attach_fsdp._memory_of(found, None)


def test_a_scaler_for_the_cpu_is_refused():
    with installed(), pytest.raises(ValueError, match=r"use `GradScaler\('cuda'\)`"):
        loss_scale(torch.amp.GradScaler("cpu"), Residuals(Side(GPU)))


def test_the_model_has_the_calls_of_torch():
    """What is called with these arguments there can be called so here."""
    for call, args in (
        (torch.cuda.Stream.record_event, (None, None)),
        (torch.cuda.Stream.wait_event, (None, None)),
        (torch.cuda.Stream.synchronize, (None,)),
        (torch.cuda.Event.synchronize, (None,)),
        (torch.cuda.current_stream, (GPU,)),
        (torch.cuda.stream, (None,)),
        (torch.cuda.Stream.__new__, (None, GPU)),
    ):
        inspect.signature(call).bind(*args)
    inspect.signature(torch.cuda.Event.__new__).bind(None, blocking=True)
    inspect.signature(torch.futures.Future.__init__).bind(None, devices=[GPU])
