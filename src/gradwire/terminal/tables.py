"""Tables for a terminal of any width: every row keeps its name, columns give way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

TITLE = "codec"
INDENT = "  "
MOST_TABLES = 2  # for a group of columns, before names get lines of their own

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A head of one or two lines, and what stands below it."""

    head: str
    cell: Callable[[Row], str]

    def width(self, rows: Sequence[Row]) -> int:
        """How wide it is with these rows, and the gap before it."""
        return 1 + max(map(len, (*self.head.split("\n"), *map(self.cell, rows))))


@dataclass(frozen=True)
class Stacked(Generic[Row]):
    """One table if names, those of codecs, stay whole in it; else one for each group of columns.

    Names that are too long for that are broken after commas. If it would take more tables even
    so, names stand above their numbers.
    """

    rows: Sequence[Row]
    name: Callable[[Row], str]
    groups: Sequence[Sequence[Column[Row]]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out for the width of the console."""
        for place, lines in enumerate(self._tables(options.max_width)):
            if place:
                yield ""
            for line, style in lines:
                yield Text(line, style=style, no_wrap=True, overflow="ignore")

    def _tables(self, width: int) -> Iterator[Iterator[tuple[str, str]]]:
        """The lines of each table, with their styles."""
        joined = [column for group in self.groups for column in group]
        longest = max(len(self.name(row)) for row in self.rows)
        if max(longest, len(TITLE)) <= self._room(joined, width):
            yield self._beside(joined, longest)
            return
        least = max(len(line) for row in self.rows for line in broken(self.name(row), 0))
        for group in self.groups:
            tables = self._cut(group, width, max(least, len(TITLE)))
            fits = all(self._room(columns, width) >= least for columns in tables)
            if fits and len(tables) <= MOST_TABLES:
                for columns in tables:
                    yield self._beside(columns, min(longest, self._room(columns, width)))
            else:
                for columns in self._cut(group, width, len(INDENT)):
                    yield self._above(columns, width)

    def _cut(self, group: Sequence[Column[Row]], width: int, least: int) -> list[list[Column[Row]]]:
        """Share columns out to tables that have room for `least` beside them."""
        tables: list[list[Column[Row]]] = [[]]
        for column in group:
            if tables[-1] and self._room([*tables[-1], column], width) < least:
                tables.append([])
            tables[-1].append(column)
        return tables

    def _room(self, columns: Sequence[Column[Row]], width: int) -> int:
        """How wide names may be beside these columns."""
        return width - sum(column.width(self.rows) for column in columns)

    def _beside(self, columns: Sequence[Column[Row]], room: int) -> Iterator[tuple[str, str]]:
        room = max(room, len(TITLE))
        upper, lower = self._heads(columns)
        if upper.strip():
            yield " " * room + upper, "bold"
        yield TITLE.ljust(room) + lower, "bold"
        for row in self.rows:
            *first, last = broken(self.name(row), room)
            yield from ((line, "") for line in first)
            yield last.ljust(room) + self._numbers(columns, row), ""

    def _above(self, columns: Sequence[Column[Row]], width: int) -> Iterator[tuple[str, str]]:
        yield TITLE, "bold"
        for line in filter(str.strip, self._heads(columns)):
            yield INDENT + line, "bold"
        for row in self.rows:
            for line in broken(self.name(row), width):
                yield from ((line[i : i + width], "") for i in range(0, len(line), width))
            yield INDENT + self._numbers(columns, row), ""

    def _heads(self, columns: Sequence[Column[Row]]) -> tuple[str, str]:
        lines = [("\n" + column.head).rsplit("\n", 1) for column in columns]
        widths = [column.width(self.rows) for column in columns]
        upper, lower = (
            "".join(pair[i].strip().rjust(w) for pair, w in zip(lines, widths, strict=True))
            for i in (0, 1)
        )
        return upper, lower

    def _numbers(self, columns: Sequence[Column[Row]], row: Row) -> str:
        return "".join(column.cell(row).rjust(column.width(self.rows)) for column in columns)


def broken(spec: str, width: int) -> list[str]:
    """Break a codec after commas into lines of at most `width`, as far as that will do.

    >>> broken("gradiveq:energy=0.8,warmup_steps=10,train_steps=30", 34)
    ['gradiveq:energy=0.8,', '  warmup_steps=10,train_steps=30']
    """
    lines = [""]
    for piece in re.findall("[^,]*,?", spec):
        if lines[-1] and piece and len(lines[-1] + piece) > width:
            lines.append(INDENT)
        lines[-1] += piece
    return lines
