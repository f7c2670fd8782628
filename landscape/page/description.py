"""The page's description of a run and of its landscapes, in words and numbers."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from landscape.core.errors import LandscapeError, StoreError, capped, printable
from landscape.core.text import number_text
from landscape.page.answers import Answer, pack_body, utf8
from landscape.page.content import View
from landscape.page.figures import kinds_in_order, prepare_view, state_in_words, whole_size
from landscape.page.queries import FigureQuery
from landscape.page.runs import RunReader
from landscape.store.results import Run
from landscape.store.state import UNREADABLE, cause_of, finite, read_or_note, seconds_left
from landscape.surface.record import plain
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED, RISE_STDERR, ProjectedPath
from landscape.views.figure_spec import figure_name
from landscape.views.prepare.figure import FigureData, means
from landscape.views.prepare.history import PLACES, UNITS
from landscape.views.prepare.tables import (
    Row,
    landscape_rows,
    measure_numbers,
    observable_rows,
    prepare_checks,
    provenance_rows,
)
from landscape.views.prepare.uncertainty import topology_rows
from landscape.views.prepare.words import axis_title, observable_title
from landscape.views.report_sections import info_rows

# ----------------------------------------------------------------------------------------------------
# The last lines of a run's logs, one file per rank. Links are not followed, since anybody may have written the run.

FOLDER = "logs"
MOST_LOGS = 64
LINES = 50
TAIL_BYTES = 64 << 10
LONGEST_LINE = 2000  # characters


class LogTails:
    """The ends of a run's logs, and which of them have grown. Logs in an object store never grow."""

    def __init__(self, run: str) -> None:
        self._folder = None if "://" in run else Path(run, FOLDER)
        self._told: dict[str, tuple[int, int]] = {}
        self._first = True

    def all(self) -> list[dict[str, Any]]:
        """The last lines of every log, by name."""
        return [{"name": name, "lines": lines} for name in self._names() if (lines := self._tail(name)) is not None]

    def news(self) -> list[dict[str, Any]]:
        """The last lines of the logs that have grown since the last call; none at the first call."""
        first, self._first = self._first, False
        logs: list[dict[str, Any]] = []
        for name in self._names():
            stamp = self._stamp(name)
            if stamp is not None and self._told.get(name) != stamp:
                self._told[name] = stamp
                lines = None if first else self._tail(name)
                logs += [{"name": name, "lines": lines}] if lines is not None else []
        return logs

    def _names(self) -> list[str]:
        if self._folder is None or self._folder.is_symlink():
            return []
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.endswith((".log", ".txt")))
        except OSError:
            return []
        return names[:MOST_LOGS]

    def _stamp(self, name: str) -> tuple[int, int] | None:
        assert self._folder is not None
        try:
            status = os.lstat(self._folder / name)
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else None

    def _tail(self, name: str) -> list[str] | None:
        """The last lines; None if the log is no plain file, or cannot be read."""
        assert self._folder is not None
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            file.seek(max(0, status.st_size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
        lines = data.decode("utf-8", "replace").splitlines()
        if status.st_size > TAIL_BYTES:
            lines = lines[1:]  # the first one may be incomplete
        return [printable(capped(line, LONGEST_LINE)) for line in lines[-LINES:]]


# ----------------------------------------------------------------------------------------------------

MOST_MEASURES, DEEPEST = 200, 6
BOUND = re.compile(r"[<>] \S{1,20}|\S{1,20} to \S{1,20}")  # of a measure without a value
MOST_RESULTS = 8
OF_DRAWN = ", of the points drawn"
MOST_FOR_MINIMA = 257 * 257  # points: finding minima among them takes some hundredths of a second


def run_description(reader: RunReader) -> dict[str, Any]:
    """The answer of `api/run`.

    Raises:
        GoneError: the run is not there any more.
        StoreError: its object store does not answer.
    """
    reader.refuse_gone()
    opened, problems = Run(reader.found.path), list[str]()
    info = read_or_note(lambda: [opened.info], problems)
    stamp = reader.stamp("run.json", "history.jsonl")
    told = read_or_note(lambda: [reader.remembered("history", stamp, lambda: training_facts(opened.history))], problems)
    history, final = told[0] if told else (None, [])
    views, unreadable = list[View](), dict[str, str]()
    for name in reader.names():
        try:
            observables = tuple(reader.reader(name).store().record.surfaces)
            views.append(reader.view(name, observables, noted=False))
        except LandscapeError as error:
            unreadable[name] = cause_of(error)
    unreadable |= reader.unreadable()
    reader.note_turn(views)
    landscapes = [live_facts(view) | full_facts(view) for view in map(reader.as_in_turn, views)]
    measures = read_or_note(lambda: [opened.measures], problems)
    return {
        "id": reader.found.id,
        "name": reader.found.name,
        "path": reader.found.path,
        "alive": reader.alive(),
        "info": [list(row) for row in (*info_rows(info[0] if info else {}), *final)],
        "history": history,
        "logs": LogTails(reader.found.path).all(),
        "unreadable": unreadable,
        "problems": problems,
        "measures": dict(finite(measure_columns(measure_numbers(measures[0] if measures else {})))),
        "landscapes": landscapes,
    }


def measure_columns(measures: Mapping[str, Any], above: str = "", depth: int = 0) -> dict[str, float | str]:
    """The numbers and bounds in `measures.json`, by their paths of names; at most `MOST_MEASURES`."""
    columns: dict[str, float | str] = {}
    for name, value in measures.items():
        path = f"{above} {name}".strip()
        if isinstance(value, Mapping) and depth < DEEPEST:
            columns |= measure_columns(value, path, depth + 1)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            columns[path] = float(value) if abs(value) < 1e300 else math.inf
        elif isinstance(value, str) and BOUND.fullmatch(value):
            columns[path] = value
        if len(columns) >= MOST_MEASURES:
            break
    return columns


def state_facts(reader: RunReader, alive: bool) -> dict[str, Any]:
    """The progress of each landscape of a run, as of the last look: the data of the event `state`."""
    views: dict[str, View | str] = {}
    for name in reader.names():
        try:
            views[name] = reader.reader(name).view((), alive, fresh=False)
        except StoreError:
            raise
        except (LandscapeError, OSError) as error:
            views[name] = cause_of(error)
    reader.note_turn([view for view in views.values() if isinstance(view, View)])
    landscapes = [
        {"name": name, "state": UNREADABLE, "state_text": view} if isinstance(view, str)
        else live_facts(reader.as_in_turn(view))
        for name, view in views.items()
    ]  # fmt: skip
    return {"alive": alive, "landscapes": landscapes}


def training_facts(rows: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, list[Row]]:
    """The history's columns of numbers and the unit of its rows (None without a history), and the last values.

    The learning rate is no result: its last value is left out.
    """
    last = {key: value for row in rows for key, value in row.items() if isinstance(value, (int, float))}
    columns = sorted(last.keys() - PLACES, key=lambda name: (name != "loss", name))
    results = [name for name in columns if name != "learning_rate"][:MOST_RESULTS]
    final = [(f"final {observable_title(name)}", number_text(float(last[name]))) for name in results]
    if final and results[0] == "loss" and next(row["loss"] for row in reversed(rows) if "loss" in row) is None:
        final[0] = (final[0][0], f"not finite at the end, {final[0][1]} before")
    units = [unit for unit in UNITS if unit in last]
    return (
        {"unit": "step" if "step" in last else "epoch", "units": units, "columns": columns} if columns else None
    ), final


def live_facts(view: View) -> dict[str, Any]:
    """The facts about a landscape that change while it is computed; its counts are those of `landscape status`."""
    record, progress, counts, state = view.record, view.record.progress, view.evaluations, view.state
    facts = {
        "name": view.surface.name,
        "state": state,
        "state_text": state_in_words(view),
        "points": sum(counts),
        "unit": "points" if record.accuracy is None else "evaluations",
        "path_points": 0 if record.accuracy is not None else sum(counts) - sum(view.counts),
        "done": counts[OK] + counts[NOT_FINITE],
        "failed": counts[QUARANTINED],
        "missing": counts[NOT_COMPUTED],
        "unreadable": view.unreadable,
        "rate": progress.rate or 0.0,
        "eta_seconds": seconds_left(counts[NOT_COMPUTED], progress.rate, state),
        "seconds": progress.seconds,
        "workers": progress.workers,
        "by_worker": plain(progress.by_worker),
        "updated": progress.updated,
        "generation": view.generation,
        "failures": plain(record.failures),
    }
    return dict(finite(facts))


def full_facts(view: View) -> dict[str, Any]:
    """The constant facts about a landscape, and the tables beside its figures."""
    surface, job = view.surface, view.record.job
    facts = {
        "axes": [
            {
                "name": axis.name,
                "title": axis_title(axis),
                "low": float(axis.coordinates[0]),
                "high": float(axis.coordinates[-1]),
                "size": size,
                "origin_inside": bool(axis.coordinates[0] <= 0 <= axis.coordinates[-1]),
            }
            for axis, size in zip(surface.axes, view.sizes, strict=True)
        ],
        "at_end": view.record.is_at_end,
        "observables": [{"name": name, "title": observable_title(name)} for name in means(surface)],
        "kinds": kinds_in_order(len(surface.axes)),
        "path": path_facts(surface.path),
        "paths": [path_facts(path) for path in surface.paths],
        "checks": checks_facts(view),
        "rows": {
            "landscape": landscape_table(view),
            "topology": topology_table(view),
            "observables": {name: observable_table(view, name) for name in means(surface)},
            "provenance": as_pairs(provenance_rows(surface)),
        },
        "job": "" if job is None else job_text(plain(job.whole)),
    }
    return dict(finite(facts))


def checks_facts(view: View) -> dict[str, Any] | None:
    """The findings of a landscape's checks, a line each; None if it was not checked."""
    listed = prepare_checks(view.record.checks, sum(view.counts) - view.counts[NOT_COMPUTED])
    return None if listed is None else asdict(listed)


def job_text(job: Mapping[str, Any]) -> str:
    """The job that began a landscape, as a job file, without default values."""
    landscapes = [
        {key: value for key, value in landscape.items() if value is not None}
        for landscape in job.get("landscapes") or () if isinstance(landscape, Mapping)
    ]  # fmt: skip
    kept = {key: value for key, value in job.items() if value is not None} | {"landscapes": landscapes}
    return str(yaml.safe_dump(kept, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100))


def landscape_table(view: View) -> list[list[str]]:
    """The table of a landscape; its size and state count all points, even if only some are drawn."""
    whole = {} if view.picks is None else {"resolution": whole_size(view), "state": state_in_words(view)}
    return [[name, whole.get(name, value)] for name, value in as_pairs(landscape_rows(view.surface))]


def topology_table(view: View) -> list[list[str]]:
    """The minima of the loss; empty for a landscape so large that finding them would delay the page."""
    surface = view.surface
    known = view.picks is None and surface.status.size <= MOST_FOR_MINIMA and "loss" in surface.observables
    return as_pairs(topology_rows(surface)) if known else []


def observable_table(view: View, observable: str) -> list[list[str]]:
    """The table of an observable; if not all points are drawn, it says which numbers are of the drawn ones."""
    rows = as_pairs(observable_rows(view.surface, observable))
    if view.picks is None:
        return rows
    whole = {"lowest": _lowest(view)} if observable == "loss" and view.lowest else {}
    of_all = {*whole, "at the origin"}
    return [[name if name in of_all else f"{name}{OF_DRAWN}", whole.get(name, value)] for name, value in rows]


def _lowest(view: View) -> str:
    """The lowest loss of all points, and its place."""
    places = ", ".join(f"{axis.name} {number_text(view.lowest[axis.name], 3)}" for axis in view.surface.axes)
    return f"{number_text(view.lowest['loss'])} at {places}"


def as_pairs(rows: list[Row]) -> list[list[str]]:
    """Rows of a table for JSON."""
    return [[name, value] for name, value in rows]


def path_facts(path: ProjectedPath | None) -> dict[str, Any] | None:
    """A path of a landscape, or all its paths joined, in numbers; None if it has none."""
    if path is None:
        return None
    return {
        "label": path.label,
        "unit": path.unit,
        "numbers": path.step.tolist(),
        "places": {axis: places.tolist() for axis, places in path.coordinates.items()},
        "loss": path.loss.tolist(),
        "projected_loss": path.projected_loss.tolist(),
        "distance": path.distance.tolist(),
    }


# ----------------------------------------------------------------------------------------------------
# The drawn points of a figure as CSV.


def csv_answer(run: RunReader, query: FigureQuery) -> Answer:
    """The answer of `api/csv`: a row per drawn point, alpha fastest.

    Raises:
        As `figures.prepared`.
    """
    shown = prepare_view(run, query)
    name = figure_name(shown.view.surface, shown.kind, query.spec.observable, query.spec.log)
    body = utf8(csv_table(shown.data, shown.view.surface.status))
    return pack_body(body, "text/csv; charset=utf-8", file=f"{name}.csv")


def csv_table(data: FigureData, status: np.ndarray) -> str:
    """The coordinates, the values with their standard errors, the rise over the origin with its own, and the status."""
    grids = np.meshgrid(*(axis.coordinates for axis in reversed(data.axes)), indexing="ij")
    columns: dict[str, np.ndarray] = {axis.name: grid for axis, grid in zip(data.axes, reversed(grids), strict=True)}
    for column in (data, *data.beside):
        columns[column.observable] = column.values
        if column.error is not None:
            columns[f"{column.observable}_stderr"] = column.error
        if column.rise is not None and column.rise_error is not None:
            columns |= {"loss_rise": column.rise, RISE_STDERR: column.rise_error}
    columns["status"] = status
    if data.interpolated is not None:
        columns["interpolated"] = data.interpolated
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(values.ravel().tolist() for values in columns.values()), strict=True))
    return text.getvalue()
