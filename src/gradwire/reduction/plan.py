"""What will become of every parameter, to be read before training starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.adaptive import Layout
from gradwire.codec import FLOAT_DTYPES
from gradwire.reduction.parameters import Parameter
from gradwire.reduction.reducer import Reducer

_HEAD = ("parameter", "values", "codec", "collective", "bits per value")


@dataclass(frozen=True)
class Row:
    """One parameter. `bits` is None if it depends on what is sent, as for sparse gradients.

    `is_exact` is False if `bits` is the most it can be.
    """

    parameter: str
    values: int
    codec: str
    collective: str
    bits: float | None
    is_exact: bool = True

    def cells(self) -> tuple[str, ...]:
        """The row as it is printed."""
        bits = "?" if self.bits is None else f"{'' if self.is_exact else '<= '}{self.bits:.4g}"
        return self.parameter, f"{self.values:,}", self.codec, self.collective, bits


@dataclass(frozen=True)
class Plan:
    """A row for every parameter; `str` makes a table of them.

    `note` says where `auto` stands; the plan `is_settled` unless it measures or tries others.
    """

    rows: tuple[Row, ...]
    warmup_steps: int
    note: str = ""
    is_settled: bool = True

    @property
    def bits_per_value(self) -> float:
        """The mean over all values of which it is known, at most."""
        known = [(row.values, row.bits) for row in self.rows if row.bits is not None]
        return sum(v * bits for v, bits in known) / max(sum(v for v, _ in known), 1)

    def __str__(self) -> str:
        rows = [_HEAD, *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for name, values, *words, bits in rows:
            middle = "  ".join(word.ljust(w) for word, w in zip(words, widths[2:4], strict=True))
            lines.append(
                f"{name.ljust(widths[0])}  {values.rjust(widths[1])}  {middle}  "
                f"{bits.rjust(widths[4])}"
            )
        lines.append(f"{self.bits_per_value:.4g} bits per value in all")
        if self.warmup_steps:
            lines.append(f"raw for the first {self.warmup_steps} steps")
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)


def plan(reducer: Reducer, parameters: Sequence[Parameter]) -> Plan:
    """The plan for what `reducer` will do."""
    return Plan(tuple(_row(reducer, each) for each in parameters), reducer.warmup_steps)


def _row(reducer: Reducer, parameter: Parameter) -> Row:
    value = parameter.value
    numel = value.numel()
    if parameter.is_sparse:
        return Row(parameter.name, numel, "raw, sparse", "all_gather", None)
    route = reducer.route_for(parameter.number, value)
    if route is None:
        codec = f"raw{_why(reducer, parameter)}"
        return Row(parameter.name, numel, codec, "all_reduce", 8.0 * value.element_size())
    layout = Layout.of(value)
    _, collective = route.first(layout)
    bits = 8 * route.max_nbytes(layout) / numel
    return Row(parameter.name, numel, str(route.codec), collective.name, bits, route.has_fixed_size)


def _why(reducer: Reducer, parameter: Parameter) -> str:
    if parameter.value.dtype not in FLOAT_DTYPES:
        return f", {parameter.value.dtype}".replace("torch.", "")
    if parameter.value.numel() < reducer.min_numel:
        return ", small"
    return ", skipped" if reducer.skips(parameter.number) else ""
