"""The page of `gradwire plan --html`: sliders, curves and the recommendation, in one file.

The model runs in the page (`model.js`), on what codecs cost among the numbers of workers that its
slider has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradwire.planner import advice
from gradwire.planner.network import Network
from gradwire.planner.request import Planned, works_among
from gradwire.planner.work import PLAIN, raw
from gradwire.reduction.policy import MIN_NUMEL

HERE = Path(__file__).parent
WORKERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)


def page(planned: Planned) -> str:
    """The whole page; it fetches nothing."""
    parts = {
        "@MODEL@": (HERE / "model.js").read_text(),
        "@SCRIPT@": (HERE / "page.js").read_text(),
        "@DATA@": json.dumps(data(planned)).replace("<", "\\u003c"),
    }
    text = (HERE / "page.html").read_text()
    for mark, part in parts.items():
        text = text.replace(mark, part)
    return text


def data(planned: Planned) -> dict[str, Any]:
    """What the page knows."""
    setting = planned.setting
    net, model = setting.network, setting.model
    known = sorted({*WORKERS, net.workers})
    works = {str(n): _works(planned, n) for n in known}
    return {
        "start": {
            "rate": min(net.rate, 1.25e11),
            "latency": max(net.share_s, 1e-6),
            "workers": net.workers,
            "params": max(model.params, MIN_NUMEL),
            "compute": max(model.compute_s, 1e-3),
        },
        "workers": known,
        "works": works,
        "times": _times(net),
        "cores": setting.cores,
        "cpu": net.send_cpu,
        "worth": advice.WORTH,
        "mostError": advice.MOST_ERROR,
        "notes": (
            f"Predicted, not measured: layers that are alike, {setting.cores:.3g} cores a worker, "
            f"codecs as fast as on {planned.machine}. error: of a message, of Gaussian values. "
            "Codecs that cannot be added among so many workers are left out. Click a row to see "
            "its curve."
        ),
    }


def _times(net: Network) -> dict[str, float] | None:
    """Latencies of collectives, as multiples of that of a message."""
    if not net.share_s:
        return None
    names = {"ring": net.ring_s, "exchange": net.exchange_s, "gather": net.gather_s}
    return {name: seconds / net.share_s for name, seconds in names.items()}


def _works(planned: Planned, workers: int) -> list[dict[str, Any]]:
    """Plain DDP first, then the codecs that can be used among so many workers."""
    own = planned.setting.network.workers
    works = list(planned.works) if workers == own else works_among(planned.rates, workers)[0]
    plain = raw(PLAIN, workers, first_s=planned.setting.raw_s)
    return [work.to_json() for work in [plain, *works]]
