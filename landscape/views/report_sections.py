"""Sections of the page of a run, in HTML: training, measures, checks, rounding, connections; the figures as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib.resources import files
from itertools import groupby
from string import Template
from typing import Any

import plotly.graph_objects as go
from plotly.utils import PlotlyJSONEncoder

from landscape.core.errors import LandscapeError
from landscape.core.folders import run_labels
from landscape.core.lock import driver_alive
from landscape.core.text import finite_or_none, number_text
from landscape.surface.surface import NOT_COMPUTED, Surface
from landscape.views.prepare import words
from landscape.views.prepare.comparison import numbered
from landscape.views.prepare.differences import TableItem
from landscape.views.prepare.history import HistoryData, TrainingRecord, paths_of
from landscape.views.prepare.paths import origin_index
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
from landscape.views.prepare.tables import (
    COLUMNS,
    LayerBar,
    LayerTable,
    MeasureCurve,
    MeasuredWeights,
    Row,
    measure_curves,
    measure_tables,
    observable_rows,
    prepare_checks,
)
from landscape.views.prepare.tables import SAYING as LAYER_SAYING
from landscape.views.prepare.words import mapping, of_driver


@dataclass(frozen=True)
class ReportRun:
    """One run on the page.

    Attributes:
        label: the run's name on the page.
        surfaces: the readable landscapes.
        broken: the reason per unreadable landscape.
        info: the content of `run.json`.
        history: the training's recorded rows, one mapping per step or epoch.
        measures: the content of `measures.json`.
    """

    label: str
    surfaces: tuple[Surface, ...]
    broken: Mapping[str, str] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    measures: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> TrainingRecord:
        """The input of a figure of the history."""
        return TrainingRecord(self.label, self.history, paths_of(self.surfaces), self.info.get("steps_per_epoch"))

    def table_item(self, surface: Surface | None = None) -> TableItem:
        """A column of a table: the run alone, or one of its landscapes without the run's own facts."""
        if surface is None:
            return TableItem(self.label, None, self.info, self.history, self.measures)
        return TableItem(self.label, surface)

    def with_names(self) -> ReportRun:
        """The same with the run's label before the name of each landscape, for a page of several runs."""
        surfaces = tuple(replace(surface, name=f"{self.label}: {surface.name}") for surface in self.surfaces)
        return replace(self, surfaces=surfaces, broken={f"{self.label}: {k}": v for k, v in self.broken.items()})


def read_runs(runs: Sequence[Mapping[str, Surface]]) -> list[ReportRun]:
    """All runs, with distinct labels. Damaged landscapes are listed as broken."""
    paths = [str(getattr(run, "path", "") or "landscapes") for run in runs]
    return [_read(run, label) for run, label in zip(runs, numbered(run_labels(paths)), strict=True)]


def _read(run: Mapping[str, Surface], label: str) -> ReportRun:
    surfaces, broken = [], dict(getattr(run, "unreadable", {}))
    path = str(getattr(run, "path", "") or "")
    alive = bool(path) and driver_alive(path)
    for name in run:
        try:
            surface = run[name]
            surfaces.append((of_driver(surface, alive) if path else surface).merged())
        except LandscapeError as error:
            broken[name] = str(error)
    info, history = mapping(getattr(run, "info", None)), getattr(run, "history", None) or []
    return ReportRun(label, tuple(surfaces), broken, info, history, mapping(getattr(run, "measures", None)))


# ----------------------------------------------------------------------------------------------------
# Figures as compact JSON for a page: arrays that several figures share are stored once.

WORTH_SHARING = 200  # characters; a reference to a shorter array saves nothing


class Bundle:
    """Figures by name, with shared arrays stored separately; the page's script inserts them before it draws.

    `comparisons` are the names of the figures for each choice of a comparison.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.figures: dict[str, Any] = {}
        self.comparisons: dict[str, list[str]] = {}

    def add(self, name: str, figure: go.Figure) -> None:
        """Add a figure without its template: the page has a light and a dark one."""
        plain = figure.to_plotly_json()
        plain["layout"].pop("template", None)
        self.figures[name] = self._shared(json.loads(json.dumps(plain, cls=PlotlyJSONEncoder)))

    def _shared(self, value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(value.get("bdata"), str) and len(value["bdata"]) >= WORTH_SHARING:
                return {"$array": self._keep(value)}
            return {
                key: self._shared_text(part) if key == "text" else self._shared(part) for key, part in value.items()
            }
        if isinstance(value, list):
            return [self._shared(part) for part in value]
        return value

    def _shared_text(self, value: Any) -> Any:
        """Store the pointer's texts of a refined landscape, which all kinds of drawings share."""
        many = isinstance(value, list) and len(json.dumps(value)) >= WORTH_SHARING
        return {"$array": self._keep(value)} if many else self._shared(value)

    def _keep(self, array: Any) -> str:
        key = hashlib.sha256(json.dumps(array, sort_keys=True).encode()).hexdigest()[:16]
        self.arrays[key] = array
        return key

    def to_json(self, **more: Any) -> str:
        """The bundle as JSON that is safe inside a <script> element."""
        text = json.dumps(
            {"arrays": self.arrays, "figures": self.figures, "comparisons": self.comparisons} | more,
            cls=PlotlyJSONEncoder,
        )
        return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


# ----------------------------------------------------------------------------------------------------
# Pieces of HTML: the page's own files, groups of buttons, tables.


def resource(name: str) -> str:
    """The text of one of the page's files."""
    return files("landscape.views").joinpath("static", name).read_text(encoding="utf-8")


def svg_texts(texts: Sequence[tuple[float, float, str, str]]) -> str:
    """Small words in a picture.

    Args:
        texts: x and y in pixels, the anchor (`start`, `middle` or `end`), and the words.
    """
    return "".join(
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="11" fill="currentColor">{escape(text)}</text>'
        for x, y, anchor, text in texts
    )


def template(name: str) -> Template:
    """One of the page's files as a template; substituted values must be escaped already."""
    return Template(resource(name))


def buttons(what: str, choices: Sequence[tuple[str, str]], label: str, pressed: int = 0) -> str:
    """A group of buttons, one of them pressed; empty for a single choice.

    Args:
        what: the property of the view that the buttons set, for the page's script.
        choices: value and name of each button.
        label: the group's name for screen readers.
        pressed: the index of the pressed button.
    """
    if len(choices) < 2:
        return ""
    states = [str(k == pressed).lower() for k in range(len(choices))]
    items = "".join(
        f'<button type="button" data-set="{what}" data-value="{escape(value)}" aria-pressed="{state}">'
        f"{escape(name)}</button>"
        for (value, name), state in zip(choices, states, strict=True)
    )
    return f'<span class="choice" role="group" aria-label="{label}">{items}</span>'


def table(rows: Sequence[Row]) -> str:
    """A table of two columns, names and values; plain text is escaped here."""
    body = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{body}</table>"


def rows_table(label: str, heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    """A table of several columns, which scrolls if it is wider than the page; plain text is escaped here."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr><th scope='row'>{escape(title)}</th>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"
        for title, *texts in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><tr>{head}</tr>{body}</table></div>"
    )


# ----------------------------------------------------------------------------------------------------
# The section on a run's training: its history as a figure, and its facts.

INFO_NAMES = {
    "network": "network",
    "model": "network",
    "parameters": "parameters",
    "optimiser": "optimiser",
    "optimizer": "optimiser",
    "learning_rate": "initial learning rate",
    "batch_size": "batch size",
    "epochs": "epochs",
    "steps_per_epoch": "steps per epoch",
}
BRIEF = ("network", "optimiser", "initial learning rate", "batch size", "epochs", "steps per epoch")
PLOT = '<figure><div class="plot" id="history" role="img" aria-label="training history"></div></figure>'
NOTE = "<figcaption>Shaded: the stretches of training that the trajectory landscapes cover.</figcaption>"
MOST_WATCHED = 12  # listed steps at which rules fired


def info_rows(info: Mapping[str, Any]) -> list[Row]:
    """The facts about the training, the usual ones first, then all other recorded ones."""
    named = [(INFO_NAMES[key], _plain(info[key])) for key in INFO_NAMES if info.get(key) not in (None, "", {})]
    rest = [(key.replace("_", " "), _plain(value)) for key, value in info.items() if key not in INFO_NAMES]
    return [*dict(named).items(), *((name, value) for name, value in rest if value)]


def brief_rows(info: Mapping[str, Any], history: Sequence[Mapping[str, Any]], surface: Surface) -> list[Row]:
    """What was trained in a few lines, to stand under a landscape: the usual facts, and how good the weights are.

    Args:
        history: the training's recorded rows.
        surface: the landscape; its loss at the origin or, if that is not known, at the last snapshot of its path.
    """
    last = {key: value for row in history for key, value in row.items() if finite_or_none(value) is not None}
    known = dict(info_rows({key: info[key] for key in INFO_NAMES if key in info}))
    known |= {"epochs": f"{last['epoch']:g}"} if "epoch" in last and "epochs" not in known else {}
    rows = [(name, known[name]) for name in BRIEF if name in known]
    path, loss = surface.path, words.origin_text(surface)
    origin = surface.record.origin_name
    if loss:
        rows.append((f"loss at the origin{f' ({origin})' if origin else ''}", loss))
    elif path is not None and len(path.loss) and finite_or_none(float(path.loss[-1])) is not None:
        rows.append((f"loss at {path.unit} {path.step[-1]}", number_text(float(path.loss[-1]))))
    at_origin = dict(observable_rows(surface, "accuracy")) if "accuracy" in surface.observables else {}
    if origin_index(surface) is not None and "at the origin" in at_origin:
        rows.append(("accuracy at the origin", at_origin["at the origin"]))
    accuracies = {words.observable_title(key): value for key, value in last.items() if "accuracy" in key}
    return [*rows, *((f"final {name}", number_text(float(value))) for name, value in accuracies.items())]


def _plain(value: Any) -> str:
    """Nested facts on one line: 'name SGD, momentum 0.9'."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_plain(fact)}" for key, fact in value.items() if fact is not None)
    if isinstance(value, (list, tuple)):
        return ", ".join(f"[{_plain(fact)}]" if isinstance(fact, (list, tuple)) else _plain(fact) for fact in value)
    if isinstance(value, float) and finite_or_none(value) is not None:
        return f"{value:g}"
    return "" if value is None else str(value)


def watched_list(history: HistoryData) -> str:
    """The list behind the red crosses: which rule fired at which step in which layer; '' if none did."""
    if not history.marks:
        return ""
    count, several = len(history.marks), len(history.runs) > 1
    lines = [
        f"<li>{escape(f'{history.runs[mark.run]}, ' if several else '')}{escape(mark.line)}</li>"
        for mark in history.marks[:MOST_WATCHED]
    ]
    where = "one step" if count == 1 else f"{count} steps"
    first = "; the first" if count > MOST_WATCHED else ""
    said = f"<p>× in red: rules that watched the training fired at {where}{first}:</p><ul>{''.join(lines)}</ul>"
    return f'<div class="watched">{said}</div>'


def training_section(info: Mapping[str, Any], history: HistoryData | None) -> str:
    """The section in HTML; empty if nothing is known of the training.

    Args:
        info: the facts of `run.json`.
        history: the recorded quantities; the section has a place for their figure.
    """
    rows = info_rows(info)
    if not rows and history is None:
        return ""
    plot = "" if history is None else f"<div>{PLOT}{NOTE}{watched_list(history)}</div>"
    parts = [plot, f"<div>{table(rows)}</div>" if rows else ""]
    return f'<section class="training"><h2>Training</h2><div class="tables">{"".join(parts)}</div></section>'


# ----------------------------------------------------------------------------------------------------
# The measures of a run: a table per set of weights, its layers, and curves over snapshots.

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
    """The section in HTML; empty if nothing was measured.

    Args:
        several: whether the page shows several runs: then the section names its run.
    """
    tables = measure_tables(run.measures)
    if not tables:
        return ""
    title = f"Measures: {run.label}" if several else "Measures"
    *earlier, last = tables
    others = [
        f"<details><summary>{escape(earlier_version.label)}</summary>{_weights(earlier_version)}</details>"
        for earlier_version in earlier
    ]
    curves = "".join(map(curve_svg, measure_curves(run.measures)))
    figures = f'<div class="curves">{curves}</div>' if curves else ""
    parts = [f"<h3>{escape(last.label)}</h3>", _weights(last), figures, *others, f"<p>{escape(SAYING)}</p>"]
    return f'<section class="measures"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def _weights(weights: MeasuredWeights) -> str:
    body, layers = rows_table("Measures", COLUMNS, weights.rows), weights.layers
    if layers is None:
        return body
    table = rows_table("Measures", layers.heads, layers.rows)
    return (
        f'{body}<details class="layers" open><summary>Layers</summary>{bars_svg(layers)}{table}'
        f"<p class='note'>{escape(LAYER_SAYING)}</p></details>"
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
    # The line goes through values only; a bound interrupts it.
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
        (LEFT - 6, TOP + 8, "end", number_text(high, 3)), (LEFT - 6, HEIGHT - BOTTOM, "end", number_text(low, 3)),
        (LEFT, HEIGHT - 6, "start", f"{curve.unit} {first}"), (WIDTH - RIGHT, HEIGHT - 6, "end", str(places[-1])),
    ])  # fmt: skip
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(curve.title)}">'
        f"{lines}{bars}{dots}{arrows}{labels}</svg>"
        f"<figcaption>{escape(curve.title)}{escape(BOUNDS) if curve.bounds else ''}</figcaption></figure>"
    )


def _arrow(a: float, b: float, up: bool) -> str:
    """An open triangle at a bound, pointing towards the value."""
    tip = -ARROW if up else ARROW
    return f'<path d="M{a - ARROW / 2:.1f} {b:.1f}h{ARROW}l{-ARROW / 2} {tip}z" fill="none" stroke="currentColor"/>'


def bars_svg(table: LayerTable) -> str:
    """A bar per layer, with its interval, as a picture that needs no script; empty if no value is known."""
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
    labels = svg_texts([(x(value), height - 8, anchor, number_text(value, 3)) for value, anchor in ends_of_axis])
    title = f"{table.title}, one layer alone"
    return (
        f'<figure><svg viewBox="0 0 {BARS_WIDTH} {height}" width="{BARS_WIDTH}" role="img" '
        f'aria-label="{escape(title)}">{axis}{bars}{labels}</svg><figcaption>{escape(title)}</figcaption></figure>'
    )


# ----------------------------------------------------------------------------------------------------
# The findings of a landscape's checks, below its figure.


def checks_section(surface: Surface) -> str:
    """The verdict and a line per check; empty if the landscape was not checked."""
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
    of: Callable[[float], str] = lambda value: number_text(value, 3),
) -> str:
    """Two lines over places from 0 to 1, the first dashed, with a caption that names both.

    Args:
        ends: the labels below the places 0 and 1.
        label: the picture's title.
        of: formats a height.
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
    """One line, interrupted at unknown values."""
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
    """Pictures and a table; empty if `landscape compare --keep` has kept nothing for the landscape."""
    found, steps, rows = compared_of(surface), drawn_steps(surface), bits_table(surface)
    bits, log = drawn_bits(surface)
    parts = list[str]()
    if found is not None and bits:
        ends = (f"{found.bits[0].bits}", f"{found.bits[-1].bits} bits")
        label = "Loss at the origin by bits" + (", logarithmic" if log else "")
        parts.append(lines_svg(bits, ends, label, lambda value: number_text(10**value if log else value, 4)))
    if steps:
        parts.append(
            lines_svg(steps, ends_of_steps(surface), "Rise of each loss over its own at the origin, on a short line")
        )
    if rows:
        parts.append(rows_table("Loss at the origin by bits", BITS_COLUMNS, rows))
    return f'<div class="ways"><h3>Rounding</h3>{"".join(parts)}</div>' if parts else ""


# ----------------------------------------------------------------------------------------------------
# The line and the curve between two networks, below the figure of their plane.


def connection_section(surface: Surface) -> str:
    """A picture of the loss on both, and a table; empty if `landscape connect` did not compute the plane."""
    rows = connection_table(surface)
    if not rows:
        return ""
    ways = drawn_ways(surface)
    picture = lines_svg(ways, ("t = 0", "1"), "Loss") if ways else ""
    table = rows_table("The line and the curve", CONNECTION_COLUMNS, rows)
    return f'<div class="ways"><h3>The line and the curve</h3>{picture}{table}</div>'
