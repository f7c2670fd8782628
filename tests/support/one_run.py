"""The report and the history of a single run, from its surfaces and its recorded rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from landscape.surface.surface import Surface
from landscape.views import report
from landscape.views.prepare.history import HistoryData, TrainingRecord, paths_of, prepare_histories
from landscape.views.report_sections import ReportRun


def render_report(
    surfaces: Sequence[Surface],
    *,
    broken: Mapping[str, str] | None = None,
    info: Mapping[str, Any] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    title: str = "landscapes",
) -> str:
    """The page of one run as text; `broken` gives the reason per landscape that could not be read."""
    merged = tuple(surface.merged() for surface in surfaces)
    return report.render_report([ReportRun(title, merged, broken or {}, info or {}, history)], title)


def prepare_history(
    rows: Sequence[Mapping[str, Any]],
    surfaces: Sequence[Surface] = (),
    steps_per_epoch: Any = None,
    unit: str | None = None,
) -> HistoryData | None:
    """The recorded quantities of one run."""
    return prepare_histories([TrainingRecord("", rows, paths_of(surfaces), steps_per_epoch)], unit=unit)
