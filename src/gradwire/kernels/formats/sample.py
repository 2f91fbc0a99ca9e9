"""What is looked at of a vector to find a step for it, for all backends.

Of each segment of n values `TILES` tiles, or as many as it has, are looked at: every k-th with
k = ceil(n / (512 TILES)); of a segment below a tile all values. Their magnitudes, in units of the
root mean square of their block, are counted in `BINS` bins, an eighth of an octave each (`PARTS`),
from 2^`LOWEST` on; the first and the last one take what is beyond them.
"""

from __future__ import annotations

TILES = 8
PARTS, LOWEST, BINS = 8, -4, 96
LEAST, MOST = -9 * PARTS, 3 * PARTS
"""The steps that make sense, in parts of an octave."""
