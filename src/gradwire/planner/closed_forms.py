"""What collectives cost if nothing else is going on: seconds, from bytes, rates and latencies.

`alpha` is the latency of a message one way in seconds, a rate is bytes a second in one direction,
and links carry both directions at once. `nbytes` is the message of one worker: its gradients, or
what a codec makes of them. Codecs that take no time are assumed; `replay` adds theirs.

    ring all-reduce    2 (n - 1) steps of nbytes / n
    two shots          n - 1 messages of nbytes / n to owners, n - 1 of the owner's to all
    all-gather         n - 1 messages of nbytes
    code_reduce        statistics to all, then two shots (between two workers, one)

With unequal links a ring, and every owner of an equal shard, waits for the slowest. A straggler
who starts later delays everyone by as much: all of them are barriers.
"""

from __future__ import annotations

from collections.abc import Sequence


def ring(nbytes: float, rates: Sequence[float], alpha: float) -> float:
    """Ring all-reduce among as many workers as there are `rates`.

    >>> ring(1000, [100.0] * 4, alpha=0.5)
    18.0
    """
    n = len(rates)
    return 2 * (n - 1) * (nbytes / n / min(rates) + alpha)


def two_shot(
    nbytes: float, rates: Sequence[float], alpha: float, reply_nbytes: float | None = None
) -> float:
    """Shards to their owners, and what the owners make of them to everyone.

    `reply_nbytes` are those of the means of all shards, by default as many.

    >>> two_shot(1000, [100.0] * 4, alpha=0.5)
    16.0
    """
    n = len(rates)
    reply_nbytes = nbytes if reply_nbytes is None else reply_nbytes
    return (n - 1) / n * (nbytes + reply_nbytes) / min(rates) + 2 * alpha


def all_gather(nbytes: float, rates: Sequence[float], alpha: float) -> float:
    """Every message to everyone.

    >>> all_gather(1000, [100.0] * 4, alpha=0.5)
    30.5
    """
    return (len(rates) - 1) * nbytes / min(rates) + alpha


def code_reduce(
    statistics: float, nbytes: float, total_nbytes: float, rates: Sequence[float], alpha: float
) -> float:
    """`statistics` bytes to everyone, then codes to owners and totals to all.

    >>> code_reduce(10, 1000, 1200, [100.0] * 4, alpha=0.5)
    18.3
    """
    n = len(rates)
    agreed = all_gather(statistics, rates, alpha) if statistics else 0.0
    if n == 2:
        return agreed + all_gather(nbytes, rates, alpha)
    return agreed + two_shot(nbytes, rates, alpha, total_nbytes)


def hierarchical(
    nbytes: float,
    within: Sequence[float],
    alpha_within: float,
    between: Sequence[float],
    alpha: float,
    message_nbytes: float | None = None,
) -> float:
    """Sums within nodes first, then between them: `len(within)` workers on each of
    `len(between)` nodes.

    A reduce-scatter leaves each worker a share of the node's sum; the workers of one place in all
    nodes exchange theirs in two shots, over the node's one link; an all-gather ends it.
    `message_nbytes` is what a codec makes of `nbytes` for the way between nodes.

    >>> hierarchical(1000, [1000.0] * 2, 0.0, [100.0] * 4, alpha=0.5)
    17.0
    """
    size = len(within)
    inside = 2 * (size - 1) * (nbytes / size / min(within) + alpha_within) if size > 1 else 0.0
    message = nbytes if message_nbytes is None else message_nbytes
    return inside + (two_shot(message, between, alpha) if len(between) > 1 else 0.0)


def straggling(seconds: float, delays: Sequence[float]) -> float:
    """A collective of so many seconds whose workers begin after `delays`.

    >>> straggling(2.0, [0.0, 0.0, 0.7])
    2.7
    """
    return seconds + max(delays)
