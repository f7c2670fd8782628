"""Figures, comparisons, thumbnails and histories: from a query to prepared values, and from these to plotly's JSON."""

from __future__ import annotations

import base64
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

import landscape
from landscape.core.errors import LandscapeError, NotFoundError
from landscape.core.text import file_name
from landscape.page.answers import Answer, pack_body, pack_json, utf8
from landscape.page.content import View, encode_array
from landscape.page.queries import CompareQuery, FigureQuery, HistoryQuery, Item, ThumbnailQuery
from landscape.page.runs import RunReader
from landscape.store.arrays import sample_index, stored_losses
from landscape.store.landscape import LandscapeStore
from landscape.store.results import Run
from landscape.store.state import COMPLETE, finite
from landscape.surface.derived import RISE
from landscape.surface.surface import (
    NOT_COMPUTED,
    NOT_FINITE,
    OK,
    QUARANTINED,
    ProjectedPath,
    Surface,
    check_observable,
)
from landscape.views.draw.comparison import ComparedFigure, draw_comparison
from landscape.views.draw.history import draw_history
from landscape.views.draw.style import TEMPLATES, colour_scale, config
from landscape.views.figure_spec import (
    COLOUR_TABLE,
    COMPARISON_KINDS,
    DEFAULT_SCALE,
    DEFAULT_SPEC,
    KIND_TABLE,
    FigureSpec,
    as_arguments,
    choose_kind,
    figure_name,
    kinds_of,
)
from landscape.views.prepare.comparison import ComparedLandscape, item_labels, with_rise
from landscape.views.prepare.differences import TableItem, WholeGrid, tabulate
from landscape.views.prepare.figure import FigureData, prepare, suggests_log
from landscape.views.prepare.history import TrainingRecord, prepare_histories
from landscape.views.prepare.scale import choose_scale, drawn_values, point_states
from landscape.views.prepare.words import path_counts, resolution, state_text, state_words
from landscape.views.report_sections import brief_rows

ALL = 1 << 30  # points per axis: the points to draw were picked before


@dataclass(frozen=True)
class Prepared:
    """The data of a figure, ready to draw, and its landscape."""

    view: View
    kind: str
    data: FigureData


def observables_of(run: RunReader, query: FigureQuery) -> tuple[str, ...]:
    """The observables that a figure needs: over one axis also those beside the loss; the loss for the caption.

    Raises:
        JobError: the landscape has no such observable.
    """
    store = run.reader(query.landscape).store()
    check_observable(query.landscape, query.spec.observable, store.record.surfaces)
    beside = [name for kind in KIND_TABLE.values() if kind.fits(len(store.shape)) for name in kind.beside]
    return (query.spec.observable, *(name for name in ("loss", *beside) if name in store.record.surfaces))


def prepare_view(run: RunReader, query: FigureQuery) -> Prepared:
    """The values of the requested figure.

    Raises:
        JobError: the landscape has no such observable or kind, or an option is impossible.
        NotFoundError: there is no such landscape; GoneError if it was removed.
        LandscapeError: it cannot be read.
    """
    view = run.view(query.landscape, observables_of(run, query), query.most)
    kind, spec = choose_kind(view.surface, query.spec.kind), query.spec
    spec = replace(spec, max_points=ALL, extrema=spec.extrema or KIND_TABLE[kind].extrema)
    data = prepare(view.surface, spec, KIND_TABLE[kind].beside)
    return Prepared(view, kind, replace(data, caption=whole_caption(view, data)))


def whole_caption(view: View, data: FigureData) -> tuple[str, ...]:
    """The caption with the size and the state of the whole landscape, if not all its points are drawn."""
    caption = (*data.caption, *hidden_levels(view))
    if view.picks is None:
        return caption
    drawn = resolution(view.surface)
    others = {drawn: whole_size(view), _capital(state_text(view.surface)): _capital(state_in_words(view))}
    minima = ["Minima are those of the points drawn"] if data.extrema is not None else []
    return (*(others.get(line, line) for line in caption), f"Drawn from {drawn} of them", *minima)


def hidden_levels(view: View) -> list[str]:
    """The caption's note on levels that are not drawn, as they have too many points for a page."""
    count = view.hidden_levels
    which = "The finest level is" if count == 1 else f"The {count} finest levels are"
    return [f"{which} not drawn on this page; exports have all levels"] if count else []


def whole_size(view: View) -> str:
    """The size of the whole grid, such as '4096 × 4096 points'."""
    return " × ".join(map(str, view.sizes)) + " points"


def state_in_words(view: View) -> str:
    """The state of the landscape with the counts of what is missing, all points counted."""
    return state_words(view.state, view.counts, path_counts(view.surface))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def figure_answer(run: RunReader, query: FigureQuery) -> Answer:
    """The answer of `api/figure`.

    Raises:
        As `prepare_view`.
    """
    shown = prepare_view(run, query)
    data, scale = shown.data, shown.data.scale
    values = data.values[np.isfinite(data.values)]
    surface = shown.view.surface
    head = {
        "file": figure_name(surface, shown.kind, query.spec.observable, query.spec.log),
        "caption": list(data.caption),
        "title": data.title,
        "kind": shown.kind,
        "log": scale.log,
        "levels": [scale.real(tick) for tick in scale.ticks],
        "low": float(values.min()) if values.size else None,
        "high": float(values.max()) if values.size else None,
        "zmin": scale.real(scale.low),
        "zmax": scale.real(scale.high),
        "index": None if shown.view.picks is None else [pick.tolist() for pick in shown.view.picks],
        "slices": data.axes[2].coordinates.tolist() if len(data.axes) == 3 else None,
        "generation": shown.view.generation,
        "command": command_of([run.found.path, query.landscape], replace(query.spec, kind=shown.kind)),
        "states": encode_array(data.states) if data.states.ndim == 2 and (data.states != OK).any() else None,
    }
    return pack_body(utf8(with_figure(head, KIND_TABLE[shown.kind].draw(data, query.spec))))


def command_of(words: Sequence[str], spec: FigureSpec, *more: str) -> str:
    """The shell command that exports what is shown, with all options of the picture that the server draws.

    The page's script adds those that the browser applies: the camera, the zoom, the look of the path, the theme.
    """
    shown = replace(spec, title=None, caption=None, theme=DEFAULT_SPEC.theme)
    kind = [f"--kind={spec.kind}"] if spec.kind is not None else []
    observable = [f"--observable={spec.observable}"] if spec.observable != DEFAULT_SPEC.observable else []
    return shlex.join(["landscape", "export", *words, *more, "--to=png", *kind, *observable, *as_arguments(shown)])


def with_figure(head: Mapping[str, Any], figure: Any) -> str:
    """The JSON of these fields and of a figure as plotly writes it, without the template, which the page has."""
    figure.layout.template = None
    text = json.dumps(finite(head), allow_nan=False, ensure_ascii=False)
    return f'{text[:-1]},"figure":{figure.to_json(validate=False)}}}'


# ----------------------------------------------------------------------------------------------------
# The common parts of all figures of the page: templates, colour scales, kinds of drawings, plotly's settings.


def looks() -> dict[str, Any]:
    """The answer of `api/looks`."""
    return {
        "version": landscape.__version__,
        "templates": {theme: template.to_plotly_json() for theme, template in TEMPLATES.items()},
        "scales": {name: colour_scale(name) for name in COLOUR_TABLE},
        "default_scale": DEFAULT_SCALE,
        "scale_names": [
            {"name": name, "title": look.title, "perceptual": look.perceptual} for name, look in COLOUR_TABLE.items()
        ],
        "kinds": {
            axes: [{"name": name, "title": KIND_TABLE[name].title} for name in kinds_in_order(axes)]
            for axes in (1, 2, 3)
        },
        "config": config(),
    }


def kinds_in_order(axes: int) -> list[str]:
    """The kinds of drawings for a landscape of that many axes, in the order of the buttons."""
    return sorted(kinds_of(axes), key=lambda kind: KIND_TABLE[kind].tab)


# ----------------------------------------------------------------------------------------------------
# Small pictures of landscapes for the list: one number per pixel, which the page colours.

MOST_PIXELS = 65  # along each side; odd, as the grids of refined landscapes
HIGHEST = 250
GIVEN_UP, NOT_FINITE_PIXEL, MISSING = 253, 254, 255


def thumbnail_answer(run: RunReader, asked: ThumbnailQuery) -> Answer:
    """The answer of `api/thumbnail`.

    Raises:
        JobError: there is no such observable.
        NotFoundError: there is no such landscape.
        LandscapeError: it cannot be read.
    """
    check_observable(asked.landscape, asked.observable, run.reader(asked.landscape).store().record.surfaces)
    view = run.view(asked.landscape, (asked.observable,), MOST_PIXELS)
    return pack_json(thumbnail(view.surface, asked.observable))


def no_thumbnail(reason: str) -> Answer:
    """The answer of `api/thumbnail` for an unreadable landscape: one missing point, and the reason."""
    levels = base64.b64encode(bytes([MISSING])).decode()
    nothing = {"width": 1, "height": 1, "levels": levels, "low": None, "high": None, "log": False}
    return pack_json(nothing | {"problem": reason})


def thumbnail(surface: Surface, observable: str) -> dict[str, Any]:
    """The picture of an observable: rows from the lowest coordinate; for three axes the middle plane of the third.

    Returns:
        `levels`, one byte per pixel: 0 to 250 for the drawn scale, or a code for a missing point.
    """
    log, values, status = suggests_log(surface, observable), surface[observable], surface.status
    if values.ndim == 3:
        values, status = values[len(values) // 2], status[len(status) // 2]
    values, status = np.atleast_2d(values), np.atleast_2d(status)
    states = point_states(values, status, log)
    drawn = drawn_values(values, states, log)
    scale = choose_scale(drawn, log)
    span = (scale.high - scale.low) or 1.0
    with np.errstate(invalid="ignore"):
        share = np.clip((drawn - scale.low) / span, 0.0, 1.0)
    levels = np.where(states == OK, np.round(HIGHEST * np.nan_to_num(share)), NOT_FINITE_PIXEL).astype(np.uint8)
    levels[states == NOT_COMPUTED] = MISSING
    levels[states == QUARANTINED] = GIVEN_UP
    known = values[np.isfinite(values)]
    return {
        "width": levels.shape[1],
        "height": levels.shape[0],
        "levels": base64.b64encode(levels.tobytes()).decode(),
        "low": float(known.min()) if known.size else None,
        "high": float(known.max()) if known.size else None,
        "log": log,
    }


# ----------------------------------------------------------------------------------------------------
# The history of the training of one or several runs, as a figure.


def history_answer(runs: Sequence[RunReader], asked: HistoryQuery) -> Answer:
    """The answer of `api/history`.

    Raises:
        NotFoundError: nothing was recorded.
        LandscapeError: a history cannot be read.
    """
    records = [training_record(run, len(runs) > 1) for run in runs]
    history = prepare_histories(records, unit=asked.unit or None, log=asked.log_history)
    if history is None:
        raise NotFoundError("no history was recorded in training")
    name = file_name(runs[0].found.name.rpartition("/")[2], "history")
    head = {"file": name, "columns": list(history.columns), "notes": list(history.notes), "unit": history.unit}
    return pack_body(utf8(with_figure(head, draw_history(history, asked.theme))))


def history_stamp(runs: Sequence[RunReader]) -> object:
    """A value that differs between two histories of these runs with their paths; None for a run in an object store.

    Raises:
        GoneError: a run no longer exists.
    """
    stamps = []
    for run in runs:
        run.refuse_gone()
        stamp = run.stamp("run.json", "history.jsonl")
        if stamp is None:
            return None
        paths = {name: (path.unit, path.step.tobytes()) for name, path in own_paths(run).items()}
        stamps.append((stamp, tuple(paths.items())))
    return tuple(stamps)


def training_record(run: RunReader, named: bool) -> TrainingRecord:
    """The training records of a run, and the paths of its landscapes.

    Args:
        named: label the curves with the run's name, as there are several runs.
    """
    run.refuse_gone()
    opened = Run(run.found.path)
    return TrainingRecord(
        run.found.name if named else "", opened.history, own_paths(run), opened.info.get("steps_per_epoch")
    )


def own_paths(run: RunReader) -> dict[str, ProjectedPath]:
    """The paths of the run itself on its landscapes, by landscape; an unreadable landscape has none."""
    paths: dict[str, ProjectedPath] = {}
    for name in run.names():
        try:
            path = run.view(name).surface.path
        except (LandscapeError, OSError):
            continue  # `api/run` reports it
        own = None if path is None else path.of_own_run
        if own is not None and len(own.step):
            paths[name] = own
    return paths


# ----------------------------------------------------------------------------------------------------
# Several landscapes as figures, and as a table of their differences.

T = TypeVar("T")

FEW, DRAWN_OF_FEW = 2, 400  # up to so many landscapes are drawn with so many points per axis
MOST_LOSSES = 256 << 20  # bytes of losses of single samples that are read for a difference
LEAST_DRAWN = 64  # points per axis, for any number of landscapes


@dataclass(frozen=True)
class Readable:
    """The items of a comparison that can be read, with their runs and the generation of each, and notes on others."""

    items: tuple[Item, ...]
    runs: tuple[RunReader, ...]
    generations: tuple[str, ...]
    notes: tuple[str, ...]


def find_readable(items: Sequence[Item], runs: Mapping[str, RunReader | LandscapeError]) -> Readable:
    """The items that can be read; one that is gone or damaged is left out, with a note.

    Args:
        runs: the open run of each identifier, or the error that explains why there is none.

    Raises:
        LandscapeError: none of the items can be read.
    """
    readable: list[tuple[Item, RunReader, str]] = []
    errors: list[LandscapeError] = []
    for item in items:
        run = runs[item.run]
        try:
            if isinstance(run, LandscapeError):
                raise run
            readable.append((item, run, run.view(item.landscape).generation))
        except LandscapeError as error:
            errors.append(error)
    if not readable:
        raise errors[0]
    columns = tuple(zip(*readable, strict=True))
    return Readable(columns[0], columns[1], columns[2], tuple(f"Left out: {error}" for error in errors))


def compare_answer(there: Readable, asked: CompareQuery) -> Answer:
    """The answer of `api/compare`.

    Raises:
        JobError: the landscapes cannot be compared in this way.
        LandscapeError: one of them can no longer be read.
    """
    most = DRAWN_OF_FEW if len(there.items) <= FEW else _most(len(there.items))
    pairs = list(zip(there.runs, there.items, strict=True))
    views = [_view(run, item.landscape, asked.comparison.observable, most) for run, item in pairs]
    if asked.mode == "difference" and asked.comparison.observable == "loss":
        stores = [run.reader(item.landscape).store() for run, item in pairs]
        views = list(map(_with_losses, views, stores))
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
    compared = tuple(ComparedLandscape(label, surface) for label, surface in surfaces)
    words = [f"{run.found.path}:{item.landscape}" for run, item in pairs]
    low, high = figures[0].ends or (None, None)
    head = {
        "notes": [*there.notes, *notes, *thinned],
        "rise": with_rise(compared, asked.comparison)[1].observable == RISE,
        "low": low,
        "high": high,
        "command": command_of(words, replace(asked.comparison, kind=kind), f"--mode={asked.mode}"),
    }
    text = json.dumps(finite(head), allow_nan=False, ensure_ascii=False)
    return pack_body(utf8(f'{text[:-1]},"figures":[{parts}]}}'))


def _most(count: int) -> int:
    """Points per axis of each of `count` landscapes, so that the total is about that of a few."""
    return max(LEAST_DRAWN, round(DRAWN_OF_FEW * math.sqrt(FEW / count)))


def _view(run: RunReader, landscape: str, observable: str, most: int) -> View:
    beside = [name for kind in KIND_TABLE.values() for name in kind.beside]
    one = run.view(landscape)
    limit = most if len(one.sizes) == 2 else None
    return run.view(landscape, (observable, *beside), limit)


def _with_losses(view: View, store: LandscapeStore) -> View:
    """The view with the losses of its samples, for the paired error, if they are kept, all there, and not too many."""
    losses = stored_losses(store.arrays)
    whole = view.picks is None and view.surface.interpolated is None and view.state == COMPLETE
    if losses is None or not whole or losses.nbytes > MOST_LOSSES:
        return view
    return replace(view, surface=replace(view.surface, loss_samples=losses, sample_index=sample_index(store.arrays)))


def _labels(pairs: Sequence[tuple[RunReader, Item]]) -> list[str]:
    return item_labels([(run.found.name, item.landscape) for run, item in pairs])


def _kind(views: Sequence[View], asked: CompareQuery) -> tuple[str | None, list[str]]:
    """The requested kind if it fits all landscapes and the mode, else None with a note."""
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


def _figure(drawn: ComparedFigure, items: Sequence[Item]) -> str:
    head = {"title": drawn.title, "caption": drawn.caption, "file": drawn.file}
    return with_figure(head | {"items": [items[k].text for k in drawn.items]}, drawn.figure)


def differences_answer(there: Readable) -> Answer:
    """The answer of `api/differences`: the table, and for each landscape the facts that stand under its picture.

    Raises:
        LandscapeError: a landscape can no longer be read.
    """
    pairs = list(zip(there.runs, there.items, strict=True))
    notes = list(there.notes)
    documents = {run.found.id: _documents(run, notes) for run, _ in pairs}
    columns, items = [], []
    for (run, item), label in zip(pairs, _labels(pairs), strict=True):
        view = run.view(item.landscape, ("loss", "accuracy"))
        computed = view.counts[OK] + view.counts[NOT_FINITE]
        whole = WholeGrid(tuple(view.sizes), computed, view.lowest.get("loss"), sum(view.counts))
        items.append(TableItem(label, view.surface, *documents[run.found.id], whole))
        info, history, _ = documents[run.found.id]
        facts = brief_rows(info, history, view.surface)
        columns.append({"item": item.text, "run": run.found.name, "landscape": item.landscape, "facts": facts})
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
    """The documents of a run's training and of its measures; an unreadable one is empty, with a note."""
    opened = Run(run.found.path)

    def read(ask: Callable[[], T], nothing: T) -> T:
        try:
            return ask()
        except LandscapeError as error:
            notes.append(f"Left out: {error}")
            return nothing

    return read(lambda: opened.info, {}), read(lambda: opened.history, []), read(lambda: opened.measures, {})
