"""A small GPT that reads characters: pre-norm blocks, causal attention, learned positions.

Embedding and head are not tied. With so few characters that would save one per cent of the
parameters, and it would add up two kinds of gradient that a codec should meet apart: the rows of an
embedding, zero for every character that is not in the batch, and a dense head.

Every matrix has 16,384 values or more, so that it is encoded; norms and biases travel raw.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from gradwire.lab.text import CONTEXT, NUM_CODES

INITIAL_DEVIATION = 0.02


class Attention(nn.Module):
    """Every character looks at itself and at those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the characters of `x`, shaped [batch, time, width]."""
        split = self.inputs(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [batch, heads, time, width/heads]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    """Attention, then a perceptron of four times the width, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, time, width] to the same."""
        x = x + self.attention(x)
        output: Tensor = x + self.perceptron(x)
        return output


class GPT(nn.Module):
    """Characters in, logits of the next one out, at every place of the window."""

    def __init__(self, codes: int, context: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, codes, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=INITIAL_DEVIATION)

    def forward(self, codes: Tensor) -> Tensor:
        """Map [batch, time] to [batch, time, codes]."""
        x = self.embedding(codes) + self.positions[: codes.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def small_gpt() -> nn.Module:
    """Build the GPT of the lab: three blocks of width 256.

    >>> sum(p.numel() for p in small_gpt().parameters())
    2451712
    """
    return GPT(NUM_CODES, CONTEXT, width=256, heads=4, blocks=3)


def next_character_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of all characters, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def bits_per_character(logits: Tensor, targets: Tensor) -> Tensor:
    """Return each window's mean cross-entropy, in bits.

    >>> bits_per_character(torch.zeros(1, 5, 128), torch.arange(5).view(1, 5))
    tensor([7.])
    """
    nats = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return nats.mean(1) / math.log(2)
