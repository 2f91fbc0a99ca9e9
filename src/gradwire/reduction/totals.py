"""Statistics of a reducer whose jobs lanes have run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.reduction.parameters import Parameter
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.route import Route
from gradwire.reduction.stats import Stats
from gradwire.transport.account import Account
from gradwire.transport.link import Link


def route_of(reducer: Reducer, parameter: Parameter) -> Route | None:
    """How a parameter travels; None: raw, or not at all."""
    if not parameter.is_trained or parameter.is_sparse:
        return None
    return reducer.route_for(parameter.number, parameter.value)


def totals(
    reducer: Reducer,
    links: Sequence[Link],
    parameters: Sequence[Parameter],
    steps: int,
    counts: Mapping[str, float] | None = None,
) -> Stats:
    """What went over `links` in `steps` steps; `counts` are added to what codecs have counted."""
    account = sum((link.account for link in links), Account())
    trained = [each for each in parameters if each.is_trained]
    routes = [(each, route_of(reducer, each)) for each in trained]
    return Stats(
        steps=steps,
        bytes_sent=account.bytes_sent,
        bits_per_value=8 * account.message_bytes / max(account.values, 1),
        encode_s=account.encode_s,
        comm_s=account.comm_s,
        decode_s=account.decode_s,
        raw=tuple(each.name for each, route in routes if route is None),
        learned={
            each.name: route.adaptation.describe(each.number)
            for each, route in routes
            if route is not None and route.adaptation is not None
        },
        counts={**reducer.counts(), **(counts or {})},
        buffer_bytes=sum(link.scratch.nbytes for link in links),
        residual_bytes=reducer.residuals.nbytes,
    )
