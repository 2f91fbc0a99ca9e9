"""Bits and errors by layer, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gradwire.lab.records import Layer, Result
from gradwire.lab.report.panels import name
from gradwire.terminal.output import counted

RAW_BITS = 32


def layers(results: Sequence[Result]) -> str:
    """Bits and error of each layer that any codec encodes; empty if there is none."""
    columns = [{layer.parameter: layer for layer in result.layers} for result in results]
    coded = [
        layer
        for layer in results[0].layers
        if any(_is_coded(column.get(layer.parameter)) for column in columns)
    ]
    if not coded:
        return ""
    head = "".join(f"<th>{name(result.label)}</th>" for result in results)
    rows = "".join(_layer(layer, columns) for layer in coded)
    raw = len(results[0].layers) - len(coded)
    more = f"{counted(raw, 'parameter')} more, small ones, went as they are."
    note = f'<p class="note">{more}</p>' if raw else ""
    return (
        f'<div class="scroll"><table class="layers"><thead><tr><th>layer</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _is_coded(layer: Layer | None) -> bool:
    return layer is not None and layer.bits != RAW_BITS


def _layer(first: Layer, columns: Sequence[dict[str, Layer]]) -> str:
    cells = "".join(f"<td>{_bits_and_error(column[first.parameter])}</td>" for column in columns)
    title = f"<code>{escape(first.parameter)}</code><small>{counted(first.values, 'value')}</small>"
    return f"<tr><td>{title}</td>{cells}</tr>"


def _bits_and_error(layer: Layer) -> str:
    most = "" if layer.is_exact else "&le; "
    bits = "varies" if layer.bits is None else f"{most}{layer.bits:.3g} bits"
    error = "" if layer.nmse is None else f"<small>{_error(layer.nmse)}</small>"
    return bits + error


def _error(nmse: float) -> str:
    """Write an error, which may be tiny.

    >>> _error(0.0), _error(0.0123), _error(2.06), _error(4.3e-8)
    ('exact', 'error 1.2%', 'error 206%', 'error 4e-08')
    """
    if nmse == 0:
        return "exact"
    if nmse < 0.001:
        return f"error {nmse:.0e}"
    return f"error {100 * nmse:.{0 if nmse >= 0.1 else 1}f}%"
