"""Pages of the documentation have tables that a script makes, between two marks with its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Marks:
    """Those of one script."""

    script: str

    @property
    def begin(self) -> str:
        return f"<!-- {self.script}: begin -->"

    @property
    def end(self) -> str:
        return f"<!-- {self.script}: end -->"

    def replaced(self, page: str, section: str) -> str:
        """`page` with `section` between its marks."""
        if page.count(self.begin) != 1 or page.count(self.end) != 1:
            raise SystemExit(
                f"The page must have the lines {self.begin!r} and {self.end!r}, each once."
            )
        before, rest = page.split(self.begin)
        return f"{before}{self.begin}\n\n{section}\n\n{self.end}{rest.split(self.end)[1]}"

    def put(self, section: str, page: Path) -> None:
        """Put `section` between the marks of a file."""
        page.write_text(self.replaced(page.read_text(), section))
