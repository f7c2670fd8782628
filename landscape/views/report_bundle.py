"""What the page shows of each run: its landscapes, and what training left there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import plotly.graph_objects as go
from plotly.utils import PlotlyJSONEncoder

from landscape.core.errors import LandscapeError
from landscape.core.folders import run_labels
from landscape.core.lock import driver_alive
from landscape.surface.surface import Surface
from landscape.views.prepare.comparison import numbered
from landscape.views.prepare.differences import TableItem
from landscape.views.prepare.history import TrainingRecord, paths_of
from landscape.views.prepare.tables import Row
from landscape.views.prepare.words import mapping, stopped


@dataclass(frozen=True)
class ReportRun:
    """One run as the page shows it.

    Attributes:
        label: the run's name on the page.
        surfaces: the landscapes that can be read.
        broken: those that cannot, by name, with the reason.
        info: what was trained, as `run.json` holds it.
        history: what the training recorded, one mapping per step or epoch.
        measures: what `measures.json` holds.
    """

    label: str
    surfaces: tuple[Surface, ...]
    broken: Mapping[str, str] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    measures: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> TrainingRecord:
        """What a figure of the history needs."""
        return TrainingRecord(self.label, self.history, paths_of(self.surfaces), self.info.get("steps_per_epoch"))

    def table_item(self, surface: Surface | None = None) -> TableItem:
        """A column of a table: the run alone, or one of its landscapes without what the run's own column has."""
        if surface is None:
            return TableItem(self.label, None, self.info, self.history, self.measures)
        return TableItem(self.label, surface)

    def with_names(self) -> ReportRun:
        """The same with the run's label before the name of each landscape, for a page of several runs."""
        surfaces = tuple(replace(surface, name=f"{self.label}: {surface.name}") for surface in self.surfaces)
        return replace(self, surfaces=surfaces, broken={f"{self.label}: {k}": v for k, v in self.broken.items()})


def read_runs(runs: Sequence[Mapping[str, Surface]]) -> list[ReportRun]:
    """All runs, with labels that differ. Damaged landscapes are left out, so that the page is written without them."""
    paths = [str(getattr(run, "path", "") or "landscapes") for run in runs]
    return [_read(run, label) for run, label in zip(runs, numbered(run_labels(paths)), strict=True)]


def _read(run: Mapping[str, Surface], label: str) -> ReportRun:
    surfaces, broken = [], dict(getattr(run, "unreadable", {}))
    path = str(getattr(run, "path", "") or "")
    gone = bool(path) and not driver_alive(path)
    for name in run:
        try:
            surface = run[name]
            surfaces.append((stopped(surface) if gone else surface).merged())
        except LandscapeError as error:
            broken[name] = str(error)
    info, history = mapping(getattr(run, "info", None)), getattr(run, "history", None) or []
    return ReportRun(label, tuple(surfaces), broken, info, history, mapping(getattr(run, "measures", None)))


# ----------------------------------------------------------------------------------------------------
# Figures as compact JSON for a page: arrays that several figures share are stored once.

WORTH_SHARING = 200  # characters; below that a reference saves nothing


class Bundle:
    """Figures by name, with the arrays they share apart; the page's script puts those back before it draws.

    `comparisons` are the names of the figures that each choice of a comparison shows.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.figures: dict[str, Any] = {}
        self.comparisons: dict[str, list[str]] = {}

    def add(self, name: str, figure: go.Figure) -> None:
        """Take a figure; the template is left out, since the page brings one for light and one for dark."""
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
        """What the pointer shows beside the values of a refined landscape, which is the same whatever draws them."""
        many = isinstance(value, list) and len(json.dumps(value)) >= WORTH_SHARING
        return {"$array": self._keep(value)} if many else self._shared(value)

    def _keep(self, array: Any) -> str:
        key = hashlib.sha256(json.dumps(array, sort_keys=True).encode()).hexdigest()[:16]
        self.arrays[key] = array
        return key

    def to_json(self, **more: Any) -> str:
        """JSON that is safe inside a <script> element."""
        text = json.dumps(
            {"arrays": self.arrays, "figures": self.figures, "comparisons": self.comparisons} | more,
            cls=PlotlyJSONEncoder,
        )
        return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


# ----------------------------------------------------------------------------------------------------
# Pieces of HTML: the page's own files, groups of buttons, tables.


def resource(name: str) -> str:
    """The text of a file of the page, which lies beside this one or in another room of the views."""
    return files("landscape.views").joinpath("static", name).read_text(encoding="utf-8")


def svg_texts(texts: Sequence[tuple[float, float, str, str]]) -> str:
    """Small words in a picture.

    Args:
        texts: x and y in pixels, `start`, `middle` or `end` for where the words begin, and the words.
    """
    return "".join(
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="11" fill="currentColor">{escape(text)}</text>'
        for x, y, anchor, text in texts
    )


def template(name: str) -> Template:
    """A file beside this one as a template; what is substituted must be escaped already."""
    return Template(resource(name))


def buttons(what: str, choices: Sequence[tuple[str, str]], label: str, pressed: int = 0) -> str:
    """A group of buttons, one of them pressed; empty where there is only one choice.

    Args:
        what: the property of the view that the buttons set, for the page's script.
        choices: the value and the name of each.
        label: what the group is called for screen readers.
        pressed: the number of the one that is pressed, from 0.
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
    """A table of two columns, names and values, as plain text that is escaped here."""
    body = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{body}</table>"


def rows_table(label: str, heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    """A table of several columns, which scrolls where it is wider than the page; the texts are escaped here."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr><th scope='row'>{escape(title)}</th>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"
        for title, *texts in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><tr>{head}</tr>{body}</table></div>"
    )
