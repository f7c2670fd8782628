"""The table of differences between landscapes: jobs, trainings of their runs, final metrics, and numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from landscape.core.errors import LONGEST_NUMBER, capped, flat, masked, quoted
from landscape.core.text import count_text, digest, finite_or_none, number_text, percent_text, seconds_text
from landscape.surface.surface import Surface
from landscape.views.prepare import words
from landscape.views.prepare.history import PLACES
from landscape.views.prepare.paths import origin_index
from landscape.views.prepare.scale import is_evaluated, point_counts
from landscape.views.prepare.tables import measure_numbers
from landscape.views.prepare.uncertainty import rise_over_origin, standard_error, where_evaluated
from landscape.views.prepare.words import ENTEZARI

MOST_KEYS, DEEPEST = 400, 8  # of a flattened document: keys, levels
# Characters of a value that stands in its cell, which wraps; of what stands there for a longer one; and of the whole.
LONGEST, SHORTENED, WHOLE = 80, 40, 4000
NAME = 200  # characters of the name of a line


@dataclass(frozen=True)
class WholeGrid:
    """Facts about all points of a landscape whose surface holds only some of them.

    Args:
        sizes: points along each axis.
        computed: how many points were evaluated.
        lowest: the lowest value; None if it is not known.
        asked: how many points are to be evaluated; None for all.
    """

    sizes: tuple[int, ...]
    computed: int
    lowest: float | None
    asked: int | None = None


@dataclass(frozen=True, eq=False)
class TableItem:
    """One column of the table: a landscape, or a run alone, with the run's documents.

    Args:
        label: the head of the column.
        surface: the landscape; None for a run alone.
        whole: facts about all its points, if the surface holds only some of them.
        info: the training's facts, from `run.json`.
        history: the training's recorded rows, one mapping per step or epoch.
        measures: the content of the run's `measures.json`.
    """

    label: str
    surface: Surface | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    measures: Mapping[str, Any] = field(default_factory=dict)
    whole: WholeGrid | None = None


@dataclass(frozen=True)
class DifferenceRow:
    """One line of the table: per column a text (None if nothing is recorded) and a number for sorting, or None.

    `wholes` has the whole value where the text is a shortened one, else None; empty if none is.
    """

    name: str
    values: tuple[str | None, ...]
    numbers: tuple[float | None, ...]
    wholes: tuple[str | None, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether the columns differ; an unrecorded value differs from a recorded one."""
        wholes = self.wholes or (None,) * len(self.values)
        return len(set(zip(self.values, wholes, strict=True))) > 1


@dataclass(frozen=True)
class Section:
    """Lines of one subject."""

    title: str
    rows: tuple[DifferenceRow, ...]


@dataclass(frozen=True)
class DifferencesTable:
    """The table: the heads of its columns, and its lines in sections; sections without a line are left out."""

    columns: tuple[str, ...]
    sections: tuple[Section, ...]

    def differing(self) -> DifferencesTable:
        """The table without the lines whose columns are all equal."""
        return self._where(True)

    def equal(self) -> DifferencesTable:
        """Only the lines whose columns are all equal."""
        return self._where(False)

    def _where(self, differs: bool) -> DifferencesTable:
        sections = [
            Section(section.title, tuple(row for row in section.rows if row.differs == differs))
            for section in self.sections
        ]
        return DifferencesTable(self.columns, tuple(section for section in sections if section.rows))


@dataclass(frozen=True)
class Cell:
    """A value as a text, and as a number if it is one; `whole` is the whole value where the text is shortened."""

    text: str
    number: float | None = None
    whole: str | None = None


def tabulate(items: Sequence[TableItem], observable: str = "loss") -> DifferencesTable:
    """The table of the items' jobs, trainings and numbers.

    Names of lines are dotted keys of the documents, such as 'landscape.size' or 'hyperparameters.momentum'.
    """
    sections = [
        _section("Numbers", [_numbers(item, observable) for item in items]),
        _section("Measures", [_documented(measure_numbers(item.measures)) for item in items]),
        _section("Final metrics", [_final_metrics(item.history) for item in items]),
        _section("Training", [_documented(item.info) for item in items]),
        _section("Job", [_documented(_job(item.surface)) for item in items]),
    ]
    return DifferencesTable(tuple(item.label for item in items), tuple(section for section in sections if section.rows))


def _section(title: str, columns: Sequence[Mapping[str, Cell]]) -> Section:
    """The lines of one section, in the order in which their names first occur."""
    names = dict.fromkeys(name for column in columns for name in column)
    rows = []
    for name in names:
        cells = [column.get(name) for column in columns]
        texts = tuple(None if cell is None else cell.text for cell in cells)
        wholes = tuple(None if cell is None else cell.whole for cell in cells)
        numbers = tuple(None if cell is None else cell.number for cell in cells)
        rows.append(DifferenceRow(name, texts, numbers, wholes if any(wholes) else ()))
    return Section(title, tuple(rows))


def _numbers(item: TableItem, observable: str) -> dict[str, Cell]:
    """The numbers that compare landscapes; unknown ones are left out."""
    surface = item.surface
    if surface is None:
        return {}
    name = words.observable_title(observable)
    values = np.asarray(surface.observables.get(observable, np.empty(0)), np.float64)
    known = values[np.isfinite(values)]
    cells: dict[str, Cell] = {}
    error = where_evaluated(surface, standard_error(surface, observable))
    if known.size:
        digits = words.usual_digits(values, error, 5)
        low, high = (_extreme(values, error, value) for value in (known.min(), known.max()))
        lowest = None if item.whole is None else item.whole.lowest  # its error is known only where it is drawn
        cells[f"lowest {name}"] = low if lowest in (None, low.number) else _number(float(lowest), digits)
        cells[f"highest {name}"] = high
        cells[f"relief of the {name} (95th less 5th percentile)"] = _relief(surface, observable, values, error)
    cells |= _at_origin(surface, observable, name, values)
    if error is not None and np.isfinite(error).any():
        cells[f"standard error of the {name}, median"] = _number(float(np.median(error[np.isfinite(error)])), 3)
    if words.barrier_text(surface):
        barrier = surface.find_barrier()
        height = None if barrier is None else barrier.height
        cells[ENTEZARI] = Cell(words.barrier_text(surface), height)
    whole = item.whole or WholeGrid(
        tuple(len(axis.coordinates) for axis in surface.axes), int(is_evaluated(surface).sum()), None,
        sum(point_counts(surface)),
    )  # fmt: skip
    size = math.prod(whole.sizes)
    cells["points"] = Cell(" × ".join(map(str, whole.sizes)), float(size))
    if surface.interpolated is not None:
        cells["points evaluated"] = Cell(count_text(whole.computed), float(whole.computed))
    done = whole.computed / (whole.asked or size)
    cells["done"] = Cell(percent_text(done), done)
    seconds = finite_or_none(surface.record.progress.seconds)
    if seconds is not None:
        cells["time"] = Cell(seconds_text(seconds, tenths=True), seconds)
    return cells


def _at_origin(surface: Surface, observable: str, name: str, values: np.ndarray) -> dict[str, Cell]:
    value = surface.origin_loss if observable == "loss" else math.nan
    error = surface.origin_loss_stderr if math.isfinite(value) else math.nan
    place = origin_index(surface)
    if not math.isfinite(value) and place is not None and values.size:
        value = float(values[place])
    return {f"{name} at the origin": Cell(words.value_with_error(value, error), value)} if math.isfinite(value) else {}


def _extreme(values: np.ndarray, error: np.ndarray | None, value: float) -> Cell:
    """The lowest or the highest of the values with its error."""
    index = np.unravel_index(int(np.argmax(values == value)), values.shape)
    return Cell(words.value_with_error(float(value), math.nan if error is None else float(error[index])), float(value))


def _relief(surface: Surface, observable: str, values: np.ndarray, error: np.ndarray | None) -> Cell:
    """The 95th less the 5th percentile; its error is at most the sum of those at the points nearest to both.

    Of the loss these are the errors of the rises, in which the noise common to all points cancels.
    """
    low, high = np.percentile(values[np.isfinite(values)], [5, 95])
    rise_error = where_evaluated(surface, rise_over_origin(surface, observable)[1])
    errors = error if rise_error is None else rise_error
    at = [int(np.nanargmin(np.abs(np.where(np.isfinite(values), values, np.nan) - end))) for end in (low, high)]
    total = math.nan if errors is None else float(sum(errors.flat[k] for k in at))
    return Cell(words.value_with_error(float(high - low), total), float(high - low))


def _number(value: float, digits: int = 5) -> Cell:
    return Cell(number_text(value, digits), value)


def _final_metrics(history: Sequence[Mapping[str, Any]]) -> dict[str, Cell]:
    """The last recorded value of every column, the loss first, and the length of the training."""
    last: dict[str, float] = {}
    for row in history:
        last |= {str(key): known for key, value in row.items() if (known := finite_or_none(value)) is not None}
    places = [name for name in PLACES if name in last]
    names = sorted(set(last).difference(PLACES), key=lambda name: (name != "loss", name == "learning_rate", name))
    cells = {_shortened(name): _number(last[name]) for name in names[:MOST_KEYS]}
    return cells | {f"last {name}": _number(last[name], 12) for name in places}


def _job(surface: Surface | None) -> Mapping[str, Any]:
    """The job, with this landscape in place of the list of landscapes."""
    job = None if surface is None else surface.record.job
    if job is None:
        return {}
    whole = {key: value for key, value in job.whole.items() if key != "landscapes"}
    listed = job.whole.get("landscapes")
    landscape = listed[0] if isinstance(listed, Sequence) and not isinstance(listed, str) and listed else listed
    return whole | ({"landscape": landscape} if landscape else {})


def _documented(document: Mapping[str, Any]) -> dict[str, Cell]:
    """The values of a JSON document by dotted keys; only the first ones of a large document."""
    return dict(itertools.islice(_leaves(document, "", DEEPEST), MOST_KEYS))


def _leaves(value: Any, name: str, depth: int) -> Iterator[tuple[str, Cell]]:
    parts: Iterator[tuple[str, Any]] | None = None
    if isinstance(value, Mapping):
        parts = ((str(key), part) for key, part in value.items())
    elif isinstance(value, (list, tuple)) and any(isinstance(part, (Mapping, list, tuple)) for part in value):
        parts = ((str(k + 1), part) for k, part in enumerate(value))
    if parts is None or depth == 0:
        yield _shortened(name), _cell(value)
        return
    for key, part in parts:
        yield from _leaves(part, f"{name}.{key}" if name else key, depth - 1)


def _shortened(name: str) -> str:
    return capped(flat(name), NAME)


def _cell(value: Any) -> Cell:
    """A value of a document: numbers as numbers, everything else as a text without passwords and keys."""
    if isinstance(value, float):
        return _number(value, 6) if math.isfinite(value) else Cell("not finite")
    text = _text(value)
    if len(text) > LONGEST:
        cut = f" ({count_text(len(text))} characters, digest {digest(text)[:8]})" if len(text) > WHOLE else ""
        short = _first_of(value) if isinstance(value, (list, tuple)) else capped(text, SHORTENED)
        return Cell(short, None, capped(text, WHOLE) + cut)
    is_number = type(value) is int and value.bit_length() <= LONGEST_NUMBER
    return Cell(text, float(value) if is_number else None)


def _first_of(values: Sequence[Any]) -> str:
    """The first elements of a long list, and how many it has: '[epoch-1.ckpt, … (51 in all)]'."""
    ending = f", … ({count_text(len(values))} in all)]"
    room = SHORTENED - len(ending) - 1
    texts = list(itertools.accumulate(map(_text, values[:room]), lambda before, text: f"{before}, {text}"))
    fitting = [text for text in texts if len(text) <= room]
    return f"[{fitting[-1] if fitting else capped(texts[0], room)}{ending}"


def _text(value: Any) -> str:
    """A value of a document on one line, without passwords and keys."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return flat(quoted(value), WHOLE)
    if isinstance(value, float):
        return number_text(value, 6) if math.isfinite(value) else "not finite"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return "…"
    return flat(masked(str(value)[: 20 * WHOLE]), WHOLE)
