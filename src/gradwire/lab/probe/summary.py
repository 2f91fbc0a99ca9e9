"""A profile for people."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from gradwire.planner.profile import Profile
from gradwire.planner.units import show_bytes, show_rate, show_seconds
from gradwire.terminal.tables import Column, Stacked


def shown(profile: Profile) -> Group:
    """The profile for people."""
    link, model = profile.link, profile.model
    params = sum(sum(bucket["sizes"]) for bucket in model["buckets"])
    ready = ", ".join(show_seconds(bucket["at_s"]) for bucket in model["buckets"])
    burst = f"; {show_bytes(link['burst'])} pass at once" if link["burst"] else ""
    lines = [
        f"link      {show_rate(link['rate'])} between {profile.workers} workers, all at once, in "
        f"three streams{burst}; {show_seconds(link['latency_s'])} one way",
        f"          one way {show_rate(link['one_way_1'])}, in three streams "
        f"{show_rate(link['one_way_3'])}; both ways {show_rate(link['both_way_1'])} and "
        f"{show_rate(link['both_way_3'])} each",
        f"model     {model['name']}: {params:,} parameters, {show_seconds(model['compute_s'])} a "
        f"step; buckets are ready after {ready}",
        f"cores     {profile.cores:.2g} a worker of {profile.machine}{_beside(profile)}",
    ]
    text = Text("\n".join(lines), no_wrap=False)
    return Group(text, "", Stacked(profile.codecs, str, [_speeds(profile)]))


def _beside(profile: Profile) -> str:
    if not profile.beside:
        return ""
    times, codec = profile.setting().slowdown, profile.beside["codec"]
    return f"; beside {codec} compute takes {times:.2f} times as long"


def _speeds(profile: Profile) -> list[Column[str]]:
    def gvps(codec: str, when: str, what: str) -> str:
        seconds = profile.rates[codec][when][what]
        return f"{1e-9 / seconds:.3f}" if seconds else "-"

    heads = [
        ("encode\nGv/s", "alone", "encode"), ("decode\nGv/s", "alone", "decode"),
        ("encode\nbusy", "busy", "encode"), ("decode\nbusy", "busy", "decode"),
    ]  # fmt: skip
    return [
        Column(head, lambda codec, when=when, what=what: gvps(codec, when, what))  # type: ignore[misc]
        for head, when, what in heads
    ]
