"""`image_reduce`: a `code_reduce` of the images of affine maps, whose mean is expanded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.adaptive import AffineCodec
from gradwire.codec import Codec
from gradwire.collectives.code_reduce import CodeReduce, sum_codes
from gradwire.collectives.collective import Collective, Sighting
from gradwire.collectives.feedback import settle, sources
from gradwire.collectives.parts import Part, Slice, whole
from gradwire.collectives.sums import Sum
from gradwire.key import Key
from gradwire.transport.link import Link


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
        maps, inputs = [_affine(piece.codec) for piece in pieces], sources(link, pieces)
        sizes = [each.image_numel for each in maps]
        images = torch.split(link.floats("images", sum(sizes)), sizes)
        with link.account.timed("encode"):
            energies = torch.tensor(
                [m.project(x, y) for m, x, y in zip(maps, inputs, images, strict=True)],
                dtype=torch.float64,
            )
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
                settle(link, piece, source, image.decode, image.subtract)
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

    def decode(self, out: Tensor) -> None:
        image = self.added.piece.values
        self.added.decode(image)
        self.affine.expand(image, out)

    def subtract(self, out: Tensor) -> None:
        image = self.added.piece.values
        self.added.subtract(image.zero_())
        self.affine.subtract_image(image, out)


def _affine(codec: Codec) -> AffineCodec:
    assert isinstance(codec, AffineCodec)
    return codec
