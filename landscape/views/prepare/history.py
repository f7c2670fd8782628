"""The data of the training history's figure: recorded quantities, and the stretches that landscapes cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.grid import Floats
from landscape.core.text import finite_or_none
from landscape.core.validation import MOST_STRETCHES, progressions
from landscape.model.layer_rules import others_in_words
from landscape.surface.surface import ProjectedPath, Surface

MOST_POINTS = 3000
MOST_MARKS, MOST_TEXTS = 200, 8
UNITS = ("step", "epoch")
PLACES = (*UNITS, "epoch_end", "seconds")  # columns for the place of a row in training, not for a measured quantity
PACE = "samples_per_second"  # a property of the machine, not of the training: it has no panel


@dataclass(frozen=True, eq=False)
class Series:
    """One recorded quantity `y` over the steps or epochs `x` of training, of the run with number `run`."""

    name: str
    x: Floats
    y: Floats
    run: int = 0


@dataclass(frozen=True)
class PathInterval:
    """A stretch of training that one landscape's path covers, in each of the runs with the numbers `runs`.

    A path with gaps covers several stretches.
    """

    name: str
    start: float
    stop: float
    runs: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Mark:
    """Rules that fired at a place `x` in the training of the run with number `run`: a line of `texts` per rule.

    `line` has the step, the first rule, and the others in short.
    """

    x: float
    texts: tuple[str, ...]
    run: int = 0
    line: str = ""


@dataclass(frozen=True, eq=False)
class HistoryData:
    """The data of the history figure; x counts `unit`, "step" or "epoch".

    `series` are in the order of the panels, those of one quantity in the order of the runs. `runs` are the runs'
    names in the legend. `log` asks for a logarithmic axis of the losses. `notes` are sentences without full stops
    about omissions. `marks` are the places where rules that watched the training fired.
    """

    unit: str
    series: tuple[Series, ...]
    intervals: tuple[PathInterval, ...]
    runs: tuple[str, ...] = ("",)
    log: bool = False
    notes: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The recorded quantities, one per panel, from above."""
        return tuple(dict.fromkeys(line.name for line in self.series))


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """The records of one run's training.

    Args:
        label: the name of the run in the legend.
        rows: one mapping per step or epoch (`history.jsonl`).
        paths: the projected paths of the run's landscapes, by name; their stretches are shaded.
        steps_per_epoch: converts steps to epochs and back; if it is no number, each row's own epoch is used.
    """

    label: str
    rows: Sequence[Mapping[str, Any]]
    paths: Mapping[str, ProjectedPath]
    steps_per_epoch: Any = None


def prepare_histories(
    records: Sequence[TrainingRecord], *, unit: str | None = None, log: bool = False
) -> HistoryData | None:
    """The recorded quantities of one or several runs, the loss first and the learning rate last.

    Args:
        unit: of the axis, "step" or "epoch"; default: epochs if every path counts them or a run has no steps, else
            steps.
        log: a logarithmic axis for the losses.

    Returns:
        None if nothing was recorded.

    Raises:
        JobError: there is no such unit.
    """
    if unit is not None and unit not in UNITS:
        raise JobError(f"unit: unknown {quoted(unit)}; {nearest(str(unit), UNITS)}")
    unit = unit or _usual_unit(records)
    series = [
        line
        for number, record in enumerate(records)
        for name in _columns(record)
        for line in _series(record, name, unit, number)
    ]
    if not series:
        return None
    order = sorted({line.name for line in series}, key=lambda name: (name != "loss", name == "learning_rate", name))
    series.sort(key=lambda one: (order.index(one.name), one.run))
    return HistoryData(
        unit=unit,
        series=tuple(series),
        intervals=tuple(_intervals(records, unit)),
        runs=tuple(record.label for record in records),
        log=log,
        notes=tuple(_notes(records, {line.run for line in series}, unit)),
        marks=tuple(mark for number, record in enumerate(records) for mark in _marks(record, unit, number)),
    )


def paths_of(surfaces: Sequence[Surface]) -> dict[str, ProjectedPath]:
    """The paths of the run itself with at least one snapshot, by the names of their landscapes."""
    own = {surface.name: surface.path.of_own_run for surface in surfaces if surface.path is not None}
    return {name: path for name, path in own.items() if path is not None and len(path.step)}


def is_loss(name: str) -> bool:
    """Whether a recorded quantity is a loss, by the words of its name.

    >>> is_loss("loss"), is_loss("validation_loss"), is_loss("accuracy")
    (True, True, False)
    """
    return "loss" in name.lower().replace("/", "_").replace("-", "_").split("_")


def _usual_unit(records: Sequence[TrainingRecord]) -> str:
    units = {path.unit for record in records for path in record.paths.values()}
    recorded = [record for record in records if record.rows]
    return "epoch" if units == {"epoch"} or not all(_has(record.rows, "step") for record in recorded) else "step"


def _has(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(finite_or_none(row.get(key)) is not None for row in rows)


def _columns(record: TrainingRecord) -> list[str]:
    names = {str(key) for row in record.rows for key, value in row.items() if finite_or_none(value) is not None}
    return sorted(names.difference(PLACES, (PACE,)))


def _series(record: TrainingRecord, name: str, unit: str, number: int) -> list[Series]:
    """The series of one column in a list; empty if none of its values has a place on the axis."""
    per_epoch = _steps_per_epoch(record)
    points = []
    for row in record.rows:
        value, x = finite_or_none(row.get(name)), _place(row, unit, per_epoch)
        if x is not None and value is not None:
            points.append((x, value))
    array = np.array(points, np.float64).reshape(-1, 2)
    kept = array[spread_with_extremes(array[:, 1], MOST_POINTS)]
    return [Series(name, kept[:, 0], kept[:, 1], number)] if points else []


def _marks(record: TrainingRecord, unit: str, number: int) -> list[Mark]:
    """The first `MOST_MARKS` places where rules fired; later ones are mostly consequences."""
    per_epoch, marks = _steps_per_epoch(record), list[Mark]()
    for row in record.rows:
        watched, x = row.get("watch"), _place(row, unit, per_epoch)
        if not isinstance(watched, list) or x is None:
            continue
        fired = [
            (f"{finding.get('layer')}", f"{finding.get('rule')}") for finding in watched if isinstance(finding, Mapping)
        ]
        texts = [f"{layer}: {rule}" for layer, rule in fired]
        if texts and len(marks) < MOST_MARKS:
            place = next((f"{key} {row[key]:.12g}" for key in UNITS if finite_or_none(row.get(key)) is not None), "")
            line = f"{place}: {texts[0]}{others_in_words(fired[1:])}"
            marks.append(Mark(x, tuple(texts[:MOST_TEXTS]), number, line))
    return marks


def spread_with_extremes(values: Floats, most: int) -> NDArray[np.intp]:
    """At most `most` of the indices [n], in order, chosen to keep the peaks of the whole line.

    The first and the last index are kept, and the lowest and the highest value of equal stretches between them.

    >>> spread_with_extremes(np.array([0.0, 1.0, 9.0, 1.0, -5.0, 1.0, 1.0, 2.0]), 6).tolist()
    [0, 1, 2, 4, 5, 7]
    """
    if len(values) <= most:
        return np.arange(len(values))
    stretches = np.array_split(np.arange(1, len(values) - 1), max(1, (most - 2) // 2))
    ends = [0, len(values) - 1]
    extremes = [int(part[k]) for part in stretches for k in (values[part].argmin(), values[part].argmax())]
    return np.unique(np.array([*ends, *extremes], np.intp))


def _steps_per_epoch(record: TrainingRecord) -> float | None:
    number = finite_or_none(record.steps_per_epoch)
    return number if number is not None and number > 0 else None


def _place(row: Mapping[str, Any], unit: str, per_epoch: float | None) -> float | None:
    """The place of a row on the axis: its step, or its epoch, with fraction if known."""
    step, epoch = finite_or_none(row.get("step")), finite_or_none(row.get("epoch"))
    if unit == "step":
        return step
    return step / per_epoch if per_epoch and step is not None else epoch


def _intervals(records: Sequence[TrainingRecord], unit: str) -> list[PathInterval]:
    """The gapless stretches of all paths that can be counted in `unit`; equal stretches of several runs are joined."""
    runs: dict[tuple[str, float, float], list[int]] = {}
    for number, record in enumerate(records):
        for name, path in record.paths.items():
            factor = _factor(path.unit, unit, _steps_per_epoch(record))
            if factor is not None and len(path.step):
                for start, stop in _covered(path.step.tolist()):
                    runs.setdefault((name, start * factor, stop * factor), []).append(number)
    return [PathInterval(*stretch, runs=tuple(numbers)) for stretch, numbers in runs.items()]


def _covered(steps: list[int]) -> list[tuple[int, int]]:
    """The ends of the stretches with equal steps; the ends of the whole for uneven snapshots."""
    parts = progressions(steps)
    return [(part[0], part[-1]) for part in (parts if len(parts) <= MOST_STRETCHES else [steps])]


def _factor(counted: str, unit: str, per_epoch: float | None) -> float | None:
    """The factor from a count of `counted` to one of `unit`; None if it is not known."""
    if counted == unit:
        return 1.0
    if per_epoch is None:
        return None
    return per_epoch if unit == "step" else 1 / per_epoch


def _notes(records: Sequence[TrainingRecord], drawn: set[int], unit: str) -> list[str]:
    notes = []
    for number, record in enumerate(records):
        if number not in drawn and len(records) > 1:
            reason = f"has no {unit} by which to place its history" if record.rows else "recorded no history"
            notes.append(f"{record.label} {reason}")
    return notes


def name_rows(intervals: Sequence[PathInterval], low: float, high: float) -> list[int]:
    """The row, 0 the lowest, for each interval's name above a figure from `low` to `high`: no two names overlap."""
    span = (high - low) or 1.0
    ends: list[float] = []
    rows = []
    for interval in intervals:
        half = (len(interval.name) * 6.5 + 10) / 2 / 360 * span  # 360 px: the plot on a narrow page
        middle = (interval.start + interval.stop) / 2
        row = next((k for k, end in enumerate(ends) if middle - half >= end), len(ends))
        ends[row : row + 1] = [middle + half]
        rows.append(row)
    return rows
