"""What a network costs: rates, latencies, and the processor time of sending."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """One worker's link, as the collectives among `workers` of them see it.

    Rates are bytes of payload a second in one direction. The `_s` are latencies of collectives:
    seconds beside those of their bytes. The `_cpu` are seconds of one core for a byte.

    rate: through the link. `ring_rate` is what a ring all-reduce makes of it, which waits for its
        neighbours; `half_rate` the same with float16.
    burst: bytes that a shaper lets through at `peak` before it holds to `rate`.
    """

    workers: int
    rate: float
    ring_s: float
    share_s: float
    exchange_s: float
    gather_s: float
    burst: float = 0.0
    peak: float = 0.0
    ring_rate: float = 0.0
    half_rate: float = 0.0
    send_cpu: float = 0.0
    ring_cpu: float = 0.0
    half_cpu: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ring_rate", "half_rate", "peak"):
            if not getattr(self, name):
                object.__setattr__(self, name, self.rate)

    @classmethod
    def ideal(cls, workers: int, rate: float, latency: float) -> Network:
        """A network known by its rate and the latency of a message one way."""
        return cls(
            workers=workers,
            rate=rate,
            ring_s=2 * (workers - 1) * latency,
            share_s=latency,
            exchange_s=latency,
            gather_s=(workers - 1) * latency,
        )
