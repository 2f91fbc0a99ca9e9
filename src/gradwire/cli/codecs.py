"""`gradwire codecs`: what the registry holds, and what each codec promises."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from gradwire.terminal.output import JsonFile, check_writable, deliver, refusing

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.codecs import Entry
    from gradwire.codecs.settings import SpelledCodec

_WORLDS = (2, 4)
_SIDE = 1000
_NUMEL = _SIDE * _SIDE
_SUMMED = {
    None: "not summable",
    "owners": "summed by the owners of shards",
    "network": "summed by the network or by the owners of shards",
}


def codecs(json_file: JsonFile = None) -> None:
    """List the codecs, what each promises, and how to spell it.

    Example: read about them here, and keep the same for a program.

        gradwire codecs --json codecs.json
    """
    with refusing():
        check_writable(json_file)
    described = describe()
    deliver(described, json_file, table(described))


def describe() -> list[dict[str, Any]]:
    """One object for each codec, ready for JSON."""
    from gradwire.codecs import REGISTRY

    return [_describe(name, entry) for name, entry in REGISTRY.items()]


def _describe(name: str, entry: Entry) -> dict[str, Any]:
    from gradwire.collectives import choose

    codec = entry.make()
    return {
        "name": name,
        "summary": entry.summary,
        "settings": _defaults(codec, entry),
        "summable": _adds(codec),
        "unbiased": codec.unbiased,
        "error_feedback": codec.owes,
        "collectives": {str(world): choose(_first(codec), world).name for world in _WORLDS},
        "examples": [_example(spec) for spec in entry.examples],
    }


def _adds(codec: Codec) -> str | None:
    """Who may add what workers send, without decoding it."""
    from gradwire.codec import SummableCodec

    if not isinstance(codec, SummableCodec):
        return None
    return "owners" if codec.network_adder(2) is None else "network"


def _first(codec: Codec) -> Codec:
    """What encodes the first step of a matrix, of codecs that learn."""
    from gradwire.adaptive import AdaptiveCodec, Layout

    square = Layout((_SIDE, _SIDE), (_SIDE, 1))
    return codec.codec_for(codec.start(), square) if isinstance(codec, AdaptiveCodec) else codec


def _defaults(codec: SpelledCodec, entry: Entry) -> dict[str, Any]:
    """The settings a spec may change, as they are if it says nothing of them.

    `fp16` has none, since its name says it all.
    """
    if not is_dataclass(entry.make):
        return {}
    return {field.name: getattr(codec, field.name) for field in fields(codec)}


def _example(spec: str) -> dict[str, Any]:
    """A spec and its bits per value; None if they depend on the data, or on what was learned."""
    from gradwire.adaptive import AdaptiveCodec
    from gradwire.codecs import parse

    codec = parse(spec)
    is_known = codec.fixed_size and not isinstance(codec, AdaptiveCodec)
    bits = 8 * codec.max_nbytes(_NUMEL) / _NUMEL if is_known else None
    return {"spec": spec, "bits_per_value": bits}


def table(codecs: list[dict[str, Any]]) -> Table:
    """What `describe` says, for people: a paragraph for each codec."""
    shown = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    shown.add_column(no_wrap=True, style="bold")
    shown.add_column(overflow="fold")
    for codec in codecs:
        shown.add_row(codec["name"], "\n".join(_lines(codec)) + "\n")
    return shown


def _lines(codec: dict[str, Any]) -> list[str]:
    width = max(len(example["spec"]) for example in codec["examples"])
    return [
        codec["summary"],
        *([f"settings: {_spell(codec['settings'])}"] if codec["settings"] else []),
        ", ".join(_promises(codec)),
        *(f"  {example['spec']:{width}}  {_bits(example)}" for example in codec["examples"]),
    ]


def _promises(codec: dict[str, Any]) -> list[str]:
    return [
        "unbiased" if codec["unbiased"] else "biased",
        "error feedback by default" if codec["error_feedback"] else "no error feedback by default",
        _SUMMED[codec["summable"]],
        _travels(codec["collectives"]),
    ]


def _travels(collectives: dict[str, str]) -> str:
    """Collectives by the number of workers, those that agree said once."""
    if len(set(collectives.values())) == 1:
        return next(iter(collectives.values()))
    return ", ".join(f"{name} for {world}" for world, name in collectives.items()) + " workers"


def _spell(settings: dict[str, Any]) -> str:
    """Settings with their values, then those that have none unless one is given."""
    given = ", ".join(f"{name}={str(v).lower()}" for name, v in settings.items() if v is not None)
    unset = ", ".join(name for name, value in settings.items() if value is None)
    return f"{given}; not set: {unset}" if unset else given


def _bits(example: dict[str, Any]) -> str:
    bits = example["bits_per_value"]
    return "bits per value depend on the data" if bits is None else f"{bits:.3f} bits per value"
