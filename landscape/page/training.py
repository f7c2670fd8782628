"""The history of the training of one or several runs, as a figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from landscape.core.errors import JobError, LandscapeError, NotFoundError
from landscape.page.answers import Answer, pack, utf8
from landscape.page.figures import figure_json
from landscape.page.queries import Query
from landscape.page.runs import RunReader
from landscape.store.results import Run
from landscape.surface.surface import ProjectedPath
from landscape.views.draw.history import draw_history
from landscape.views.prepare.history import UNITS, TrainingRecord, prepare_histories
from landscape.views.prepare.words import file_name


@dataclass(frozen=True)
class HistoryQuery:
    """A figure of the history as it is asked for; `unit` is '' where the runs decide."""

    runs: tuple[str, ...]
    unit: str
    log: bool
    theme: str


def history_query(query: Query) -> HistoryQuery:
    """The parameters of `api/history`.

    Raises:
        JobError: one of them is wrong; the message names it.
    """
    runs = tuple(dict.fromkeys(filter(None, query.all("run"))))
    if not runs:
        raise JobError("run: must name a run by its identifier, once or more often")
    query.text("landscape")  # the page marks it by itself
    asked = HistoryQuery(
        runs,
        query.choice("unit", ("", *UNITS), ""),
        query.flag("log"),
        query.choice("theme", ("light", "dark"), "light"),
    )
    query.refuse_others()
    return asked


def history_answer(runs: Sequence[RunReader], asked: HistoryQuery) -> Answer:
    """The answer of `api/history`.

    Raises:
        NotFoundError: nothing was recorded.
        LandscapeError: a history cannot be read.
    """
    records = [training_record(run, len(runs) > 1) for run in runs]
    history = prepare_histories(records, unit=asked.unit or None, log=asked.log)
    if history is None:
        raise NotFoundError("no history was recorded in training")
    name = file_name(runs[0].found.name.rpartition("/")[2], "history")
    told = {"columns": list(history.columns), "notes": list(history.notes), "unit": history.unit}
    head = json.dumps({"file": name, **told})
    return pack(utf8(f'{head[:-1]},"figure":{figure_json(draw_history(history, asked.theme))}}}'))


def history_stamp(runs: Sequence[RunReader]) -> object:
    """What differs between two histories of these runs and the paths beside them; None where one is in an object store.

    Raises:
        GoneError: a run is not there any more.
    """
    stamps = []
    for run in runs:
        run.refuse_gone()
        stamp = run.stamp("run.json", "history.jsonl")
        if stamp is None:
            return None
        paths = {name: (path.unit, path.step.tobytes()) for name, path in paths_of(run).items()}
        stamps.append((stamp, tuple(paths.items())))
    return tuple(stamps)


def training_record(run: RunReader, named: bool) -> TrainingRecord:
    """What a run recorded while it was trained, and the paths of its landscapes.

    Args:
        named: give its name to its curves, as there are several runs.
    """
    run.refuse_gone()
    opened = Run(run.found.path)
    return TrainingRecord(
        run.found.name if named else "", opened.history, paths_of(run), opened.info.get("steps_per_epoch")
    )


def paths_of(run: RunReader) -> dict[str, ProjectedPath]:
    """The paths of the run itself on its landscapes, by their names; a landscape that cannot be read has none."""
    paths: dict[str, ProjectedPath] = {}
    for name in run.names():
        try:
            path = run.view(name).surface.path
        except (LandscapeError, OSError):
            continue  # which `api/run` tells
        own = None if path is None else path.of_own_run
        if own is not None and len(own.step):
            paths[name] = own
    return paths
