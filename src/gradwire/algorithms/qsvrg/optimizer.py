"""The optimizer: epochs of inner steps, each an exchange of quantized directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.adapters.checks import check_agreement
from gradwire.algorithms.flat import Flat
from gradwire.algorithms.qsvrg.settings import QSVRGSettings, check_codec, paper_codec
from gradwire.codec import Codec
from gradwire.codecs import as_codec
from gradwire.codecs.cast import Identity
from gradwire.collectives.all_gather import AllGather
from gradwire.collectives.parts import Part, whole
from gradwire.kernels import exact
from gradwire.key import Key
from gradwire.reduction.stats import Stats
from gradwire.reduction.streams import seed_of
from gradwire.transport.link import Link

Loss = Callable[[Tensor], Tensor]

FULL_BATCH = 1024
"""Examples whose losses are computed at once for a full gradient."""
_TENSOR = 1 << 30  # no parameter has this number, so its random numbers are nobody else's


@dataclass
class _Epoch:
    """One that is under way: where it began, the full gradient there, and how far it is."""

    y: Tensor
    g: Tensor
    x: Tensor
    total: Tensor
    steps: int = 0


class QSVRG:
    """Minimise the mean loss of all workers' examples. Every rank makes one, and calls it alike.

    params: what is trained, starting from the values of rank 0.
    loss: the mean loss of those of this worker's examples whose indices it is given.
    num_examples: how many this worker has; all workers have as many, and different ones.
    lr: the step eta, at most about 1 / L.
    inner_steps: T, a small multiple of L / l.
    batch: examples that a worker draws for a direction.
    l2: adds l2 / 2 |params|^2 to the loss, and so makes a convex one strongly convex.
    codec: what quantizes directions; by default that of the paper, see `paper_codec`.
    group: the workers; by default all.

    >>> optimizer = QSVRG(model.parameters(), loss, 2500, lr=2.0, inner_steps=200) # doctest: +SKIP
    >>> while optimizer.epoch() > 1e-6: pass                                       # doctest: +SKIP
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        loss: Loss,
        num_examples: int,
        *,
        lr: float,
        inner_steps: int,
        batch: int = 1,
        l2: float = 0.0,
        codec: Codec | str | None = None,
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        self._flat, self._loss = Flat(params), loss
        self.codec = paper_codec(self._flat.numel) if codec is None else as_codec(codec)
        check_codec(self.codec)
        self.settings = QSVRGSettings(num_examples, lr, inner_steps, batch, l2, seed)
        self._link = Link(group)
        self._agree()
        self.epochs, self._steps = 0, 0
        self._epoch: _Epoch | None = None

    def epoch(self) -> float:
        """Make one, and return the norm of the full gradient that it began with.

        It is the same on every rank, so all may stop by it.
        """
        epoch = self._begun()
        while self._epoch is not None:
            self.step()
        return math.sqrt(float(exact.tree_sum(epoch.g * epoch.g)))

    def step(self) -> float:
        """Make one inner step, and begin or end an epoch with it; the loss of what was drawn.

        The parameters then have the newest iterate, or after an epoch the mean of all.
        """
        epoch = self._begun()
        epoch.steps += 1
        chosen = self._draw(epoch.steps)
        before, _ = self._gradient(epoch.y, chosen)
        now, loss = self._gradient(epoch.x, chosen)
        mean = self._mean(now - before + epoch.g, self.codec, epoch.steps)
        epoch.x -= self.settings.lr * mean  # eq. (1)
        epoch.total += epoch.x
        self._flat.put(epoch.x)
        self._steps += 1
        if epoch.steps == self.settings.inner_steps:
            self._flat.put(epoch.total / self.settings.inner_steps)
            self.epochs, self._epoch = self.epochs + 1, None
        return loss

    def stats(self) -> Stats:
        """What this worker has sent so far; steps are inner ones."""
        account = self._link.account
        return Stats(
            steps=self._steps,
            bytes_sent=account.bytes_sent,
            bits_per_value=8 * account.message_bytes / max(account.values, 1),
            encode_s=account.encode_s,
            comm_s=account.comm_s,
            decode_s=account.decode_s,
            raw=(),
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands: with the parameters, all that is needed to go on bit for bit."""
        if self._epoch is not None:
            raise RuntimeError("an epoch is under way; save a state after it.")
        return {"epochs": self.epochs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the epochs of `state`; load the parameters too."""
        self.epochs, self._epoch = int(state["epochs"]), None

    def _agree(self) -> None:
        """Refuse ranks that differ in a setting, and start all from the values of rank 0."""
        more = {"codec": str(self.codec), "params": self._flat.numel}
        check_agreement(asdict(self.settings) | more, self._link)
        first = self._flat.get(torch.float64)
        dist.broadcast(first, group=self._link.group, group_src=0)
        self._flat.put(first)

    def _begun(self) -> _Epoch:
        """The epoch under way; a new one begins with a full gradient."""
        if self._epoch is None:
            y = self._flat.get(torch.float64)
            g = self._mean(self._full_gradient(y), Identity(), step=0)
            self._epoch = _Epoch(y, g, y.clone(), torch.zeros_like(y))
        return self._epoch

    def _full_gradient(self, y: Tensor) -> Tensor:
        """That of the mean loss of this worker's examples."""
        total = torch.zeros_like(y)
        for chosen in torch.split(torch.arange(self.settings.num_examples), FULL_BATCH):
            gradient, _ = self._gradient(y, chosen)
            total += gradient * (len(chosen) / self.settings.num_examples)
        return total

    def _gradient(self, point: Tensor, chosen: Tensor) -> tuple[Tensor, float]:
        """That of the loss of examples at `point`, and the loss without its l2 term."""
        self._flat.put(point)
        loss = self._loss(chosen)
        return self._flat.gradient(loss, torch.float64) + self.settings.l2 * point, loss.item()

    def _draw(self, step: int) -> Tensor:
        """Indices for an inner step, the same again if the run is."""
        own = seed_of(self.settings.seed, 1 + self._link.rank)
        number = self.epochs * self.settings.inner_steps + step
        generator = torch.Generator().manual_seed(seed_of(own, number))
        return torch.randint(
            self.settings.num_examples, (self.settings.batch,), generator=generator
        )

    def _mean(self, vector: Tensor, codec: Codec, step: int) -> Tensor:
        """Over the workers: each sends its own, encoded once, and all decode the same messages."""
        sent = vector.to(torch.float32)
        key = Key(self.settings.seed, self.epochs * (self.settings.inner_steps + 1) + step)
        AllGather().reduce(self._link, whole([Part(sent, _TENSOR, codec)]), key)
        return sent.to(torch.float64)
