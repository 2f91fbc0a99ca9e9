"""`image_reduce`: a `code_reduce` of the images of affine maps, whose mean is expanded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradwire.adaptive import AffineCodec
from gradwire.codec import Codec
from gradwire.collectives.code_reduce import CodeReduce, sum_codes
from gradwire.collectives.collective import Collective, Sighting
from gradwire.collectives.feedback import Own, tell, vectors_of
from gradwire.collectives.parts import Part, Slice, whole
from gradwire.collectives.sums import Sum, sources
from gradwire.kernels.exact import is_finite
from gradwire.key import Key
from gradwire.transport.link import Link

_MODERATE = 2.0**100


class ImageReduce(Collective):
    """Add the images of whole parameters. Seen are the energies sent and lost, on average.

    A worker whose gradient is zero owes like the others, and says in the first step what it owes:
    later that has no image. But where all gradients are zero, so is the mean, and nothing is sent:
    DDP throws away the mean of a parameter that no worker used.
    """

    name = "image_reduce"

    def check(self, codec: Codec, world: int) -> None:
        if not isinstance(codec, AffineCodec):
            raise TypeError(f"{codec!r} is no affine map; leave `collective` out.")

    def message_nbytes(self, codec: Codec, numel: int, world: int) -> int:
        affine = _affine(codec)
        return CodeReduce().message_nbytes(affine.through, affine.image_numel, world)

    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        maps = [_affine(piece.codec) for piece in pieces]
        owing = [replace(piece, part=replace(piece.part, share=1.0)) for piece in pieces]
        due = vectors_of(link, [_due(*each) for each in zip(owing, maps, strict=True)])
        inputs = sources(link, due)
        sizes = [each.image_numel for each in maps]
        room = torch.split(link.floats("images", sum(sizes)), sizes)
        rows = [_Image(*row) for row in zip(owing, maps, inputs, room, strict=True)]
        with link.account.timed("encode"):
            found = torch.tensor([row.project() for row in rows], dtype=torch.float64)
        given = torch.tensor([[float(piece.part.share > 0)] for piece in pieces])
        means = _mean_over_workers(link, torch.cat((found, given), 1))
        link.account.message(sum(piece.numel for piece in pieces), 0)
        told = [(row, seen) for row, (*seen, given) in zip(rows, means, strict=True) if given]
        shadows, images = whole([row.part for row, _ in told]), [row.image for row, _ in told]
        sums = sum_codes(link, [Own(each) for each in shadows], images, key) if told else []
        with link.account.timed("decode"):
            for (row, _), added in zip(told, sums, strict=True):
                row.settle(link, added)
        return [(row.piece, tuple(seen)) for row, seen in told]

    def simulate(self, codec: Codec, vectors: Sequence[Tensor], key: Key) -> Tensor:
        affine = _affine(codec)
        images = [torch.empty(affine.image_numel) for _ in vectors]
        for vector, image in zip(vectors, images, strict=True):
            affine.project(vector, image)
        mean = torch.empty(vectors[0].numel(), dtype=torch.float32)
        affine.expand(CodeReduce().simulate(affine.through, images, key), mean)
        return mean


@dataclass(frozen=True)
class _Image:
    """That of one parameter: what it is of, and the memory for it, which is used again."""

    piece: Slice
    affine: AffineCodec
    source: Tensor
    image: Tensor

    @property
    def part(self) -> Part:
        """What is reduced in place of the parameter."""
        return Part(self.image, self.piece.part.tensor, self.affine.through)

    def project(self) -> tuple[float, float]:
        """Write the image; the energies of it, and of all that is lost by now."""
        sent, lost = self.affine.project(self.source, self.image)
        if self.piece.residual is not None and not self.affine.is_first:
            lost = self.affine.lost(self.piece.values, self.piece.residual)
        return sent, lost

    def settle(self, link: Link, added: Sum) -> None:
        """Store the mean, and owe the gradient that it takes the place of, if the mean is finite.

        Every rank sees the same mean, so all decide alike.
        """
        tell(self.piece, self.source, partial(self._subtract, added))
        added.decode(self.image)
        values = self.piece.values
        direct = values.dtype == torch.float32
        target = values if direct else link.floats("target", self.piece.numel)
        if not direct:
            self.affine.expand(self.image, target)
        fits = _is_moderate(self.image) if direct else is_finite(target.to(values.dtype))
        if self.piece.residual is not None and fits:
            self.affine.owe(values, self.piece.residual)
        if direct:
            self.affine.expand(self.image, target)
        else:
            values.copy_(target)

    def _subtract(self, added: Sum, out: Tensor) -> None:
        """Take what this worker has sent off `out`."""
        added.subtract(self.image.zero_())
        self.affine.subtract_image(self.image, out)


def _mean_over_workers(link: Link, found: Tensor) -> list[list[float]]:
    link.sum_in_order(found.view(-1))
    link.account.message(0, found.nbytes)
    rows: list[list[float]] = (found / link.size).tolist()
    return rows


def _due(piece: Slice, affine: AffineCodec) -> Slice:
    """What is owed has no image, but in the first step."""
    return piece if affine.is_first else replace(piece, part=replace(piece.part, residual=None))


def _is_moderate(image: Tensor) -> bool:
    """Are all values so far from the end of float32 that what they say must be finite?

    The gradient is needed for the residual, and gone once the mean is written in its place.
    """
    return not image.numel() or bool(image.abs().max() < _MODERATE)


def _affine(codec: Codec) -> AffineCodec:
    assert isinstance(codec, AffineCodec)
    return codec
