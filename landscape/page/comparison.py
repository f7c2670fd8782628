"""Several landscapes as figures, and as a table of what differs between them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from landscape.core.errors import LandscapeError
from landscape.page.answers import Answer, pack_body, pack_json, utf8
from landscape.page.content import View
from landscape.page.figures import whole_size, with_figure
from landscape.page.queries import CompareQuery, Item
from landscape.page.runs import RunReader
from landscape.store.results import Run
from landscape.store.state import finite
from landscape.surface.surface import NOT_FINITE, OK
from landscape.views.draw.comparison import ComparedFigure, draw_comparison
from landscape.views.figure_spec import COMPARISON_KINDS, KIND_TABLE, kinds_of
from landscape.views.prepare.comparison import item_labels
from landscape.views.prepare.differences import TableItem, WholeGrid, tabulate
from landscape.views.prepare.words import resolution

T = TypeVar("T")

FEW, DRAWN_OF_FEW = 2, 400  # landscapes that are drawn as finely as one alone; points per axis of these
LEAST_DRAWN = 64  # points per axis, of any number of landscapes


@dataclass(frozen=True)
class Readable:
    """The items of a comparison that can be read, with their runs and the generation of each, and notes on others."""

    items: tuple[Item, ...]
    runs: tuple[RunReader, ...]
    generations: tuple[str, ...]
    notes: tuple[str, ...]


def find_readable(items: Sequence[Item], runs: Mapping[str, RunReader | LandscapeError]) -> Readable:
    """What of the items is there; one that is gone or damaged is left out, with a note.

    Args:
        runs: the open run of each identifier, or why there is none.

    Raises:
        LandscapeError: none of them can be read.
    """
    found: list[tuple[Item, RunReader, str]] = []
    errors: list[LandscapeError] = []
    for item in items:
        run = runs[item.run]
        try:
            if isinstance(run, LandscapeError):
                raise run
            found.append((item, run, run.view(item.landscape).generation))
        except LandscapeError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    columns = tuple(zip(*found, strict=True))
    return Readable(columns[0], columns[1], columns[2], tuple(f"Left out: {error}" for error in errors))


def compare_answer(there: Readable, asked: CompareQuery) -> Answer:
    """The answer of `api/compare`.

    Raises:
        JobError: the landscapes cannot be compared so.
        LandscapeError: one of them cannot be read any more.
    """
    most = DRAWN_OF_FEW if len(there.items) <= FEW else _most(len(there.items))
    pairs = list(zip(there.runs, there.items, strict=True))
    views = [_view(run, item.landscape, asked.comparison.observable, most) for run, item in pairs]
    labels = _labels(pairs)
    kind, notes = _kind(views, asked)
    surfaces = [(label, view.surface) for label, view in zip(labels, views, strict=True)]
    figures = draw_comparison(surfaces, asked.mode, replace(asked.comparison, kind=kind))
    thinned = [
        f"{label}: drawn from {resolution(view.surface)} of {whole_size(view)}"
        for label, view in zip(labels, views, strict=True)
        if view.picks is not None
    ]
    parts = ",".join(_figure(figure, there.items) for figure in figures)
    told = json.dumps([*there.notes, *notes, *thinned], ensure_ascii=False)
    return pack_body(utf8(f'{{"figures":[{parts}],"notes":{told}}}'))


def _most(count: int) -> int:
    """Points per axis of each of many landscapes, so that all of them together stay about as many as of a few."""
    return max(LEAST_DRAWN, round(DRAWN_OF_FEW * math.sqrt(FEW / count)))


def _view(run: RunReader, landscape: str, observable: str, most: int) -> View:
    beside = [name for kind in KIND_TABLE.values() for name in kind.beside]
    one = run.view(landscape)
    limit = most if len(one.sizes) == 2 else None
    return run.view(landscape, (observable, *beside), limit)


def _labels(pairs: Sequence[tuple[RunReader, Item]]) -> list[str]:
    return item_labels([(run.found.name, item.landscape) for run, item in pairs])


def _kind(views: Sequence[View], asked: CompareQuery) -> tuple[str | None, list[str]]:
    """The kind that is asked for where it fits all landscapes and the mode, else none with a note."""
    axes = {len(view.sizes) for view in views}
    fitting = [set(COMPARISON_KINDS[asked.mode].get(count, ())) for count in axes]
    if not asked.comparison.kind or all(asked.comparison.kind in kinds for kinds in fitting):
        return asked.comparison.kind or None, []
    usual = [COMPARISON_KINDS[asked.mode].get(count, kinds_of(count))[0] for count in sorted(axes)]
    words = " and ".join(map(_word, usual))
    return None, [f"Drawn as {words}, as {_word(asked.comparison.kind)} does not fit here"]


def _word(kind: str) -> str:
    title = KIND_TABLE[kind].title
    return title[:1].lower() + title[1:]


def _figure(one: ComparedFigure, items: Sequence[Item]) -> str:
    head = {"title": one.title, "caption": one.caption, "file": one.file, "items": [items[k].text for k in one.items]}
    return with_figure(head, one.figure)


def differences_answer(there: Readable) -> Answer:
    """The answer of `api/differences`.

    Raises:
        LandscapeError: a landscape cannot be read any more.
    """
    pairs = list(zip(there.runs, there.items, strict=True))
    notes = list(there.notes)
    documents = {run.found.id: _documents(run, notes) for run, _ in pairs}
    columns, items = [], []
    for (run, item), label in zip(pairs, _labels(pairs), strict=True):
        view = run.view(item.landscape, ("loss",))
        computed = view.counts[OK] + view.counts[NOT_FINITE]
        whole = WholeGrid(tuple(view.sizes), computed, view.lowest.get("loss"), sum(view.counts))
        items.append(TableItem(label, view.surface, *documents[run.found.id], whole))
        columns.append({"item": item.text, "run": run.found.name, "landscape": item.landscape})
        if view.picks is not None:
            of_drawn = f"{resolution(view.surface)} of {whole_size(view)}"
            notes.append(f"{label}: the highest value, the relief and the median error are of {of_drawn}")
    table = tabulate(items)
    sections = [
        {"title": section.title, "rows": [{**asdict(row), "differs": row.differs} for row in section.rows]}
        for section in table.sections
    ]
    return pack_json(finite({"columns": columns, "sections": sections, "notes": notes}))


def _documents(
    run: RunReader, notes: list[str]
) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """What training recorded of a run, and what was measured of it; empty where that cannot be read, with a note."""
    opened = Run(run.found.path)

    def read(ask: Callable[[], T], nothing: T) -> T:
        try:
            return ask()
        except LandscapeError as error:
            notes.append(f"Left out: {error}")
            return nothing

    return read(lambda: opened.info, {}), read(lambda: opened.history, []), read(lambda: opened.measures, {})
