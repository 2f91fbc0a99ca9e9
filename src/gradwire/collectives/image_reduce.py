"""`image_reduce`: a `code_reduce` of the images of affine maps, whose mean is expanded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwire.adaptive import AffineCodec
from gradwire.codec import Codec
from gradwire.collectives.code_reduce import CodeReduce, sum_codes
from gradwire.collectives.collective import Collective, Sighting
from gradwire.collectives.feedback import sources, tell
from gradwire.collectives.parts import Part, Slice, whole
from gradwire.collectives.sums import Sum
from gradwire.kernels.exact import is_finite
from gradwire.key import Key
from gradwire.transport.link import Link

_MODERATE = 2.0**100


class ImageReduce(Collective):
    """Add the images of whole parameters. Seen are the energies sent and lost, on average."""

    name = "image_reduce"

    def check(self, codec: Codec, world: int) -> None:
        if not isinstance(codec, AffineCodec):
            raise TypeError(f"{codec!r} is no affine map; leave `collective` out.")

    def message_nbytes(self, codec: Codec, numel: int, world: int) -> int:
        affine = _affine(codec)
        return CodeReduce().message_nbytes(affine.through, affine.image_numel, world)

    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        maps = [_affine(piece.codec) for piece in pieces]
        inputs = sources(link, [_due(*each) for each in zip(pieces, maps, strict=True)])
        sizes = [each.image_numel for each in maps]
        images = torch.split(link.floats("images", sum(sizes)), sizes)
        rows = zip(pieces, maps, inputs, images, strict=True)
        with link.account.timed("encode"):
            energies = torch.tensor([_project(*row) for row in rows], dtype=torch.float64)
        link.sum_in_order(energies.view(-1))
        link.account.message(sum(piece.numel for piece in pieces), energies.nbytes)
        shadows = whole(
            [
                Part(image, piece.part.tensor, each.through)
                for image, piece, each in zip(images, pieces, maps, strict=True)
            ]
        )
        sums = sum_codes(link, shadows, images, key)
        with link.account.timed("decode"):
            for piece, each, source, added in zip(pieces, maps, inputs, sums, strict=True):
                image = _Image(each, added)
                tell(piece, source, image.subtract)
                image.settle(link, piece)
        means = (energies / link.size).tolist()
        return [(piece, (sent, lost)) for piece, (sent, lost) in zip(pieces, means, strict=True)]

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
    """The sum of the images of one parameter; the memory of this worker's own is used again."""

    affine: AffineCodec
    added: Sum

    def settle(self, link: Link, piece: Slice) -> None:
        """Store the mean, and owe the gradient that it takes the place of, if the mean is finite.

        Every rank sees the same mean, so all decide alike.
        """
        image, values = self.added.piece.values, piece.values
        self.added.decode(image)
        direct = values.dtype == torch.float32
        target = values if direct else link.floats("target", piece.numel)
        if not direct:
            self.affine.expand(image, target)
        fits = _is_moderate(image) if direct else is_finite(target.to(values.dtype))
        if piece.residual is not None and fits:
            self.affine.owe(values, piece.residual)
        if direct:
            self.affine.expand(image, target)
        else:
            values.copy_(target)

    def subtract(self, out: Tensor) -> None:
        """Take what this worker has sent off `out`."""
        image = self.added.piece.values
        self.added.subtract(image.zero_())
        self.affine.subtract_image(image, out)


def _due(piece: Slice, affine: AffineCodec) -> Slice:
    """What is owed has no image, but in the first step."""
    return piece if affine.is_first else replace(piece, part=replace(piece.part, residual=None))


def _project(
    piece: Slice, affine: AffineCodec, source: Tensor, image: Tensor
) -> tuple[float, float]:
    """Write the image; the energies of it, and of all that is lost by now."""
    sent, lost = affine.project(source, image)
    if piece.residual is not None and not affine.is_first:
        lost = affine.lost(piece.values, piece.residual)
    return sent, lost


def _is_moderate(image: Tensor) -> bool:
    """Are all values so far from the end of float32 that what they say must be finite?

    The gradient is needed for the residual, and gone once the mean is written in its place.
    """
    return not image.numel() or bool(image.abs().max() < _MODERATE)


def _affine(codec: Codec) -> AffineCodec:
    assert isinstance(codec, AffineCodec)
    return codec
