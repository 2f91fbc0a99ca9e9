"""GradiVeQ [1]: gradients by their coordinates in a subspace learned from earlier gradients.

A compression that commutes with the sum can be added up on the way. A fixed linear map does:

    y_n = U^T (g_n - mu)          each worker, for each slice of K values          (sec. 3.2)
    y   = mean of the y_n         d values on the wire instead of K
    g   = U y + mu                once                                             (sec. 3.2)

`U` holds the d leading principal axes of the slices seen in a training phase, in which gradients
travel whole, and mu their mean. The cycle is: `warmup_steps` whole, then again and again
`train_steps` whole and `compress_steps` compressed (alg. 1).

[1] Yu, Lin, Narra, Li, Li, Kim, Schwing, Annavaram, Avestimehr, "GradiVeQ: Vector Quantization
    for Bandwidth-Efficient Gradient Aggregation in Distributed CNN Training", NeurIPS 2018,
    arXiv:1811.03617.

Legend: `basis` = U^T has d rows of K values; mu = `mean`; L_t = `train_steps`;
L_c = `compress_steps`; 1 - lambda = `energy`; N = `world`.

Differences from the paper:

- d is the least number of axes that keep `energy` of the *last quarter* of the training phase,
  which the axes have not seen. The paper asks it of the very slices the axes were made from, and
  of those any L_t - 1 axes keep everything: white noise passes for compressible. Here it does
  not, and a parameter that no d <= K/2 can carry stays whole for the cycle.
- K is a multiple of F D or of a row, as in the paper, or one of the parts that these can be halved
  to, whichever costs least to send and to compute (`axes.py`).
- Samples are taken from all slices in turn, and each slice has its own mean; the paper uses the
  first slice alone. Linear layers are compressed too, and the tail that fills no slice is sent.
- Axes come from the Gram matrix of the samples, not from the K x K covariance. Rank 0 works them
  out and broadcasts them. All else is added in a fixed order, the sums over workers too, by the
  owners of shards (`collectives.code_reduce`): all ranks have the same bits.
- The run-time rule compares all that was lost and all that was sent in a phase so far with the
  first step of it. Workers tell each other both, so that all go back to training together.
- Error feedback. What was lost is orthogonal to U and cannot be sent before the phase is over;
  it is delivered in equal shares in a few steps after it, which nothing is learned from.
- What is sent, coefficients or whole gradients, goes through another codec (`inner`) whose codes
  can be added: 8 bits by default. The paper sends float32, and in training phases also 4-bit QSGD.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.adaptive import FittedCodec, Layout, State
from gradwire.codec import Codec, Seen, SummableCodec
from gradwire.codecs.cast import Floats
from gradwire.codecs.gradiveq.axes import cheapest_axes
from gradwire.codecs.gradiveq.projection import Projection
from gradwire.codecs.gradiveq.slicing import Slicing
from gradwire.codecs.inner import inner_codec, spelled_inner
from gradwire.codecs.settings import SpelledCodec
from gradwire.kernels.exact import is_finite

_GROWTH = 4.0
"""Back to training when energy lost over energy sent has grown by this factor."""
_EXAMPLE_RATIO = 8


@dataclass(frozen=True)
class Subspace(State):
    """Where a parameter stands: `count` steps into `phase`, and what it has gathered.

    Training: `total` is the sum of the vectors to learn from, in the order of slices, and `samples`
    some of their slices.
    Compressing: by `basis` and `mean`, unless there are none. `sent` and `lost` count the energies
    of the phase, and `loss` was their ratio in the first step.
    """

    phase: str = "warmup"
    count: int = 0
    total: Tensor | None = None
    samples: tuple[Tensor, ...] = ()
    basis: Tensor | None = None
    mean: Tensor | None = None
    sent: float = 0.0
    lost: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class GradiVeQ(FittedCodec[Subspace], SpelledCodec):
    """Principal axes of earlier gradients.

    slice: the least number of values in a slice; rounded up to a multiple of F * D for a
        convolution of F filters of depth D, and of the row of a matrix. Where it costs less, a
        slice is a half of that, or a half of a half, and so on.
    energy: how much of the variance of slices it has not seen a basis must keep.
    warmup_steps, train_steps, compress_steps: lengths of the phases.
    inner: the codec of coefficients, and of gradients in all other steps, or its spec with ";" for
        ",": a `SummableCodec`, or `none` for float32.

    On its own a vector has nothing to learn from, so a payload is the vector itself.

    >>> import gradwire as gw
    >>> gw.parse("gradiveq:energy=0.9,inner=fp16").inner
    'fp16'
    """

    slice: int = 512
    energy: float = 0.9
    warmup_steps: int = 20
    train_steps: int = 60
    compress_steps: int = 400
    inner: SummableCodec | str | None = "global-qsgd:bits=8"

    unbiased = False
    collective = "code_reduce"
    name = "gradiveq"
    state_type: ClassVar[type[State]] = Subspace

    def __post_init__(self) -> None:
        least = {"slice": 1, "warmup_steps": 0, "train_steps": 8, "compress_steps": 1}
        for name, value in least.items():
            got = getattr(self, name)
            if not isinstance(got, int) or got < value:
                raise ValueError(f"`{name}` must be an integer of at least {value}, got {got!r}.")
        if not isinstance(self.energy, float) or not 0 < self.energy < 1:
            raise ValueError(
                f"`energy` must be a fraction between 0 and 1, got {self.energy!r}; to lose "
                "nothing, use `none`."
            )
        object.__setattr__(self, "inner", spelled_inner(self.inner))

    def start(self) -> Subspace:
        """Before the first step."""
        return Subspace("warmup" if self.warmup_steps else "train")

    def codec_for(self, state: Subspace, layout: Layout) -> Codec:
        """The projection, in a compress phase that has one; the inner codec, or float32, else."""
        if state.basis is not None:
            return self._projection(layout, state)
        return Floats() if self.inner is None else inner_codec(self.inner)

    def _projection(self, layout: Layout, state: Subspace) -> Projection:
        assert state.basis is not None and state.mean is not None
        slicing = Slicing(layout, state.basis.shape[1])
        return Projection(
            slicing, state.basis, state.mean, inner_codec(self.inner), state.count == 0
        )

    def settle(self, state: Subspace, learned: Subspace, layout: Layout, owed: Tensor) -> None:
        """At the end of a compress phase: what its projection has not said is owed."""
        if state.basis is not None and learned.basis is None:
            self._projection(layout, state).settle(owed)

    def share_due(self, state: Subspace) -> float:
        """What a projection loses it owes until the phase that delivers it in equal shares."""
        if state.phase == "deliver":
            return 1 / (self._deliver_steps - state.count)
        return 0.0 if state.basis is None else 1.0

    def learn(
        self, state: Subspace, layout: Layout, mean: Tensor, seen: Seen, *, owing: bool
    ) -> Subspace:
        """One step on in the cycle; a mean that is not finite, or was not sent, teaches nothing."""
        if not is_finite(mean) or (state.basis is not None and not seen):
            return state
        if state.phase == "train":
            return self._gather(state, layout, mean)
        if seen:
            state = self._watch(state, *seen, owing=owing)
        lengths = {
            "warmup": self.warmup_steps,
            "compress": self.compress_steps,
            "deliver": self._deliver_steps,
        }
        if state.lost > _GROWTH * state.loss * state.sent:
            return Subspace("deliver")
        if state.count + 1 < lengths[state.phase]:
            return replace(state, count=state.count + 1)
        return Subspace("deliver" if state.basis is not None else "train")

    def _watch(self, state: Subspace, sent: float, lost: float, *, owing: bool) -> Subspace:
        """Add up what was sent and lost; a vector that owes has its losses summed already.

        Losses of single steps that have nothing to do with each other add up by their energies,
        so either way the ratio keeps its size for as long as the basis fits.
        """
        sent += state.sent
        lost += 0.0 if owing else state.lost
        first = lost / sent if sent else 0.0
        loss = state.loss if state.count else max(first, 1 - self.energy)
        return replace(state, sent=sent, lost=lost, loss=loss)

    def is_due(self, state: Subspace) -> bool:
        """At the end of a training phase."""
        return state.phase == "train" and state.count == self.train_steps

    def fit(self, state: Subspace, layout: Layout) -> Tensor:
        """K and the basis, flat; empty if none keeps enough of the energy."""
        slicing, sampled = self._slicing(layout), torch.cat(state.samples)
        per_step, stride = self._sampling(slicing)
        of_slice = torch.arange(len(sampled)) % slicing.count
        centred = sampled - self._mean(state, slicing)[of_slice]
        fit = per_step * math.ceil(self._fit_steps / stride)
        axes = cheapest_axes(centred[:fit], centred[fit:], self.energy, slicing.lengths)
        width = torch.tensor([axes.shape[1]] if len(axes) else [], dtype=torch.float32)
        return torch.cat((width, axes.view(-1)))

    def adopt(self, state: Subspace, layout: Layout, fitted: Tensor) -> Subspace:
        """Compress with the basis that was found."""
        if fitted.numel() == 0:
            return Subspace("compress")
        size = int(fitted[0])
        basis, mean = fitted[1:].view(-1, size), self._mean(state, Slicing(layout, size))
        return Subspace("compress", basis=basis.contiguous(), mean=mean)

    def examples(self, numel: int) -> tuple[Codec, ...]:
        """Slices of a vector by an eighth as many random axes, and whole."""
        layout = Layout.flat(numel)
        slicing = self._slicing(layout)
        shape = slicing.size, -(-slicing.size // _EXAMPLE_RATIO)
        axes = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        basis = torch.linalg.qr(axes).Q.T.contiguous()  # bits: any axes take as long
        mean = torch.full((slicing.count, slicing.size), 0.0)
        example = Subspace("compress", basis=basis, mean=mean)
        return self._projection(layout, example), self.codec_for(self.start(), layout)

    def describe(self, state: Subspace) -> str:
        """The phase, and how far it compresses."""
        if state.basis is not None:
            return f"compress, {state.basis.shape[0]} of {state.basis.shape[1]} values a slice"
        return "whole, it does not compress" if state.phase == "compress" else state.phase

    def _gather(self, state: Subspace, layout: Layout, mean: Tensor) -> Subspace:
        """Add the slices to their sum, unless they are held out, and keep some as samples."""
        slicing = self._slicing(layout)
        ordered = slicing.ordered(mean)
        slices, _ = slicing.split(ordered)
        per_step, stride = self._sampling(slicing)
        total, samples = state.total, state.samples
        if state.count < self._fit_steps:
            total = ordered.clone() if total is None else total + ordered
        if state.count % stride == 0:
            first = state.count // stride * per_step
            samples = (*samples, slices[torch.arange(first, first + per_step) % slicing.count])
        return replace(state, count=state.count + 1, total=total, samples=samples)

    def _slicing(self, layout: Layout) -> Slicing:
        return Slicing.of(layout, self.slice)

    @property
    def _fit_steps(self) -> int:
        """The last quarter of a training phase is held out."""
        return self.train_steps - self.train_steps // 4

    @property
    def _deliver_steps(self) -> int:
        """As few as keep the shares of a residual in the size of gradients."""
        return self.train_steps // 4

    def _sampling(self, slicing: Slicing) -> tuple[int, int]:
        """How many slices of a step to keep, and of which steps: at most 1024, and 2^23 values.

        But 64 at least, however long they are.
        """
        most = max(64, min(1024, 2**23 // slicing.size))
        per_step = max(1, min(slicing.count, most // self.train_steps))
        return per_step, math.ceil(self.train_steps / most)

    def _mean(self, state: Subspace, slicing: Slicing) -> Tensor:
        """That of each slice."""
        assert state.total is not None
        return slicing.split(state.total / self._fit_steps)[0]
