"""The part of the page that compares runs: figures of landscapes that belong together, and tables of what differs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from landscape.surface.surface import Surface
from landscape.views.bundle import Bundle
from landscape.views.draw.comparison import COMPARISON_KINDS, compare_figures
from landscape.views.markup import buttons, template
from landscape.views.prepare.comparison import Compared
from landscape.views.prepare.comparison_overlay import share_scale
from landscape.views.prepare.differences import DifferencesTable, tabulate
from landscape.views.report_bundle import ReportRun

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
    log = share_scale([Compared(label, surface) for label, surface in items]).log
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
