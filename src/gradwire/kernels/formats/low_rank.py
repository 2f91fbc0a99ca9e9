"""How the sums of low-rank products are ordered, and when a vector counts as spanned by others."""

from __future__ import annotations

LANES = 16
"""Columns that are added side by side."""
GROUP = 4
"""Factors that go over the matrix together."""
FLOOR = 2.0**-36
"""The square of what must be left of a vector: float32 products are noise below it."""
