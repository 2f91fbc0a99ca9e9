"""A GPU that is not there: its tensors, streams and events, and a detector of races between them.

Tensors say that they are on `cuda:0`, and compute on the CPU when they are told to, so results can
be compared. Beside that the model keeps the order that streams and events define, as vector clocks,
and raises a `RaceError` where an access is not ordered after what it depends on. It raises a
`HostSyncError` where the host would have to wait for the GPU, and notes memory that is freed while
a stream that never said that it uses it (`record_stream`) may still be at it. What a copy to the
host brings is there when an event says so, and NaN until then.
"""

import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

GPU = torch.device("cuda:0")
SENT_BY_NCCL = (
    torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.bfloat16,
)  # fmt: skip
FLAGGING = ("keep_spectra", "add_spectra")
"""Kernels that say by a flag, which stays on the device, whether messages were whole."""
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")


class RaceError(AssertionError):
    """Two accesses to memory that no event orders."""


class HostSyncError(AssertionError):
    """The host would wait for the GPU."""


class Stream:
    """A queue. `clock` has, for every stream, up to where its work is done before what comes."""

    def __init__(self, machine, name):
        self.machine, self.name, self.clock = machine, name, {}
        self.ticks = 0

    def tick(self):
        """The time of a new piece of work, after all that the host knows to be done."""
        _join(self.clock, self.machine.host.clock)
        self.ticks += 1
        self.clock[self] = self.ticks
        return self.ticks

    def record_event(self, event=None):
        event = event or Event(self.machine)
        event.clock = dict(self.clock)
        self.machine.log.append(("record", self.name))
        return event

    def wait_event(self, event):
        assert event.clock is not None, "nothing was recorded"
        _join(self.clock, event.clock)
        self.machine.log.append(("wait", self.name))

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def synchronize(self):
        self.machine.synchronize(self.clock)

    def __repr__(self):
        return self.name


class Event:
    """A place in a queue."""

    def __init__(self, machine):
        self.machine, self.clock = machine, None

    def synchronize(self):
        self.machine.synchronize(self.clock)


class Block:
    """Memory: who allocated it, who wrote last, who has read since, who said so."""

    def __init__(self, machine, stream, name):
        self.machine, self.owner, self.name = machine, stream, name
        self.write, self.reads, self.recorded = None, {}, {stream}

    def access(self, stream, *, writes):
        time = stream.tick()
        before = [self.write] if self.write else []
        before += list(self.reads.items()) if writes else []
        for other, when in before:
            if stream.clock.get(other, 0) < when:
                raise RaceError(f"{stream} uses {self.name} while {other} may be at it")
        if writes:
            self.write, self.reads = (stream, time), {}
        else:
            self.reads[stream] = time

    def __del__(self):
        used = dict(self.reads)
        if self.write:
            used[self.write[0]] = max(self.write[1], used.get(self.write[0], 0))
        known = self.machine.known
        for stream, when in used.items():
            done = max(self.owner.clock.get(stream, 0), known.get(stream, 0)) >= when
            if stream not in self.recorded and not done:
                self.machine.freed.append(f"{self.name} was freed while {stream} may be at it")


class GPUTensor(torch.Tensor):
    """A tensor that says it is on the GPU; to torch's own code it is one on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)

    @staticmethod
    def __new__(cls, inner, block):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device="cpu",
        )  # fmt: skip

    def __init__(self, inner, block):
        self.inner, self.block = inner, block

    def data_ptr(self):
        return self.inner.data_ptr()

    def to(self, *args, **kwargs):
        target = args[0] if args else kwargs.get("device")
        if isinstance(target, str | torch.device) and torch.device(target).type == "cpu":
            return self.cpu()
        return super().to(*args, **kwargs)

    def cpu(self):
        machine = self.block.machine
        machine.waits("a copy to the CPU")
        values = machine.get(self)
        machine.synchronize(machine.host.stream.clock)
        return values

    def numpy(self):
        raise TypeError("a tensor on the GPU has no array")

    def tolist(self):
        return self.cpu().tolist()

    def record_stream(self, stream):
        self.block.recorded.add(stream)
        self.block.machine.log.append(("record_stream", stream.name))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        flat = tree_flatten((args, kwargs or {}))[0]
        machine = next(x for x in flat if isinstance(x, GPUTensor)).block.machine
        return machine.run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """For what makes tensors from nothing."""

    def __init__(self, machine):
        super().__init__()
        self.machine = machine

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.machine.run(func, args, kwargs or {})


class _Host(threading.local):
    """Of each thread: the stream it hands work to, and what it knows to be done."""

    def __init__(self, default):
        self.stream, self.clock = default, {}


class Machine:
    """One GPU and its host. `strict`: is the host forbidden to wait?"""

    def __init__(self):
        torch.cuda._lazy_init = lambda: None  # called before any mode is asked
        self.log, self.freed, self.sent, self.pending = [], [], [], []
        self.strict = False
        self.known = {}  # what any thread knows to be done, for memory that another one frees
        self._lock = threading.RLock()
        self._count = 0
        self.host = SimpleNamespace(stream=None, clock={})
        self.default = Stream(self, "default")
        self.host = _Host(self.default)

    # What `torch.cuda` has.

    def Stream(self, device=None):  # noqa: N802
        with self._lock:
            self._count += 1
            return Stream(self, f"stream {self._count}")

    def Event(self, blocking=False):  # noqa: N802
        return Event(self)

    def current_stream(self, device=None):
        return self.host.stream

    @contextmanager
    def stream(self, stream):
        before, self.host.stream = self.host.stream, stream
        try:
            with self.running():
                yield
        finally:
            self.host.stream = before

    # What the model is asked for.

    @contextmanager
    def running(self):
        """Inside, this thread can make tensors on the GPU."""
        is_on = getattr(self.host, "is_on", False)
        self.host.is_on = True
        with nullcontext() if is_on else _Mode(self):
            yield
        self.host.is_on = is_on

    @contextmanager
    def hot(self):
        """Inside, the host must not wait."""
        self.strict = True
        try:
            yield
        finally:
            self.strict = False

    def put(self, values, name="a tensor"):
        """`values` on the GPU, written by the current stream."""
        block = Block(self, self.host.stream, name)
        block.access(self.host.stream, writes=True)
        return GPUTensor(values.clone(), block)

    def get(self, tensor):
        """What a tensor holds, as work of the current stream would find it."""
        tensor.block.access(self.host.stream, writes=False)
        return tensor.inner.clone()

    def synchronize(self, clock):
        """The thread has waited until everything in `clock` is done."""
        if self.strict and threading.current_thread() is threading.main_thread():
            raise HostSyncError("the thread of the backward pass waits for the GPU")
        with self._lock:
            _join(self.host.clock, clock)
            _join(self.known, clock)
            due = [c for c in self.pending if clock.get(c[0], 0) >= c[1]]
            self.pending = [c for c in self.pending if clock.get(c[0], 0) < c[1]]
            for _, _, target, values in due:
                target.copy_(values)

    def waits(self, what):
        """The host waits for `what`."""
        if self.strict:
            raise HostSyncError(f"{what} waits for the GPU")

    def run(self, func, args, kwargs):
        """One operation: on the GPU if a tensor of it, or what it makes, is there."""
        name, flat = func._schema.name.split("::")[1], tree_flatten((args, kwargs))[0]
        ours = [x for x in flat if isinstance(x, GPUTensor)]
        to_gpu = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda"
        if not ours and not to_gpu:
            kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"}
            return func(*args, **kwargs)
        if func.namespace == "c10d":
            return self._send(func, name, args, kwargs, ours)
        if name in WAITS:
            return self._read(func, args, kwargs, ours)
        if name == "copy_" and not all(isinstance(x, GPUTensor) for x in args[:2]):
            return self._copy(*args, **kwargs)
        to_cpu = kwargs.get("device") is not None and not to_gpu
        if name == "_to_copy" and to_cpu:
            return self._read(func, args, kwargs, ours)
        is_put = name == "_to_copy" and not ours
        if is_put and not kwargs.get("non_blocking"):
            self.waits("a copy")
        others = [x for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, GPUTensor)]
        assert is_put or not any(x.dim() for x in others), f"{name} of tensors on two devices"
        with self._lock:
            return self._compute(func, args, kwargs, to_cpu=to_cpu)

    def _read(self, func, args, kwargs, ours):
        self.waits(func)
        for x in ours:
            x.block.access(self.host.stream, writes=False)
        self.synchronize(self.host.stream.clock)
        return func(*tree_map(_inner, args), **tree_map(_inner, kwargs))

    def _copy(self, target, source, non_blocking=False):
        """Between the host and the GPU."""
        ours = target if isinstance(target, GPUTensor) else source
        stream = self.host.stream
        if not non_blocking:
            self.waits("a copy")
        with self._lock:
            ours.block.access(stream, writes=ours is target)
            if ours is target:
                target.inner.copy_(source)
            elif non_blocking:
                self.pending.append((stream, stream.ticks, target, source.inner.clone()))
                target.fill_(float("nan"))
            else:
                target.copy_(source.inner)
        return target

    def _compute(self, func, args, kwargs, *, to_cpu):
        stream, blocks, known = self.host.stream, {}, {}
        for x in tree_flatten((args, kwargs))[0]:
            if isinstance(x, GPUTensor):
                blocks[x.inner.untyped_storage()._cdata] = x.block
                known[id(x.inner)] = x
        if not _is_view(func):
            _accesses(func, args, kwargs, stream)
        inner = {k: v for k, v in tree_map(_inner, kwargs).items() if k != "pin_memory"}
        if "device" in inner:
            inner["device"] = torch.device("cpu")
        out = func(*tree_map(_inner, args), **inner)
        if to_cpu:
            return out

        def wrapped(x):
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) in known:
                return known[id(x)]
            block = blocks.get(x.untyped_storage()._cdata)
            if block is None:
                block = Block(self, stream, f"what {func} made")
                block.access(stream, writes=True)
            return GPUTensor(x, block)

        return tree_map(wrapped, out)

    def _send(self, func, name, args, kwargs, ours):
        """A collective reads and writes as work of the current stream does: both wait for it."""
        for x in ours:
            assert x.dtype in SENT_BY_NCCL, f"NCCL does not send {x.dtype}"
            with self._lock:
                x.block.access(self.host.stream, writes=True)
        self.sent.append((name, sum(x.nbytes for x in ours)))
        out = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        known = {id(x.inner): x for x in ours}
        return tree_map(lambda x: known.get(id(x), x), out)

    def kernels(self, names, backend):
        """The kernels of `backend` for tensors of this GPU, those called in `names` alone."""

        def launched(name, call):
            def launch(*args, **options):
                flat = tree_flatten((args, options))[0]
                for x in flat:
                    if isinstance(x, GPUTensor):
                        with self._lock:
                            x.block.access(self.host.stream, writes=True)
                assert not any(isinstance(x, torch.Tensor) and x.device != GPU for x in flat)
                with _off():
                    said = call(*tree_map(_inner, args), **tree_map(_inner, options))
                return self._said(name, said)

            return launch

        return SimpleNamespace(**{name: launched(name, getattr(backend, name)) for name in names})

    def _said(self, name, said):
        """What a kernel returns: tensors are there, and for anything else the host waits."""
        if name in FLAGGING:
            said = torch.tensor([said])
        if not isinstance(said, torch.Tensor | None):
            self.waits(f"what `{name}` says")
            return said
        return None if said is None else self.put(said, f"what `{name}` says")

    def future(self, devices=None):
        """In place of `torch.futures.Future`."""
        return Future(self)


class Future:
    """Of tensors on the GPU: it keeps an event of the stream that fulfilled it."""

    def __init__(self, machine):
        self.machine, self.is_set = machine, threading.Event()
        self.callbacks, self.lock = [], threading.Lock()

    def set_result(self, value):
        with self.lock:
            self.result, self.event = value, self.machine.current_stream().record_event()
            self.is_set.set()
            callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    def value(self):
        return self.result

    def then(self, callback):
        """Its callbacks run on streams of their own, which wait for the event."""
        child = Future(self.machine)

        def called():
            pool = self.machine.Stream()
            pool.wait_event(self.event)
            with self.machine.stream(pool):
                try:
                    child.set_result(callback(self))
                except BaseException as error:
                    child.set_result(error)

        with self.lock:
            waits = not self.is_set.is_set()
            if waits:
                self.callbacks.append(called)
        if not waits:
            called()
        return child

    def wait(self):
        assert self.is_set.wait(60)
        if isinstance(self.result, BaseException):
            raise self.result
        stream = self.machine.current_stream()
        stream.wait_event(self.event)
        self.result.record_stream(stream)
        return self.result


def _join(clock, other):
    for stream, time in other.items():
        clock[stream] = max(time, clock.get(stream, 0))


def _inner(x):
    return x.inner if isinstance(x, GPUTensor) else x


def _off():
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def _is_view(func):
    return any(
        a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments
    )


def _accesses(func, args, kwargs, stream):
    for at, argument in enumerate(func._schema.arguments):
        given = args[at] if at < len(args) else kwargs.get(argument.name)
        for x in tree_flatten(given)[0]:
            if isinstance(x, GPUTensor):
                writes = argument.alias_info is not None and argument.alias_info.is_write
                x.block.access(stream, writes=writes)
