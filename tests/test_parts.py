"""Cutting: slices tile what they are cut from, and can be cut again."""

import itertools

import pytest
import torch

import gradwire as gw
from gradwire.collectives.parts import Part, Slice, cut, whole

GRAINS = {1: gw.Identity(), 512: gw.QSGD(), None: gw.QSGD(block=None)}


def numbered(*numels, grain=512):
    """Parts that hold their places, and residuals that hold them negated."""
    places = [torch.arange(float(numel)) for numel in numels]
    return [Part(x, i, GRAINS[grain], residual=-x) for i, x in enumerate(places)]


def spans(pieces):
    return [(piece.part.tensor, piece.start, piece.stop) for piece in pieces]


@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize(("first", "second"), [(2, 3), (4, 2), (1, 5), (7, 7)])
def test_what_was_cut_is_cut_again_without_a_gap(grain, first, second):
    parts = numbered(5000, 700, 0, 20_000, 3, grain=grain)
    again = [
        piece
        for chunk in cut(whole(parts), first)
        for shard in cut(chunk, second)
        for piece in shard
    ]
    for part in parts:
        own = [piece for piece in again if piece.part is part]
        assert all(a.stop == b.start for a, b in itertools.pairwise(own))
        assert torch.equal(torch.cat([p.values for p in own] or [torch.empty(0)]), part.values)
        assert torch.equal(torch.cat([p.residual for p in own] or [torch.empty(0)]), part.residual)
        assert all(piece.start % (grain or 10**9) == 0 for piece in own)


def test_a_chunk_is_cut_at_the_grain_of_its_parameter_whatever_precedes_it():
    (part,) = numbered(4000)
    chunk = [Slice(part, 1024, 4000)]
    assert spans(piece for shard in cut(chunk, 2) for piece in shard) == [
        (0, 1024, 2560),
        (0, 2560, 4000),
    ]
