"""The adapter to DistributedDataParallel: `attach` and the `Handle` it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.codec import Codec
from gradwire.integrations.tensorboard import Log, Writer
from gradwire.lanes import Lanes, join
from gradwire.learning import Layout
from gradwire.link import Account, Link
from gradwire.parts import Part
from gradwire.raw import SmallParts
from gradwire.reducer import Reducer, Work


@dataclass(frozen=True)
class Stats:
    """What an attachment has done so far.

    `bytes_sent` is what this worker sent to others, from the sizes of the buffers handed to the
    collectives; `bits_per_value` the size of its own messages over their values. Seconds are
    those of all lanes together, which work beside the backward pass and beside each other. `raw`
    names the parameters that always travel uncompressed.

    Of a codec whose payloads depend on each other: `expected_failures` is how many values were
    probably decoded wrong, over all workers, and `fallbacks` how often a parameter was sent by
    the plain code because too many would have been. Of a codec that learns: `learned` says where
    it stands with each parameter that is not raw.

    `buffer_bytes` is the memory that was allocated to encode, send, receive and decode, and
    `residual_bytes` that of error feedback; neither is ever given back before `close`.
    """

    steps: int
    bytes_sent: int
    bits_per_value: float
    encode_s: float
    comm_s: float
    decode_s: float
    raw: tuple[str, ...]
    learned: dict[str, str]
    expected_failures: float = 0.0
    fallbacks: int = 0
    buffer_bytes: int = 0
    residual_bytes: int = 0

    @property
    def bytes_per_step(self) -> float:
        """Bytes this worker sent to others in a step, on average."""
        return self.bytes_sent / max(self.steps, 1)


class Handle:
    """What `attach` returns: statistics, state for checkpoints, and the end of its thread."""

    def __init__(
        self, module: DistributedDataParallel, reducer: Reducer, links: Sequence[Link]
    ) -> None:
        self._names = {n: i for i, (n, _) in enumerate(module.module.named_parameters())}
        self._numbers = {id(p): i for i, p in enumerate(module.module.parameters())}
        self._raw = tuple(
            name for name, p in module.module.named_parameters() if not reducer.is_coded(p)
        )
        self._reducer = reducer
        self._lanes = Lanes(links)
        self._small = SmallParts()
        self._log: Log | None = None

    @property
    def codec(self) -> Codec:
        """The codec that was attached."""
        return self._reducer.codec

    def stats(self) -> Stats:
        """Totals since `attach`."""
        links = self._lanes.links
        account = sum((link.account for link in links), Account())
        return Stats(
            steps=self._reducer.step,
            bytes_sent=account.bytes_sent,
            bits_per_value=8 * account.message_bytes / max(account.values, 1),
            encode_s=account.encode_s,
            comm_s=account.comm_s,
            decode_s=account.decode_s,
            raw=self._raw,
            expected_failures=self._reducer.expected_failures,
            fallbacks=self._reducer.fallbacks,
            learned=self._learned(),
            buffer_bytes=sum(link.buffer_nbytes for link in links),
            residual_bytes=sum(r.nbytes for r in self._reducer.residuals.values()),
        )

    def log_to(
        self, writer: Writer, *, every: int = 10, nmse: bool = False, layers: bool = False
    ) -> None:
        """Write bytes, their ratio to float32, and times to `writer`, every so many steps.

        nmse: also the error of this worker's gradient; costs one more encoding in these steps.
        layers: that for each parameter too. One rank is enough: nothing is exchanged for it.
        """
        self._log = Log(
            writer, self.stats, self._reducer, self._names, every=every, nmse=nmse, layers=layers
        )

    def _learned(self) -> dict[str, str]:
        learner = self._reducer.learner
        if learner is None:
            return {}
        states = {n: learner.states.get(i, learner.codec.start()) for n, i in self._names.items()}
        return {n: learner.codec.describe(s) for n, s in states.items() if n not in self._raw}

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: the step, which keys the random streams, residuals, failure rates.

        A codec that learns adds what it has learned, which is the same on every rank.
        """
        residuals, rates = self._reducer.residuals, self._reducer.failure_rates
        learner = self._reducer.learner
        learned = {} if learner is None else {"learned": learner.save(self._names)}
        return learned | {
            "step": self._reducer.step,
            "world": self._reducer.link.size,
            "rank": self._reducer.link.rank,
            "residuals": {
                name: residuals[number].clone()
                for name, number in self._names.items()
                if number in residuals
            },
            "failure_rates": {n: rates[i] for n, i in self._names.items() if i in rates},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, on the same rank of as many workers."""
        link = self._reducer.link
        if (state["world"], state["rank"]) != (link.size, link.rank):
            raise ValueError(
                f"this state is of rank {state['rank']} of {state['world']}, but this worker is "
                f"rank {link.rank} of {link.size}; residuals belong to one worker."
            )
        rates = state.get("failure_rates", {})
        unknown = sorted({*state["residuals"], *rates} - set(self._names))
        if unknown:
            raise ValueError(f"the state is of unknown parameters: {unknown}.")
        learner = self._reducer.learner
        if (learner is not None) != ("learned" in state):
            raise ValueError(
                f"{self.codec!r} {'learns' if learner else 'does not learn'}, but the state is "
                f"of a codec that {'does not' if learner else 'does'}; attach the same codec."
            )
        if learner is not None:
            learner.load(state["learned"], self._names)
        self._reducer.step = state["step"]
        self._reducer.residuals = {
            self._names[name]: residual.clone() for name, residual in state["residuals"].items()
        }
        self._reducer.failure_rates = {self._names[name]: rate for name, rate in rates.items()}

    def close(self) -> None:
        """End the thread and its process group, on every rank; `stats` and state stay.

        The module cannot take another hook; wrap the model anew for that.
        """
        self._lanes.close()
        if self._log is not None:
            self._log.step_ended()
        if dist.is_initialized():
            for link in self._lanes.links:
                dist.destroy_process_group(link.group)

    def hook(self) -> Callable[..., Future[Tensor]]:
        """The communication hook for `register_comm_hook`."""

        # DDP looks at the name `bucket`, and at annotations, which must not be strings.
        def gradwire_hook(state, bucket):  # type: ignore[no-untyped-def]
            buffer = bucket.buffer()
            if bucket.index() == 0:
                self._small = SmallParts()  # an earlier step may have ended in an error
            parts = self._parts(buffer, bucket.parameters())
            if self._log is not None:
                self._log.bucket(parts, first=bucket.index() == 0)
            work = self._reducer.work(buffer, parts)
            futures = self._submit(work, last=bucket.is_last())
            self._reducer.step += bucket.is_last()
            return join(futures, lambda results: self._finish(buffer, work, results))

        return gradwire_hook

    def _parts(self, buffer: Tensor, parameters: list[Tensor]) -> list[Part]:
        pieces = torch.split(buffer, [p.numel() for p in parameters])
        numbers = [self._numbers[id(p)] for p in parameters]
        return [
            Part(values, number, layout=Layout.of(parameter))
            for values, number, parameter in zip(pieces, numbers, parameters, strict=True)
        ]

    def _submit(self, work: Work, last: bool) -> list[Future[Any]]:
        """The futures of the jobs, in order, and of the small parameters if there are any."""
        futures = [self._lanes.submit(job) for job in work.jobs]
        if work.small:
            self._small.add(work.small)
            futures.append(self._small.done)
        if self._small.numel and (last or self._small.numel >= self._reducer.chunk):
            self._lanes.submit(self._small.job(), self._small.done)
            self._small = SmallParts()
        return futures

    def _finish(self, buffer: Tensor, work: Work, results: list[Any]) -> Tensor:
        self._reducer.finish(work, results[: len(work.jobs)])
        return buffer


def attach(
    module: DistributedDataParallel,
    codec: Codec,
    *,
    collective: str | None = None,
    error_feedback: bool | None = None,
    min_numel: int = 10_000,
    seed: int = 0,
    lanes: int = 3,
    chunk: int | None = None,
) -> Handle:
    """Reduce the gradients of `module` through `codec`. Call it once, on every rank alike.

    collective: "all_reduce", "all_gather" or "two_shot"; by default what suits the codec.
    error_feedback: add what was lost in a step to the next; by default for biased codecs only.
    min_numel: parameters with fewer values travel raw.
    seed: of the random streams; runs with the same seed and data are the same bit for bit.
    lanes: threads that encode, exchange and decode; more overlap more and take more memory.
    chunk: values that a lane takes at a time; by default 2^19 for each worker. Neither changes the
        result.
    """
    _check_module(module, codec)
    if lanes < 1 or (chunk is not None and chunk < 1):
        raise ValueError(f"`lanes` and `chunk` must be at least 1, got {lanes} and {chunk}.")
    links = [Link(_own_group(module.process_group)) for _ in range(lanes)]
    settings = {
        "codec": str(codec),
        "collective": collective,
        "error_feedback": error_feedback,
        "min_numel": min_numel,
        "seed": seed,
        "lanes": lanes,
        "chunk": chunk,
        "parameters": [(n, tuple(p.shape)) for n, p in module.module.named_parameters()],
    }
    _check_agreement(settings, links[0])
    reducer = Reducer(
        links[0], codec, collective=collective, error_feedback=error_feedback,
        min_numel=min_numel, chunk=chunk, seed=seed,
    )  # fmt: skip
    handle = Handle(module, reducer, links)
    module.register_comm_hook(None, handle.hook())
    return handle


def _check_module(module: DistributedDataParallel, codec: Codec) -> None:
    if not isinstance(codec, Codec):
        raise TypeError(
            f"`codec` must be a codec such as `gw.QSGD(bits=4)`, got {codec!r}; "
            '`gw.parse("qsgd:bits=4")` makes one from a string.'
        )
    if not isinstance(module, DistributedDataParallel):
        raise TypeError(
            f"`attach` takes a DistributedDataParallel module, got {type(module).__name__}; "
            "wrap it first: `ddp = DistributedDataParallel(model)`."
        )
    devices = {p.device.type for p in module.parameters()}
    if devices != {"cpu"}:
        raise NotImplementedError(
            f"gradwire has kernels for CPU tensors, but the module is on {sorted(devices)}."
        )
    if getattr(module, "_comm_hooks", None):
        raise RuntimeError(
            "this DDP module has a communication hook already, and takes only one; it may come "
            "from `register_comm_hook`, an earlier `attach`, or DDP's `mixed_precision`."
        )


def _own_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group of the same members that nobody else uses, so that no collective can get between."""
    members = dist.get_process_group_ranks(group)
    everyone = len(members) == dist.get_world_size()
    own: dist.ProcessGroup = dist.new_group(members, use_local_synchronization=not everyone)
    return own


def _check_agreement(settings: dict[str, Any], link: Link) -> None:
    """Every rank must attach with the same settings; name the one that does not, and what."""
    everyone: list[Any] = [None] * link.size
    dist.all_gather_object(everyone, settings, group=link.group)
    for name in settings:
        for rank, theirs in enumerate(everyone):
            if theirs[name] != everyone[0][name]:
                raise ValueError(
                    f"ranks attach with different settings: `{name}` is {everyone[0][name]!r} on "
                    f"rank 0 and {theirs[name]!r} on rank {rank}; they must be the same."
                )
