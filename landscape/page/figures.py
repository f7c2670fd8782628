"""Figures and what stands beside them: from a question to the prepared values, and from those to plotly's JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from landscape.page.answers import Answer, pack, utf8
from landscape.page.content import View
from landscape.page.queries import FigureQuery
from landscape.page.runs import RunReader
from landscape.page.tiles import encoded
from landscape.store.state import finite, state_of_counts
from landscape.surface.surface import NOT_COMPUTED, OK, QUARANTINED, check_observable
from landscape.views.draw.figure import KIND_TABLE, choose_kind, figure_name
from landscape.views.draw.layout import Style
from landscape.views.draw.style import PATH_COLOUR
from landscape.views.prepare.comparable import count_statuses
from landscape.views.prepare.figure import FigureData, prepare_figure
from landscape.views.prepare.words import resolution, state_text, state_words

ALL = 1 << 30  # points per axis: what is drawn was picked before


@dataclass(frozen=True)
class Prepared:
    """What a figure shows, ready to draw, and the landscape that it is of."""

    view: View
    kind: str
    data: FigureData


def observables_of(run: RunReader, query: FigureQuery) -> tuple[str, ...]:
    """The observables that a figure needs: over one axis the loss brings others along, a caption tells of the loss.

    Raises:
        JobError: the landscape has no such observable.
    """
    store = run.reader(query.landscape).store()
    check_observable(query.landscape, query.observable, store.record.surfaces)
    beside = [name for kind in KIND_TABLE.values() if kind.fits(len(store.shape)) for name in kind.beside]
    return (query.observable, *(name for name in ("loss", *beside) if name in store.record.surfaces))


def prepared(run: RunReader, query: FigureQuery) -> Prepared:
    """The values of the figure that is asked for.

    Raises:
        JobError: the landscape has no such observable or kind, or an option is impossible.
        NotFoundError: there is no such landscape; GoneError where it was removed.
        LandscapeError: it cannot be read.
    """
    view = run.view(query.landscape, observables_of(run, query), query.most)
    kind = choose_kind(view.surface, query.kind or None)
    data = prepare_figure(
        view.surface,
        query.observable,
        log=query.log,
        zmin=query.zmin,
        zmax=query.zmax,
        clip=query.clip,
        levels=query.levels,
        exact_levels=query.exact,
        uncertainty=query.uncertainty,
        extrema=query.extrema or KIND_TABLE[kind].extrema,
        max_points=ALL,
        beside=KIND_TABLE[kind].beside,
    )
    return Prepared(view, kind, replace(data, caption=whole_caption(view, data)))


def whole_caption(view: View, data: FigureData) -> tuple[str, ...]:
    """The caption with the size and the state of the whole landscape, where not all of its points are drawn."""
    caption = (*data.caption, *hidden_levels(view))
    if view.picks is None:
        return caption
    drawn = resolution(view.surface)
    others = {drawn: whole_size(view), _capital(state_text(view.surface)): _capital(state_in_words(view))}
    minima = ["Minima are those of the points drawn"] if data.extrema is not None else []
    return (*(others.get(line, line) for line in caption), f"Drawn from {drawn} of them", *minima)


def hidden_levels(view: View) -> list[str]:
    """What the caption says of levels that are not drawn, as they have too many points for a page."""
    count = view.hidden_levels
    which = "The finest level is" if count == 1 else f"The {count} finest levels are"
    return [f"{which} not drawn on this page; exports have all levels"] if count else []


def whole_size(view: View) -> str:
    """The size of the whole grid, such as '4096 × 4096 points'."""
    return " × ".join(map(str, view.sizes)) + " points"


def state_in_words(view: View) -> str:
    """The state of the landscape with the counts of what is missing, all points counted."""
    path = None if view.surface.path is None else count_statuses(view.surface.path.status)
    missing = view.counts[NOT_COMPUTED] + (path[NOT_COMPUTED] if path else 0)
    failed = view.counts[QUARANTINED] + (path[QUARANTINED] if path else 0)
    alive = view.record.progress.state == "running"
    state = state_of_counts(missing - view.unreadable, failed, alive, view.unreadable)
    return state_words(state, view.counts, path)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def figure_answer(run: RunReader, query: FigureQuery) -> Answer:
    """The answer of `api/figure`.

    Raises:
        As `prepared`, and JobError for an unknown colour scale.
    """
    shown = prepared(run, query)
    data, scale = shown.data, shown.data.scale
    style = Style(query.scale, query.theme, PATH_COLOUR, 2.5, title=False, caption=False)
    values = data.values[np.isfinite(data.values)]
    surface = shown.view.surface
    head = {
        "file": figure_name(surface, shown.kind, query.observable, query.log),
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
        "states": encoded(data.states) if data.states.ndim == 2 and (data.states != OK).any() else None,
    }
    text = json.dumps(finite(head), allow_nan=False, ensure_ascii=False)
    figure = KIND_TABLE[shown.kind].draw(data, style)
    return pack(utf8(f'{text[:-1]},"figure":{figure_json(figure)}}}'))


def figure_json(figure: Any) -> str:
    """A figure as plotly's JSON, without its template, which the page has."""
    figure.layout.template = None
    text: str = figure.to_json(validate=False)
    return text
