"""The two levels of a block, in a word of 16 bits, for all backends.

The top 12 bits of a positive float32 are a float with 3 bits of mantissa. As integers, bits >> 20,
they are the *marks* of a scale, eight to the octave, and the next mark is the next larger float.
The lower level is the mark `word >> 5`, the upper one `rise(word & 31)` marks above it: one by one
for two octaves, then four by four, nine and a half octaves in all. So a level misses the mean that
it stands for by 1/17 at most, or by a third if it is the upper one and more than two octaves above.

A block with nothing in it has the word 0, one that is not finite has `SPOILT`.
"""

from __future__ import annotations

SHIFT = 20
"""The bits of a float32 that a mark does not have."""
STEP_BITS = 5
LAST_STEP = (1 << STEP_BITS) - 1
NEAR = 16
"""Up to so many marks, a step is a mark."""
TOP = 0x7F7FFFFF >> SHIFT
"""The largest finite mark."""
SPOILT = (TOP + 1) << STEP_BITS


def rise(step: int) -> int:
    """How many marks the upper level is above the lower one.

    >>> [rise(step) for step in (0, 1, 16, 17, 31)]
    [0, 1, 16, 20, 76]
    """
    return step if step <= NEAR else NEAR + 4 * (step - NEAR)


REACH = rise(LAST_STEP)
