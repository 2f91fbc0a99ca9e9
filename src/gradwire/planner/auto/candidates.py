"""The codecs that `auto` chooses from. All are unbiased, so a change of plan leaves nothing owed.

Dithered codes of fixed width are the fastest for each bit, entropy coded ones send least for each
error, and EDEN lies between them. The steps of entropy coded ones follow from the budget: such a
codec loses step^2 / 12 of a layer's energy, whatever the layer. (`bits_per_value` would find a step
for each layer anew in every step, and takes longer to encode.) QSGD is there for layers with many
zeros, which neither dither nor a rotation keeps; Global-QSGD for links on which the processor is
what counts.
"""

from __future__ import annotations

from math import sqrt

from gradwire.codecs.dqsg import DQSG

_FIXED = {
    "dqsg:levels=127": 5e-5,
    "dqsg:levels=15": 0.004,
    "dqsg:levels=7": 0.018,
    "qsgd:bits=4": 0.036,
    "global-qsgd:bits=4": 0.036,
    "eden:bits=3": 0.036,
    "dqsg:levels=3": 0.1,
    "eden": 0.133,
    "eden:bits=1": 0.571,
    "dqsg:levels=1": 0.9,
}
"""What they lose of Gaussian values. Real gradients have larger extremes, and lose more."""
_FINEST = 1 / 64
"""Codecs that lose less than this share of the budget would save nothing that matters."""
_SHARES = (0.125, 0.4, 0.8, 1.6)
"""What entropy coded codecs lose, as shares of the budget."""
LAYER_MOST = 2.0
"""No layer may lose more than so many times the budget: optimizers such as Adam give every layer
the same weight, however little of the energy it has."""


def candidates(error: float) -> list[str]:
    """Specs of codecs for an error budget.

    >>> candidates(0.15)[-2:]
    ['dqsg:step=1.2', 'dqsg:step=1.7']
    """
    least, most = _FINEST * error, LAYER_MOST * error
    fixed = [spec for spec, nmse in _FIXED.items() if least <= nmse <= most]
    return fixed + [str(DQSG(step=_step(share * error))) for share in _SHARES]


def _step(nmse: float) -> float:
    """The step that loses so much, to two digits."""
    return min(max(float(f"{sqrt(12 * nmse):.2g}"), 1 / 64), 8.0)
