"""How fast codecs are, measured here or taken from a table, and what follows for a job.

A rate is seconds of one core for a value. The table says on which machine it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from gradwire.adaptive import AdaptiveCodec, FittedCodec
from gradwire.codec import Codec, SummableCodec
from gradwire.codecs import parse
from gradwire.codecs.powersgd import PowerSGD
from gradwire.key import Key
from gradwire.planner.messages import Messages
from gradwire.planner.work import Work

TABLE = Path(__file__).with_name("rates.json")
CODECS = (
    "none", "bf16", "fp16", "qsgd:bits=8", "qsgd:bits=4", "qsgd:bits=2", "dqsg",
    "dqsg:bits_per_value=2.0", "global-qsgd:bits=4", "global-qsgd:bits=4,dither=exponential",
    "eden", "thc", "fft", "gradiveq", "powersgd:rank=4",
)  # fmt: skip
JOB_S = 1e-3
"""What a job costs a core beside its values, if that was not measured: Python, and gloo's calls."""
_NUMEL = 1 << 22
_ROUNDS = 7


@dataclass(frozen=True)
class Rates:
    """Seconds of one core for a value, and for a payload in `decode` and `add`.

    `feedback` is what error feedback adds, `statistics` what comes before encoding. `nmse` is the
    error of one message, |decoded - x|^2 / |x|^2, of Gaussian values.
    """

    codec: str
    encode: float
    decode: float
    statistics: float
    add: float
    feedback: float
    bytes_per_value: float
    nmse: float


@cache
def table() -> dict[str, Any]:
    """The built-in table: `machine`, `rates` by spec, and `send_cpu`, seconds of TCP for a byte."""
    read: dict[str, Any] = json.loads(TABLE.read_text())
    return read | {"rates": {r["codec"]: Rates(**r) for r in read["rates"]}}


def measure(spec: str, numel: int = _NUMEL, seed: int = 0) -> Rates:
    """The rates of a codec on Gaussian values, alone, in one thread: the best of some rounds."""
    codec: Codec = parse(spec)
    if isinstance(codec, AdaptiveCodec):
        codec, *_ = codec.examples(numel)
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    key, out = Key(seed=seed), torch.zeros(numel)
    room = torch.zeros(codec.max_nbytes(numel), dtype=torch.uint8)
    size = codec.encode_into(x, room, key)
    payload = room[:size]
    encode = best(lambda: codec.encode_into(x, room, key)) / numel
    decode = best(lambda: codec.decode_into(payload, out, key, weight=0.5, accumulate=True))
    codec.decode_into(payload, out, key)
    lost = float((out - x).double().square().sum() / x.double().square().sum())
    feedback = best(lambda: torch.add(x, x, out=out)) if parse(spec).owes else 0.0
    statistics, add = _sums(codec, x, key)
    fed = (2 * feedback + decode) / numel if feedback else 0.0
    return Rates(
        spec,
        encode=_rounded(encode),
        decode=_rounded(decode / numel),
        statistics=_rounded(statistics / numel),
        add=_rounded(add / numel),
        feedback=_rounded(fed),
        bytes_per_value=size / numel,
        nmse=_rounded(lost),
    )


def _sums(codec: Codec, x: torch.Tensor, key: Key) -> tuple[float, float]:
    """Seconds of statistics, and of adding the codes of one worker."""
    if not isinstance(codec, SummableCodec):
        return 0.0, 0.0
    numel, workers = x.numel(), 4
    adder = codec.adder(workers)
    codes = torch.zeros(workers, adder.code_nbytes(numel), dtype=torch.uint8)
    total = torch.zeros(adder.total_nbytes(numel), dtype=torch.uint8)
    statistics = best(lambda: codec.statistics(x)) if codec.statistics(x).numel() else 0.0
    return statistics, best(lambda: adder.add(codes, total, numel, key)) / workers


def best(work: Callable[[], object]) -> float:
    """The shortest of some rounds, in seconds."""
    work()
    found = []
    for _ in range(_ROUNDS):
        start = perf_counter()
        work()
        found.append(perf_counter() - start)
    return min(found)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def rates_of(specs: Sequence[str]) -> dict[str, Rates]:
    """From the table where it has them; others are measured now."""
    known = table()["rates"]
    return {spec: known[spec] if spec in known else measure(spec) for spec in specs}


def work_of(rates: Rates, workers: int, job_s: float = JOB_S) -> Work:
    """What a job of a codec does, stage by stage, from its rates."""
    messages = Messages(rates.codec, workers, rates.bytes_per_value)
    ask_bytes, first_bytes, middle_bytes = messages.per_value()
    n, first_s = workers, rates.encode
    last_s, middle_s = rates.decode + rates.feedback, 0.0
    if messages.collective == "all_gather":
        last_s = n * rates.decode + rates.feedback
    elif messages.collective == "two_shot":
        middle_s = rates.decode + rates.encode / n
    elif messages.collective == "relay":  # what an owner has of its own it neither reads nor owes
        middle_s = ((n - 1) * rates.decode + rates.encode + rates.feedback) / n
        last_s = rates.decode + rates.feedback * (n - 1) / n
        first_s = rates.encode * (n - 1) / n
    elif messages.collective == "code_reduce":
        adding = rates.add * (n if n == 2 else 1)
        middle_s, last_s = (0.0, adding + last_s) if n == 2 else (adding, last_s)
    codec = messages.codec
    ask_s = rates.statistics
    if isinstance(codec, PowerSGD):  # one factor after the other
        ask_s = first_s = rates.encode / 2
    return Work(
        rates.codec, messages.collective,
        ask_s=ask_s, first_s=first_s, middle_s=middle_s, last_s=last_s,
        job_s=job_s, ask_bytes=ask_bytes, first_bytes=first_bytes, middle_bytes=middle_bytes,
        announces=not codec.fixed_size, in_turn=isinstance(codec, FittedCodec | PowerSGD),
        whole=messages.grain is None, nmse=rates.nmse,
    )  # fmt: skip


def to_json(machine: str, send_cpu: float, found: Sequence[Rates]) -> str:
    """The table as text."""
    rows = ",\n".join(f"  {json.dumps(asdict(rates))}" for rates in found)
    head = f'"machine": {json.dumps(machine)}, "send_cpu": {_rounded(send_cpu)}'
    return f'{{{head}, "rates": [\n{rows}\n]}}\n'
