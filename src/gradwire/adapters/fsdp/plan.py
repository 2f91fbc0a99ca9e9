"""What will become of every FSDP module, to be read before training starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradwire.adapters.fsdp.gatherer import Gatherer
from gradwire.adapters.fsdp.scatterer import Scatterer, is_coded
from gradwire.adapters.fsdp.units import Unit
from gradwire.adaptive import Layout
from gradwire.codec import FLOAT_DTYPES, Codec
from gradwire.codecs.cast import Identity
from gradwire.reduction.plan import Plan, Row
from gradwire.reduction.reducer import Reducer


@dataclass(frozen=True)
class ShardedPlan(Plan):
    """A row for every module and leg, called by the module; its values are those of a buffer.

    `weights` has those for weights, if there is a codec for them. They are not in
    `bits_per_value`, which is of gradients.
    """

    weights: tuple[Row, ...] = ()

    def __str__(self) -> str:
        table = super().__str__()
        return f"{table}\n\nweights\n{Plan(self.weights, 0)}" if self.weights else table


def plan(
    units: Sequence[Unit],
    scatterer: Scatterer,
    between: Reducer | None,
    gatherer: Gatherer | None,
) -> ShardedPlan:
    """The plan for what these three will do."""
    rows, weights = [], []
    for unit in units:
        if unit.gradients.numel():  # not frozen as a whole
            rows.append(_row(unit, "reduce_scatter", unit.gradients, scatterer))
            if between is not None:
                rows.append(_row_between(unit, between))
        if gatherer is not None:
            weights.append(_row(unit, "all_gather", unit.weights, gatherer))
    return ShardedPlan(tuple(rows), 0, weights=tuple(weights))


def _row(unit: Unit, collective: str, buffer: Tensor, leg: Scatterer | Gatherer) -> Row:
    """A buffer whose shards are encoded one by one."""
    if not is_coded(leg.codec, buffer, leg.min_numel):
        return _raw(unit, collective, buffer, leg.codec)
    nbytes = unit.shards * leg.codec.max_nbytes(buffer.numel() // unit.shards)
    bits = 8 * nbytes / buffer.numel()
    name = str(leg.codec)
    return Row(unit.label, buffer.numel(), name, collective, bits, leg.codec.fixed_size)


def _row_between(unit: Unit, reducer: Reducer) -> Row:
    numel = unit.own.numel()
    route = reducer.route_for(unit.stream(reducer.link.size) + unit.shard, unit.own)
    if route is None:
        return _raw(unit, "all_reduce", unit.own, reducer.codec)
    bits = 8 * route.max_nbytes(Layout.flat(numel)) / numel
    name = str(route.codec)
    return Row(unit.label, numel, name, route.collective.name, bits, route.has_fixed_size)


def _raw(unit: Unit, collective: str, buffer: Tensor, codec: Codec) -> Row:
    if isinstance(codec, Identity):
        why = ""
    elif buffer.dtype not in FLOAT_DTYPES:
        why = f", {buffer.dtype}".replace("torch.", "")
    else:
        why = ", small"
    return Row(unit.label, buffer.numel(), f"raw{why}", collective, 8.0 * buffer.element_size())
