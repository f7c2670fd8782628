"""One self-contained page for a run, or several: views, comparison, numbers, history. Opens offline, light and dark."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from landscape.core.text import count_text
from landscape.surface.surface import Surface
from landscape.views.draw.comparison import compare_figures
from landscape.views.draw.figure import figure
from landscape.views.draw.history import draw_history
from landscape.views.draw.style import TEMPLATES, config
from landscape.views.exporting import whole_file
from landscape.views.figure_spec import KIND_TABLE, MODE_TABLE, ComparisonSpec, default_kinds, figure_name, kinds_of
from landscape.views.prepare.comparison import ComparedLandscape, directions_differ, share_scale, with_rise
from landscape.views.prepare.differences import DifferencesTable, tabulate
from landscape.views.prepare.figure import means, suggests_log
from landscape.views.prepare.history import HistoryData, prepare_histories
from landscape.views.prepare.scale import is_evaluated, point_counts
from landscape.views.prepare.tables import landscape_rows, observable_rows, provenance_rows
from landscape.views.prepare.uncertainty import topology_rows
from landscape.views.prepare.words import observable_title, state_of, state_text
from landscape.views.report_sections import (
    NOTE,
    PLOT,
    Bundle,
    ReportRun,
    buttons,
    checks_section,
    compared_section,
    connection_section,
    measures_section,
    read_runs,
    resource,
    table,
    template,
    training_section,
    watched_list,
)

# ----------------------------------------------------------------------------------------------------
# The part of the page that compares runs: figures of matching landscapes, and tables of differences.

# The kinds of figures that the page offers, by number of axes: their names, and their kind in each mode.
KINDS: dict[int, dict[str, tuple[str, dict[str, str]]]] = {
    1: {"curve": ("Curve", default_kinds(1))},
    2: {"flat": ("Flat", default_kinds(2)), "surface": ("3-D surface", dict.fromkeys(default_kinds(2), "surface"))},
    3: {"slices": ("Slices", default_kinds(3))},
}
# What the values are drawn as: the button's words, and the options of the figures.
SCALES: dict[str, tuple[str, dict[str, Any]]] = {
    "rise": ("Above the origin", {"log": False, "rise": True}),
    "linear": ("Linear", {"log": False, "rise": False}),
    "log": ("Logarithmic", {"log": True, "rise": False}),
}
COMPARED_POINTS_PER_AXIS = {1: 2001, 2: 129, 3: 25}  # keeps the page a few MB
COLUMN_REM = 9  # width of a column of the tables
MOST_COMPARED = 8  # landscapes in one comparison


@dataclass(frozen=True)
class Group:
    """Landscapes that the page compares, with their runs, and the number of runs that have one."""

    name: str
    runs: tuple[ReportRun, ...]
    surfaces: tuple[Surface, ...]
    count: int

    @property
    def labels(self) -> str:
        """The runs, and their total number if only the first ones are shown."""
        labels = ", ".join(run.label for run in self.runs)
        return labels if self.count == len(self.runs) else f"{labels}: the first {len(self.runs)} of {self.count} runs"


def groups(runs: Sequence[ReportRun]) -> list[Group]:
    """The landscapes to compare: those with one name and number of axes in several runs.

    If no two runs have such landscapes: the first one of each run with the same number of axes.
    """
    keys = dict.fromkeys((surface.name, len(surface.axes)) for run in runs for surface in run.surfaces)
    named = [_group(name, runs, [_first(run, axes, name) for run in runs]) for name, axes in keys]
    groups = [group for group in named if len(group.surfaces) > 1]
    if groups:
        return groups
    words = {1: "Lines", 2: "Planes", 3: "Volumes"}
    alike = [_group(words[axes], runs, [_first(run, axes) for run in runs]) for axes in words]
    return [group for group in alike if len(group.surfaces) > 1]


def _group(name: str, runs: Sequence[ReportRun], surfaces: Sequence[Surface | None]) -> Group:
    pairs = [(run, surface) for run, surface in zip(runs, surfaces, strict=True) if surface is not None]
    shown = pairs[:MOST_COMPARED]
    return Group(name, tuple(run for run, _ in shown), tuple(surface for _, surface in shown), len(pairs))


def _first(run: ReportRun, axes: int, name: str | None = None) -> Surface | None:
    fitting = [surface for surface in run.surfaces if len(surface.axes) == axes and name in (None, surface.name)]
    return fitting[0] if fitting else None


def comparison_section(group: Group, index: int, bundle: Bundle) -> str:
    """One comparison: its figures into the bundle, its words into HTML."""
    axes = len(group.surfaces[0].axes)
    items = [(f"{run.label}: {surface.name}", surface) for run, surface in zip(group.runs, group.surfaces, strict=True)]
    kinds = KINDS[axes]
    same_plane = axes == 1 or not directions_differ(group.surfaces)
    modes = [name for name, mode in MODE_TABLE.items() if axes in mode.kinds and (same_plane or name == "tiled")]
    labelled = [ComparedLandscape(label, surface) for label, surface in items]
    rises = with_rise(labelled, ComparisonSpec())[1].observable != "loss"
    scales = {name: options for name, options in SCALES.items() if rises or name != "rise"}
    for mode, (kind, (_, drawn)), (scale, (_, options)) in itertools.product(modes, kinds.items(), scales.items()):
        figures = compare_figures(
            items,
            mode,
            drawn[mode],
            **options,
            title=False,
            caption=False,
            animate=True,
            max_points=COMPARED_POINTS_PER_AXIS[axes],
        )
        stored: list[str] = []
        for one in figures:
            stored.append(f"comparison {index}/{mode}/{kind}/{scale}/{len(stored)}")
            meta = {
                **one.figure.layout.meta,
                "file": one.file,
                "title": one.title,
                "caption": one.caption,
            }
            bundle.add(stored[-1], one.figure.update_layout(meta=meta))
        bundle.comparisons[f"{index}/{mode}/{kind}/{scale}"] = stored
    names = [(name, title) for name, (title, _) in scales.items()]
    usual = "rise" if rises else "log" if share_scale(labelled).log else "linear"
    first = {"comparison": index, "mode": modes[0], "kind": next(iter(kinds)), "scale": usual}
    choices = [
        buttons("mode", [(mode, MODE_TABLE[mode].title) for mode in modes], "Arrangement"),
        buttons("kind", [(kind, title) for kind, (title, _) in kinds.items()], "View"),
        buttons("scale", names, "Scale", pressed=[*scales].index(usual)),
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


def trainings_section(runs: Sequence[ReportRun], history: HistoryData | None) -> str:
    """The section on several trainings: their histories in one figure, and their differences."""
    notes = [] if history is None else history.notes
    said = "".join(f"<p>{escape(note)}.</p>" for note in notes)
    plot = "" if history is None else f"<div>{PLOT}{NOTE}{said}{watched_list(history)}</div>"
    differences = differences_table(tabulate([run.table_item() for run in runs]))
    wide = f'<div class="wide" tabindex="0" role="region" aria-label="What differs">{differences}</div>'
    wide = wide if differences else ""
    return f'<section class="training"><h2>Training</h2>{plot}{wide}</section>' if plot or wide else ""


def differences_table(table: DifferencesTable) -> str:
    """A table of differences per subject; the equal lines are behind a click."""
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
            + "".join(map(_value, row.values, row.wholes or (None,) * len(row.values)))
            + "</tr>"
            for row in section.rows
        )
        width = COLUMN_REM * (len(table.columns) + 1)
        caption = f"<caption>{escape(section.title)}</caption>"
        parts.append(f"<table style='min-width:{width}rem'>{caption}<tr><td></td>{heads}</tr>{rows}</table>")
    return "".join(parts)


def _value(text: str | None, whole: str | None) -> str:
    """A cell; the whole of a shortened value is behind a click."""
    shown = escape("–" if text is None else text)
    if whole is not None:
        shown = f"<details><summary>{shown}</summary>{escape(whole)}</details>"
    return f"<td>{shown}</td>"


# ----------------------------------------------------------------------------------------------------

STATES = ("complete", "running", "waiting", "interrupted", "partial")
POINTS_PER_AXIS = {1: 20_001, 2: 257, 3: 41}  # keeps the page a few MB; the caption says when points were left out


def write_report(
    run: Mapping[str, Surface] | Sequence[Mapping[str, Surface]], path: str | Path, *, title: str | None = None
) -> Path:
    """Write the page of all landscapes of a run, or of several runs with their comparison, to `path`.

    Args:
        run: an open run, a plain mapping of surfaces, or a sequence of these.

    Raises:
        LandscapeError: the file cannot be written.
    """
    runs = read_runs([run] if isinstance(run, Mapping) else run)
    name = title or ", ".join(run.label for run in runs)
    page = render_report(runs, name)
    with whole_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Path(path)


def render_report(runs: Sequence[ReportRun], title: str) -> str:
    """The page of the runs as text."""
    bundle = Bundle()
    several = len(runs) > 1
    found = groups(runs) if several else []
    compared = [comparison_section(group, index, bundle) for index, group in enumerate(found)]
    shown = [run.with_names() if several else run for run in runs]
    surfaces = [surface for run in shown for surface in run.surfaces]
    sections = [_section(surface, index, bundle) for index, surface in enumerate(surfaces)]
    sections += [_broken_section(name, reason) for run in shown for name, reason in run.broken.items()]
    prepared = prepare_histories([run.record() for run in runs])
    if prepared is not None:
        bundle.add("history", draw_history(prepared))
    links = [f'<a href="#comparison-{k}">Comparison: {escape(group.name)}</a>' for k, group in enumerate(found)]
    links += [f'<a href="#landscape-{index}">{escape(surface.name)}</a>' for index, surface in enumerate(surfaces)]
    templates = {theme: look.to_plotly_json() for theme, look in TEMPLATES.items()}
    training = trainings_section(runs, prepared) if several else training_section(runs[0].info, prepared)
    return template("report.html").substitute(
        title=escape(title),
        lead=escape(_lead(surfaces)),
        style=resource("report.css"),
        links="".join(links),
        training=training,
        measures="".join(measures_section(run, several=several) for run in runs),
        sections="\n".join([*compared, *sections]) or "<p>This run holds no landscape yet.</p>",
        data=bundle.to_json(templates=templates, config=config()),
        plotly=get_plotlyjs(),
        fit=resource("fit.js"),
        script=resource("report.js"),
    )


def _lead(surfaces: Sequence[Surface]) -> str:
    """The progress of the run: '3 landscapes: 2 complete, 1 interrupted; 1 702 of 2 101 grid points computed'.

    The points of paths, which `landscape status` counts too, are not among them.
    """
    if not surfaces:
        return "no landscapes"
    states = Counter(map(state_of, surfaces))
    points = sum(sum(point_counts(surface)) for surface in surfaces)
    done = sum(int(is_evaluated(surface).sum()) for surface in surfaces)
    plural = "s" * (len(surfaces) != 1)
    counts = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    counts = counts if len(states) > 1 else next(iter(states))
    computed = count_text(done) if done == points else f"{count_text(done)} of {count_text(points)}"
    return f"{len(surfaces)} landscape{plural}: {counts}; {computed} grid points computed"


def _section(surface: Surface, index: int, bundle: Bundle) -> str:
    """One landscape: its figures into the bundle, its words into HTML."""
    kinds = sorted(kinds_of(len(surface.axes)), key=lambda kind: KIND_TABLE[kind].tab)
    observables = ["loss"] if len(surface.axes) == 1 else means(surface)
    for observable, log, kind in itertools.product(observables, (False, True), kinds):
        bundle.add(f"{index}/{kind}/{observable}/{log}", _figure(surface, kind, observable, log))
    log = suggests_log(surface, observables[0])
    first = {"index": index, "kind": kinds[0], "observable": observables[0], "log": log}
    choices = [
        buttons("kind", [(kind, KIND_TABLE[kind].title) for kind in kinds], "View"),
        buttons("log", [("false", "Linear"), ("true", "Logarithmic")], "Scale", pressed=int(log)),
        buttons("observable", [(name, observable_title(name)) for name in observables], "Observable"),
    ]
    numbers = [
        f"<h3>{escape(observable_title(name))}</h3>{table(observable_rows(surface, name))}" for name in means(surface)
    ]
    return template("section.html").substitute(
        index=index,
        view=escape(json.dumps(first)),
        name=escape(surface.name),
        state_class=state_of(surface),
        state=escape(state_text(surface)),
        choices="".join(choices),
        play='<button type="button" data-do="play">Play path</button>' if surface.path is not None else "",
        facts=table(landscape_rows(surface)),
        topology=_topology(surface),
        observables="".join(numbers),
        checks=checks_section(surface),
        connection=connection_section(surface),
        compared=compared_section(surface),
        failures=_failures(surface),
        provenance=table(provenance_rows(surface)) + _job(surface),
    )


def _figure(surface: Surface, kind: str, observable: str, log: bool) -> go.Figure:
    """A figure without the words that the page adds itself, with the file name of its save button."""
    drawn = figure(
        surface,
        kind,
        observable=observable,
        log=log,
        max_points=POINTS_PER_AXIS[len(surface.axes)],
        animate=True,
        title=False,
        caption=False,
    )
    return drawn.update_layout(meta={**drawn.layout.meta, "file": figure_name(surface, kind, observable, log)})


def _topology(surface: Surface) -> str:
    """The minima of the loss, if any of its values is known."""
    rows = topology_rows(surface) if "loss" in surface.observables else []
    return f"<h3>Minima of the loss</h3>{table(rows)}" if rows else ""


def _failures(surface: Surface) -> str:
    failures = surface.record.failures
    if not failures:
        return ""
    items = "".join(
        f"<li><b>{escape(failure.task)}</b>, {failure.attempts} attempts on {escape(failure.worker)}: "
        f"{escape(failure.cause)}"
        f"<details><summary>Traceback</summary><pre>{escape(failure.traceback)}</pre></details></li>"
        for failure in failures
    )
    plural = "s" * (len(failures) != 1)
    return f'<div class="failures"><h3>{len(failures)} failed task{plural}</h3><ul>{items}</ul></div>'


def _job(surface: Surface) -> str:
    job = surface.record.job
    return "" if job is None else f"<h3>Job</h3><pre>{escape(json.dumps(job.whole, indent=2, default=str))}</pre>"


def _broken_section(name: str, reason: str) -> str:
    return f'<section class="landscape"><h2>{escape(name)}</h2><p class="failures">{escape(reason)}</p></section>'
