"""What was measured of single layers: a row per layer, and how far each raises the loss, to draw as bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from landscape.views.prepare.levels import number
from landscape.views.prepare.words import finite, mapping

HEAD = "layer"
SAYING = "In brackets the 95 % interval over the lines of the layer; errors over the samples are in the CSV."


@dataclass(frozen=True)
class LayerBar:
    """The measure of one layer that is drawn, and the ends of its interval; None where they are not known."""

    layer: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LayerTable:
    """The layers of one set of weights, in the model's order.

    Attributes:
        heads: `layer`, then the measures.
        rows: texts, one per head.
        title: of what the bars are: the rise at the largest distance that was measured.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str
    bars: tuple[LayerBar, ...]


def layer_table(layers: Mapping[str, Any], title_of: Callable[[str], str]) -> LayerTable | None:
    """The table of `layers` in `measures.json`; None where none was measured."""
    known = {str(layer): mapping(rows) for layer, rows in layers.items() if mapping(rows)}
    names = list(dict.fromkeys(str(name) for rows in known.values() for name in rows))
    if not names:
        return None
    rows = tuple((layer, *(_cell(mapping(found.get(name))) for name in names)) for layer, found in known.items())
    drawn = [name for name in names if name.startswith("rise ")][-1:] or names[:1]
    bars = [_bar(layer, mapping(found.get(drawn[0]))) for layer, found in known.items()]
    heads = (HEAD, *map(title_of, names))
    return LayerTable(heads, rows, title_of(drawn[0]), tuple(bar for bar in bars if bar is not None))


def _cell(row: Mapping[str, Any]) -> str:
    value, low, high = (finite(row.get(name)) for name in ("value", "low", "high"))
    if value is None:
        return bound_text(row) or str(row.get("note") or "–")
    return number(value, 3) + ("" if low is None or high is None else f" [{number(low, 2)}, {number(high, 2)}]")


def bound_text(row: Mapping[str, Any]) -> str:
    """The bounds of a measure that has no value; empty where there are none.

    >>> bound_text({"value": None, "below": 0.05}), bound_text({"above": 0.25, "below": 0.5}), bound_text({"value": 1})
    ('< 0.05', '0.25 to 0.5', '')
    """
    above, below = finite(row.get("above")), finite(row.get("below"))
    if finite(row.get("value")) is not None or (above is None and below is None):
        return ""
    if above is not None and below is not None:
        return f"{number(above)} to {number(below)}"
    return f"< {number(below)}" if below is not None else f"> {number(above or 0.0)}"


def _bar(layer: str, row: Mapping[str, Any]) -> LayerBar | None:
    value, low, high = (finite(row.get(name)) for name in ("value", "low", "high"))
    return None if value is None else LayerBar(layer, value, low, high)
