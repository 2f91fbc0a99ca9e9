"""Test accuracy over time with one slow worker, the plot of docs/algorithms/asynchronous.md.

gradwire train -c qsgd:bits=4 --slow 10 --target 0.95 -a sync -a async --json slow.json
.venv/bin/python benchmarks/async_plot.py slow.json docs/algorithms/asynchronous.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from curve_plot import Curve, draw


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", metavar="JSON", help="what `gradwire train --json` wrote")
    parser.add_argument("plot", metavar="SVG")
    options = parser.parse_args()
    results = json.loads(Path(options.results).read_text())
    curves = [
        Curve(each["algorithm"], place, [(s["seconds"], s["score"]) for s in each["scores"]])
        for place, each in enumerate(results)
    ]
    title = (
        f"Test accuracy, one of {results[0]['workers']} workers {results[0]['slow']:g} times slower"
    )
    Path(options.plot).write_text(draw(title, "seconds of training", "", curves))


if __name__ == "__main__":
    main()
