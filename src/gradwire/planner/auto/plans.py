"""Plans that keep to an error budget: a codec for all layers, or one for each."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from gradwire.planner.auto.candidates import LAYER_MOST
from gradwire.planner.auto.facts import RAW, Assignment, Facts
from gradwire.planner.auto.forecast import Forecast
from gradwire.planner.auto.program import solve

MARGIN = 0.9
"""The share of the error budget that is planned with: gradients change from step to step."""
PRICES = (0.0, 0.1, 0.3, 1.0, 3.0)
"""What a second of all cores is worth, in seconds of the link."""


def plans(forecast: Forecast, error: float) -> list[Assignment]:
    """Raw, each codec for all layers, and what the dynamic program finds for several prices."""
    budget = MARGIN * error * forecast.facts.total_energy
    found = [RAW, *_uniform(forecast.facts, error, budget), *_programmed(forecast, error, budget)]
    return list(dict.fromkeys(found))


def _uniform(facts: Facts, error: float, budget: float) -> Iterator[Assignment]:
    """Layers for which a codec is too coarse travel raw."""
    for offer in facts.offers:
        layers = [i for i in facts.values if offer.nmse[i] <= LAYER_MOST * error]
        if sum(facts.lost(i, offer.spec) for i in layers) <= budget:
            yield Assignment.of(dict.fromkeys(layers, offer.spec))


def _programmed(forecast: Forecast, error: float, budget: float) -> Iterator[Assignment]:
    facts = forecast.facts
    options, layers = [None, *facts.by_spec], list(facts.values)
    both = [[forecast.costs(i, spec) for spec in options] for i in layers]
    errors = [[_lost(facts, i, spec, error) for spec in options] for i in layers]
    for price in PRICES:
        costs = [[link_s + price * core_s / facts.cores for link_s, core_s in row] for row in both]
        chosen = solve(costs, errors, budget)
        named = {i: options[option] for i, option in zip(layers, chosen, strict=True)}
        yield Assignment.of({i: spec for i, spec in named.items() if spec is not None})


def _lost(facts: Facts, layer: int, spec: str | None, error: float) -> float:
    """The energy that a layer would lose; infinite if that is too much of it."""
    if spec is None:
        return 0.0
    too_much = facts.by_spec[spec].nmse[layer] > LAYER_MOST * error
    return inf if too_much else facts.lost(layer, spec)
