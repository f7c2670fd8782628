"""The section on what was measured of a run: a table per set of weights, its layers, and curves over snapshots."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from landscape.surface.surface import NOT_COMPUTED, Surface
from landscape.views.draw.comparison import COMPARISON_KINDS, compare_figures
from landscape.views.prepare.comparison import ComparedLandscape, share_scale
from landscape.views.prepare.differences import DifferencesTable, tabulate
from landscape.views.prepare.measures import (
    COLUMNS,
    MeasureCurve,
    MeasuredWeights,
    TextRow,
    measure_curves,
    measure_tables,
)
from landscape.views.prepare.quantisation import (
    BITS_COLUMNS,
    CONNECTION_COLUMNS,
    DrawnWay,
    bits_table,
    compared_of,
    connection_table,
    drawn_bits,
    drawn_steps,
    drawn_ways,
    ends_of_steps,
)
from landscape.views.prepare.scale import number
from landscape.views.prepare.tables import SAYING as LAYER_SAYING
from landscape.views.prepare.tables import LayerBar, LayerTable, prepare_checks
from landscape.views.report_bundle import Bundle, ReportRun, buttons, rows_table, svg_texts, template

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


# ----------------------------------------------------------------------------------------------------
# What the checks of a landscape found, below its figure.


def checks_section(surface: Surface) -> str:
    """The verdict and a line for each check; empty where the landscape was not checked."""
    listed = prepare_checks(surface.record.checks, int((surface.status != NOT_COMPUTED).sum()))
    if listed is None:
        return ""
    items = "".join(
        f'<li class="{escape(line.state)}"><b>{line.mark}</b>{escape(line.text)}'
        f"{f'<br><i>{escape(line.remedy)}</i>' if line.remedy else ''}</li>"
        for line in listed.lines
    )
    opened = " open" if listed.opened else ""
    return f'<details class="checks"{opened}><summary>{escape(listed.summary)}</summary><ul>{items}</ul></details>'


# ----------------------------------------------------------------------------------------------------
# A small picture of two lines that needs no script.

SKETCH_WIDTH, SKETCH_HEIGHT, SKETCH_LEFT, SKETCH_RIGHT, SKETCH_TOP, SKETCH_BOTTOM = (
    560,
    190,
    62,
    14,
    12,
    24,
)  # of the picture in pixels, and its margins
DASHES = ("5 4", "")  # of the first line, and of the second


def lines_svg(
    lines: Sequence[DrawnWay],
    ends: tuple[str, str],
    label: str,
    of: Callable[[float], str] = lambda value: number(value, 3),
) -> str:
    """Two lines over places from 0 to 1, the first dashed, with a caption that names both.

    Args:
        ends: what stands below the places 0 and 1.
        label: what the picture shows, in words.
        of: the text of a height.
    """
    known = [value for line in lines for value in line.values if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    span = high - low or abs(high) or 1.0

    def place(t: float, value: float) -> str:
        x = SKETCH_LEFT + (SKETCH_WIDTH - SKETCH_LEFT - SKETCH_RIGHT) * t
        return f"{x:.1f} {SKETCH_TOP + (SKETCH_HEIGHT - SKETCH_TOP - SKETCH_BOTTOM) * (high - value) / span:.1f}"

    paths = [_path(line, place, dash) for line, dash in zip(lines, DASHES, strict=True)]
    labels = svg_texts(
        [
            (SKETCH_LEFT - 6, SKETCH_TOP + 8, "end", of(high)),
            (SKETCH_LEFT - 6, SKETCH_HEIGHT - SKETCH_BOTTOM, "end", of(low)),
            (SKETCH_LEFT, SKETCH_HEIGHT - 6, "start", ends[0]),
            (SKETCH_WIDTH - SKETCH_RIGHT, SKETCH_HEIGHT - 6, "end", ends[1]),
        ]
    )
    caption = f"{label}: {lines[0].title} dashed, {lines[1].title} solid"
    return (
        f'<figure><svg viewBox="0 0 {SKETCH_WIDTH} {SKETCH_HEIGHT}" width="{SKETCH_WIDTH}" role="img" '
        f'aria-label="{escape(label)}">'
        f"{''.join(paths)}{labels}</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _path(line: DrawnWay, place: Callable[[float, float], str], dash: str) -> str:
    """One line; where a value is not known it is cut."""
    parts, pen = list[str](), "M"
    for t, value in zip(line.t, line.values, strict=True):
        if value is None:
            pen = "M"
            continue
        parts.append(pen + place(t, value))
        pen = "L"
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{"".join(parts)}" fill="none" stroke="currentColor" stroke-width="1.6"{dashed}/>'


# ----------------------------------------------------------------------------------------------------
# The loss by bits and the steps of rounding, below the figure of a quantised landscape.


def compared_section(surface: Surface) -> str:
    """Pictures and a table; empty where `landscape compare --keep` has kept nothing of the landscape."""
    found, steps, rows = compared_of(surface), drawn_steps(surface), bits_table(surface)
    bits, log = drawn_bits(surface)
    parts = list[str]()
    if found is not None and bits:
        ends = (f"{found.bits[0].bits}", f"{found.bits[-1].bits} bits")
        label = "Loss at the origin by bits" + (", logarithmic" if log else "")
        parts.append(lines_svg(bits, ends, label, lambda value: number(10**value if log else value, 4)))
    if steps:
        parts.append(
            lines_svg(steps, ends_of_steps(surface), "Rise of each loss over its own at the origin, on a short line")
        )
    if rows:
        parts.append(rows_table("Loss at the origin by bits", BITS_COLUMNS, rows))
    return f'<div class="ways"><h3>Rounding</h3>{"".join(parts)}</div>' if parts else ""


# ----------------------------------------------------------------------------------------------------
# The part of the page that compares runs: figures of landscapes that belong together, and tables of what differs.

MODES = {"overlay": "Overlaid", "difference": "Difference", "tiled": "Tiled"}
# The kinds of figures that the page offers, by number of axes: their names, and what draws them in each mode.
KINDS: dict[int, dict[str, tuple[str, dict[str, str]]]] = {
    1: {"curve": ("Curve", dict.fromkeys(MODES, "curve"))},
    2: {
        "flat": ("Flat", {"overlay": "contour", "difference": "topographic", "tiled": "topographic"}),
        "surface": ("3-D surface", dict.fromkeys(MODES, "surface")),
    },
    3: {"slices": ("Slices", {"difference": "slices", "tiled": "slices"})},
}
POINTS_PER_AXIS = {1: 2001, 2: 129, 3: 25}  # keeps the page a few MB
COLUMN_REM = 9  # width of a column of the tables
MOST_COMPARED = 8  # landscapes in one comparison


@dataclass(frozen=True)
class Group:
    """Landscapes that the page compares, with the runs that they are of, and in how many runs there is one."""

    name: str
    runs: tuple[ReportRun, ...]
    surfaces: tuple[Surface, ...]
    count: int

    @property
    def labels(self) -> str:
        """The runs, and how many there would be where these are the first ones only."""
        labels = ", ".join(run.label for run in self.runs)
        return labels if self.count == len(self.runs) else f"{labels}: the first {len(self.runs)} of {self.count} runs"


def groups(runs: Sequence[ReportRun]) -> list[Group]:
    """Which landscapes are compared: those of one name and number of axes that several runs have.

    Where no two runs have such landscapes, it is the first of each run with the same number of axes.
    """
    keys = dict.fromkeys((surface.name, len(surface.axes)) for run in runs for surface in run.surfaces)
    named = [_group(name, runs, [_first(run, axes, name) for run in runs]) for name, axes in keys]
    found = [group for group in named if len(group.surfaces) > 1]
    if found:
        return found
    words = {1: "Lines", 2: "Planes", 3: "Volumes"}
    alike = [_group(words[axes], runs, [_first(run, axes) for run in runs]) for axes in words]
    return [group for group in alike if len(group.surfaces) > 1]


def _group(name: str, runs: Sequence[ReportRun], surfaces: Sequence[Surface | None]) -> Group:
    pairs = [(run, surface) for run, surface in zip(runs, surfaces, strict=True) if surface is not None]
    shown = pairs[:MOST_COMPARED]
    return Group(name, tuple(run for run, _ in shown), tuple(surface for _, surface in shown), len(pairs))


def _first(run: ReportRun, axes: int, name: str | None = None) -> Surface | None:
    fitting = [one for one in run.surfaces if len(one.axes) == axes and name in (None, one.name)]
    return fitting[0] if fitting else None


def comparison_section(group: Group, index: int, bundle: Bundle) -> str:
    """One comparison: its figures into the bundle, its words into HTML."""
    axes = len(group.surfaces[0].axes)
    items = [(f"{run.label}: {surface.name}", surface) for run, surface in zip(group.runs, group.surfaces, strict=True)]
    kinds = KINDS[axes]
    modes = [mode for mode in MODES if axes in COMPARISON_KINDS[mode]]
    for mode, (kind, (_, drawn)), log in itertools.product(modes, kinds.items(), (False, True)):
        figures = compare_figures(
            items,
            mode,
            drawn[mode],
            log=log,
            title=False,
            caption=False,
            animate=True,
            max_points=POINTS_PER_AXIS[axes],
        )
        names: list[str] = []
        for one in figures:
            names.append(f"comparison {index}/{mode}/{kind}/{log}/{len(names)}")
            meta = {**one.figure.layout.meta, "file": one.file, "title": one.title, "caption": one.caption}
            bundle.add(names[-1], one.figure.update_layout(meta=meta))
        bundle.comparisons[f"{index}/{mode}/{kind}/{log}"] = names
    log = share_scale([ComparedLandscape(label, surface) for label, surface in items]).log
    first = {"comparison": index, "mode": modes[0], "kind": next(iter(kinds)), "log": log}
    choices = [
        buttons("mode", [(mode, MODES[mode]) for mode in modes], "Arrangement"),
        buttons("kind", [(kind, title) for kind, (title, _) in kinds.items()], "View"),
        buttons("log", [("false", "Linear"), ("true", "Logarithmic")], "Scale", pressed=int(log)),
    ]
    table = tabulate([run.table_item(surface) for run, surface in zip(group.runs, group.surfaces, strict=True)])
    return template("comparison.html").substitute(
        index=index,
        view=escape(json.dumps(first)),
        name=escape(f"Comparison: {group.name}"),
        labels=escape(group.labels),
        choices="".join(choices),
        table=differences_table(table),
    )


def differences_table(table: DifferencesTable) -> str:
    """What differs as a table per subject, with the lines in which all are equal apart, behind a click."""
    equal = table.equal()
    same = sum(len(section.rows) for section in equal.sections)
    rest = f"<details><summary>{same} equal line{'s' * (same != 1)}</summary>{_tables(equal)}</details>" if same else ""
    return _tables(table.differing()) + rest


def _tables(table: DifferencesTable) -> str:
    heads = "".join(f"<th scope='col'>{escape(column)}</th>" for column in table.columns)
    parts = []
    for section in table.sections:
        rows = "".join(
            f"<tr><th scope='row'>{escape(row.name)}</th>"
            + "".join(f"<td>{escape(value if value is not None else '–')}</td>" for value in row.values)
            + "</tr>"
            for row in section.rows
        )
        width = COLUMN_REM * (len(table.columns) + 1)
        caption = f"<caption>{escape(section.title)}</caption>"
        parts.append(f"<table style='min-width:{width}rem'>{caption}<tr><td></td>{heads}</tr>{rows}</table>")
    return "".join(parts)


# ----------------------------------------------------------------------------------------------------
# The line and the curve between two networks, below the figure of their plane.


def connection_section(surface: Surface) -> str:
    """A picture of the loss on both, and a table; empty where `landscape connect` did not compute the plane."""
    rows = connection_table(surface)
    if not rows:
        return ""
    ways = drawn_ways(surface)
    picture = lines_svg(ways, ("t = 0", "1"), "Loss") if ways else ""
    table = rows_table("The line and the curve", CONNECTION_COLUMNS, rows)
    return f'<div class="ways"><h3>The line and the curve</h3>{picture}{table}</div>'
