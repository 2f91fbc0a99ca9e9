"""What an attachment has done so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stats:
    """What an attachment has done so far.

    Everything is counted since `attach`, `steps` too: a state that is loaded says where the run
    stands (`handle.state_dict()["step"]`), and changes no number here. A step is a backward pass
    whose gradients were exchanged, so those under `no_sync` are none.

    `bytes_sent` is what this worker sent to others, from the sizes of the buffers handed to the
    collectives; `bits_per_value` the size of its own messages over their values. Seconds are
    those of all lanes together, which work beside the backward pass and beside each other. `raw`
    names the parameters that always travel uncompressed.

    Of a codec that learns: `learned` says where it stands with each of its parameters, and `counts`
    what it counts. For NDQSG, "expected_failures" is how many values were probably decoded wrong,
    over all workers, and "fallbacks" how often a parameter was sent by the plain code because too
    many would have been.

    `weight_bytes` is what this worker sent of weights, if FSDP gathers them through a codec
    (`weights=`). It is not in `bytes_sent`, which is of gradients, as `bits_per_value` is.

    `buffer_bytes` is the memory that was allocated to encode, send, receive and decode, and
    `residual_bytes` that of error feedback, which is twice as much if `attach` was given a scaler;
    neither is ever given back before `close`.
    """

    steps: int
    bytes_sent: int
    bits_per_value: float
    encode_s: float
    comm_s: float
    decode_s: float
    raw: tuple[str, ...]
    learned: dict[str, str] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    weight_bytes: int = 0
    buffer_bytes: int = 0
    residual_bytes: int = 0

    @property
    def bytes_per_step(self) -> float:
        """Bytes this worker sent to others in a step, on average."""
        return self.bytes_sent / max(self.steps, 1)
