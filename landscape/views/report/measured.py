"""The section on what was measured of a run: a table per set of weights, its layers, and curves over snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from landscape.views.prepared.levels import number
from landscape.views.prepared.measures import (
    COLUMNS,
    LAYER_TITLE,
    MeasureCurve,
    MeasuredWeights,
    TextRow,
    measure_curves,
    measure_tables,
)
from landscape.views.report.runs import ReportRun

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 320, 150, 58, 12, 10, 22  # of a curve in pixels, and its margins
SAYING = (
    "The standard errors are over the samples, the intervals over random directions or probes. Sharpness does not "
    "track generalisation well, sometimes inversely (Andriushchenko et al. 2023)."
)


def measures_section(run: ReportRun, *, several: bool = False) -> str:
    """The section in HTML; empty where nothing was measured.

    Args:
        several: whether the page shows several runs, so that the section names its own.
    """
    tables = measure_tables(run.measures)
    if not tables:
        return ""
    title = f"Measures: {run.label}" if several else "Measures"
    *earlier, last = tables
    others = [f"<details><summary>{escape(each.label)}</summary>{_weights(each)}</details>" for each in earlier]
    curves = "".join(map(curve_svg, measure_curves(run.measures)))
    figures = f'<div class="curves">{curves}</div>' if curves else ""
    parts = [f"<h3>{escape(last.label)}</h3>", _weights(last), figures, *others, f"<p>{escape(SAYING)}</p>"]
    return f'<section class="measures"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def _weights(weights: MeasuredWeights) -> str:
    layers = [(layer, row) for layer, rows in weights.layers.items() for row in rows]
    body = _table(COLUMNS, weights.rows)
    if not layers:
        return body
    table = _table((LAYER_TITLE, *COLUMNS), [(layer, *row) for layer, row in layers])
    return f"{body}<details><summary>Layers</summary>{table}</details>"


def _table(heads: Sequence[str], rows: Sequence[TextRow] | Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr><th scope='row'>{escape(row[0])}</th>{''.join(f'<td>{escape(text)}</td>' for text in row[1:])}</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="Measures"><table><tr>{head}</tr>{body}</table></div>'
    )


def curve_svg(curve: MeasureCurve) -> str:
    """One measure over the snapshots, with its errors, as a picture that needs no script."""
    errors = [error or 0.0 for error in curve.errors]
    low = min(value - error for value, error in zip(curve.values, errors, strict=True))
    high = max(value + error for value, error in zip(curve.values, errors, strict=True))
    span = high - low or abs(high) or 1.0
    first, length = curve.places[0], curve.places[-1] - curve.places[0]

    def x(place: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (place - first) / length

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / span

    points = [(x(place), y(value)) for place, value in zip(curve.places, curve.values, strict=True)]
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    bars = "".join(
        f'<path d="M{x(place):.1f} {y(value - error):.1f}V{y(value + error):.1f}" stroke="currentColor" opacity="0.4"/>'
        for place, value, error in zip(curve.places, curve.values, errors, strict=True)
        if error
    )
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="currentColor"/>' for a, b in points)
    texts = [
        (LEFT - 6, TOP + 8, "end", number(high, 3)), (LEFT - 6, HEIGHT - BOTTOM, "end", number(low, 3)),
        (LEFT, HEIGHT - 6, "start", f"{curve.unit} {first}"), (WIDTH - RIGHT, HEIGHT - 6, "end", str(curve.places[-1])),
    ]  # fmt: skip
    labels = "".join(
        f'<text x="{a}" y="{b}" text-anchor="{anchor}" font-size="11" fill="currentColor">{escape(text)}</text>'
        for a, b, anchor, text in texts
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(curve.title)}">'
        f'<polyline points="{line}" fill="none" stroke="currentColor"/>{bars}{dots}{labels}</svg>'
        f"<figcaption>{escape(curve.title)}</figcaption></figure>"
    )
