"""What the page shows of each run: its landscapes, and what training left there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from landscape.core.errors import LandscapeError
from landscape.core.folders import run_labels
from landscape.core.lock import driver_alive
from landscape.surface.surface import Surface
from landscape.views.prepare.comparison import numbered
from landscape.views.prepare.differences import TableItem
from landscape.views.prepare.history import TrainingRecord, paths_of
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
