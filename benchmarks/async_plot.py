"""Test accuracy over time with one slow worker, the plot of docs/algorithms/asynchronous.md.

gradwire train -c qsgd:bits=4 --slow 10 --target 0.95 -a sync -a async --json slow.json
.venv/bin/python benchmarks/async_plot.py slow.json docs/algorithms/asynchronous.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from curve_plot import Panel, draw
from gradwire.lab.report.axes import axis


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", metavar="JSON", help="what `gradwire train --json` wrote")
    parser.add_argument("plot", metavar="SVG")
    options = parser.parse_args()
    results = json.loads(Path(options.results).read_text())
    curves = [[(s["seconds"], s["score"]) for s in each["scores"]] for each in results]
    across = axis("", "", [x for curve in curves for x, _ in curve], from_zero=True)
    down = axis("", "", [y for curve in curves for _, y in curve])
    title = (
        f"Test accuracy, one of {results[0]['workers']} workers {results[0]['slow']:g} times slower"
    )
    panel = Panel("test accuracy against seconds of training", across, down, curves)
    names = [each["algorithm"] for each in results]
    Path(options.plot).write_text(draw(title, [panel], names))


if __name__ == "__main__":
    main()
