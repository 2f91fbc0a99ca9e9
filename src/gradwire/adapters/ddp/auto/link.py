"""A link, measured in a moment: latencies of collectives, and the rate of all lanes together.

All ranks do the same, over groups that nobody else uses meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from gradwire.transport.link import Link, share_over

FEW, ROUNDS = 64, 4
BULK_S, LEAST_NBYTES, MOST_NBYTES = 0.04, 1 << 14, 1 << 21


def measure_link(link: Link, links: Sequence[Link], rate: float) -> dict[str, list[float]]:
    """Latencies and, as `rate`, the bytes a second; `rate` is about what to expect, on all ranks.

    `send_cpu` is what a byte costs the cores.
    """
    found = {name: [_latency(work)] for name, work in _small_works(link).items()}
    nbytes = int(rate * BULK_S / (len(links) * (link.size - 1)))
    nbytes = min(max(nbytes, LEAST_NBYTES), MOST_NBYTES)
    rows = [[torch.zeros(nbytes, dtype=torch.uint8) for _ in range(link.size)] for _ in links]
    share_over(links, rows)  # a shaper may have saved up what passes at once
    cpu, start = time.process_time(), time.perf_counter()
    for _ in range(ROUNDS):
        share_over(links, rows)
    seconds, sent = time.perf_counter() - start, ROUNDS * len(links) * (link.size - 1) * nbytes
    return found | {"rate": [sent / seconds], "send_cpu": [(time.process_time() - cpu) / sent]}


def _small_works(link: Link) -> dict[str, Callable[[], None]]:
    size = link.size
    rows = torch.zeros(size, FEW, dtype=torch.uint8)
    flat, out, number = rows.view(-1), torch.zeros(size * FEW, dtype=torch.uint8), torch.zeros(16)
    return {
        "share_s": lambda: link.share(list(rows)),
        "exchange_s": lambda: link.all_to_all(out, flat, [FEW] * size, [FEW] * size),
        "gather_s": lambda: link.all_gather(out, rows[0]),
        "ring_s": lambda: link.all_reduce(number),
    }


def _latency(work: Callable[[], None]) -> float:
    """The best of some rounds: now and then one takes milliseconds that are not the link's."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)
