"""The section on what was measured of a run: a table per set of weights, its layers, and curves over snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from landscape.views.markup import svg_texts
from landscape.views.prepare.layers import SAYING as LAYER_SAYING
from landscape.views.prepare.layers import LayerBar, LayerTable
from landscape.views.prepare.levels import number
from landscape.views.prepare.measures import (
    COLUMNS,
    MeasureCurve,
    MeasuredWeights,
    TextRow,
    measure_curves,
    measure_tables,
)
from landscape.views.report_bundle import ReportRun

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 320, 150, 58, 12, 10, 22  # of a curve in pixels, and its margins
BARS_WIDTH, BARS_LEFT, BAR_STEP, BAR_HEIGHT = 560, 170, 17, 11
ARROW = 7  # pixels
BOUNDS = "; an open triangle is a bound, and points to where the value lies"
LETTERS = 26  # of a layer's name beside its bar
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
    body, layers = _table(COLUMNS, weights.rows), weights.layers
    if layers is None:
        return body
    table = _table(layers.heads, layers.rows)
    return (
        f'{body}<details class="layers" open><summary>Layers</summary>{bars_svg(layers)}{table}'
        f"<p class='note'>{escape(LAYER_SAYING)}</p></details>"
    )


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
    ends = [value + sign * error for value, error in zip(curve.values, errors, strict=True) for sign in (-1, 1)]
    ends += [end for _, *bounds in curve.bounds for end in bounds if end is not None]
    low, high = min(ends), max(ends)
    span = high - low or abs(high) or 1.0
    places = sorted([*curve.places, *(place for place, *_ in curve.bounds)])
    first, length = places[0], places[-1] - places[0]

    def x(place: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (place - first) / length

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / span

    points = [(x(place), y(value)) for place, value in zip(curve.places, curve.values, strict=True)]
    known = dict(zip(curve.places, points, strict=True))
    # A bound interrupts the line, which goes through values alone.
    stretches = [list(group) for is_known, group in groupby(places, lambda place: place in known) if is_known]
    lines = "".join(
        f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in map(known.__getitem__, stretch))}" fill="none" '
        'stroke="currentColor"/>'
        for stretch in stretches
    )
    arrows = "".join(
        _arrow(x(place), y(end), up)
        for place, above, below in curve.bounds
        for end, up in ((above, True), (below, False))
        if end is not None
    )
    bars = "".join(
        f'<path d="M{x(place):.1f} {y(value - error):.1f}V{y(value + error):.1f}" stroke="currentColor" opacity="0.4"/>'
        for place, value, error in zip(curve.places, curve.values, errors, strict=True)
        if error
    )
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="currentColor"/>' for a, b in points)
    labels = svg_texts([
        (LEFT - 6, TOP + 8, "end", number(high, 3)), (LEFT - 6, HEIGHT - BOTTOM, "end", number(low, 3)),
        (LEFT, HEIGHT - 6, "start", f"{curve.unit} {first}"), (WIDTH - RIGHT, HEIGHT - 6, "end", str(places[-1])),
    ])  # fmt: skip
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(curve.title)}">'
        f"{lines}{bars}{dots}{arrows}{labels}</svg>"
        f"<figcaption>{escape(curve.title)}{escape(BOUNDS) if curve.bounds else ''}</figcaption></figure>"
    )


def _arrow(a: float, b: float, up: bool) -> str:
    """An open triangle at a bound, which points to where the value is."""
    tip = -ARROW if up else ARROW
    return f'<path d="M{a - ARROW / 2:.1f} {b:.1f}h{ARROW}l{-ARROW / 2} {tip}z" fill="none" stroke="currentColor"/>'


def bars_svg(table: LayerTable) -> str:
    """A bar per layer, with its interval, as a picture that needs no script; empty where no value is known."""
    if not table.bars:
        return ""
    ends = [end for bar in table.bars for end in (bar.value, bar.low, bar.high) if end is not None]
    low, high = min(0.0, *ends), max(0.0, *ends)
    span, width = high - low or 1.0, BARS_WIDTH - BARS_LEFT - RIGHT

    def x(value: float) -> float:
        return BARS_LEFT + width * (value - low) / span

    def drawn(place: int, bar: LayerBar) -> str:
        top, middle = TOP + BAR_STEP * place, TOP + BAR_STEP * place + BAR_HEIGHT / 2
        interval = ""
        if bar.low is not None and bar.high is not None:
            interval = f'<path d="M{x(bar.low):.1f} {middle}H{x(bar.high):.1f}" stroke="currentColor"/>'
        name = bar.layer if len(bar.layer) <= LETTERS else f"…{bar.layer[1 - LETTERS :]}"
        return svg_texts([(BARS_LEFT - 8, middle + 4, "end", name)]) + (
            f'<rect x="{min(x(0), x(bar.value)):.1f}" y="{top}" width="{abs(x(bar.value) - x(0)):.1f}" '
            f'height="{BAR_HEIGHT}" fill="currentColor" opacity="0.35"/>{interval}'
        )

    height = TOP + BAR_STEP * len(table.bars) + BOTTOM
    bars = "".join(drawn(place, bar) for place, bar in enumerate(table.bars))
    axis = f'<path d="M{x(0):.1f} {TOP}V{height - BOTTOM}" stroke="currentColor" opacity="0.5"/>'
    ends_of_axis = ((0.0, "middle"), (high, "end"))
    labels = svg_texts([(x(value), height - 8, anchor, number(value, 3)) for value, anchor in ends_of_axis])
    title = f"{table.title}, one layer alone"
    return (
        f'<figure><svg viewBox="0 0 {BARS_WIDTH} {height}" width="{BARS_WIDTH}" role="img" '
        f'aria-label="{escape(title)}">{axis}{bars}{labels}</svg><figcaption>{escape(title)}</figcaption></figure>'
    )
