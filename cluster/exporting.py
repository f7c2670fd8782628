"""Which files `landscape export` writes, and under which names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from landscape.errors import JobError, LandscapeError, StoreError, nearest, shown
from landscape.folders import open_folder
from landscape.folders.lock import driver_alive
from landscape.results import Run, open_run
from landscape.store import LandscapeStore
from landscape.surface import Surface, check_observable

REPORT = "report"
MEASURES = "run+measures.csv"  # no landscape has a plus in its name
SEVERAL_RUNS = Path("comparison-export")  # where the page of several runs goes, as it belongs to none of them


def export_run(
    run: str,
    name: str | None,
    formats: Sequence[str],
    out: Path | None,
    kind: str | None,
    observable: str,
    log: bool | None,
    **look: Any,
) -> Iterator[Path]:
    """Write each landscape (or the one named) in each format; yields the paths as they are written.

    Args:
        look: further options of `landscape.views.figure`.

    Raises:
        NotFoundError: no such run or landscape.
        JobError: an unknown format, kind or observable.
    """
    from landscape.views import write_report
    from landscape.views.exports.browser import browser
    from landscape.views.exports.export import FORMAT_TABLE, export, export_name, files_beside
    from landscape.views.exports.tables import write_rows
    from landscape.views.prepared.measures import table_csv
    from landscape.views.prepared.wording import stopped

    wanted = _checked_formats(formats, (*FORMAT_TABLE, REPORT))
    opened = open_run(run)
    folder = out or _default_folder(opened.path)
    folder.mkdir(parents=True, exist_ok=True)
    broken = {} if name else dict(opened.unreadable)
    surfaces = [opened[name]] if name else _readable(opened, broken)
    alive = driver_alive(opened.path)
    of_surfaces = [ending for ending in wanted if ending != REPORT]
    if of_surfaces:
        _check_observables(opened.path, [name] if name else opened, observable)
    if REPORT in wanted:
        write_report(opened, folder / "report.html")
        yield folder / "report.html"
    if "csv" in wanted and name is None and (rows := table_csv(opened.measures))[1:]:
        yield write_rows(rows, folder / MEASURES)
    # One browser for all pictures: starting it costs more than drawing.
    pictures = any(FORMAT_TABLE[ending].pictures for ending in of_surfaces)
    with browser() if pictures else contextlib.nullcontext() as drawing:
        options: dict[str, Any] = {"kind": kind, "log": log, "in_browser": drawing} | look
        for read in surfaces:
            surface = read if alive else stopped(read)
            paths = [folder / export_name(surface, ending, kind, observable, log) for ending in of_surfaces]
            for ending, path in zip(of_surfaces, paths, strict=True):
                yield export(surface, ending, path, observable=observable, **options)
                yield from files_beside(surface, ending, path)
    _refuse_broken(broken)


def runs_or_name(run: str, more: Sequence[str]) -> tuple[list[str], str | None]:
    """What stands after the first run in a command: further runs, or the name of one landscape of it, or nothing.

    A single word is a run only where the first run has no landscape of that name.
    """
    if len(more) == 1 and not (open_folder(more[0]).exists() and more[0] not in open_run(run)):
        return [], more[0]
    return list(more), None


def export_runs(
    runs: Sequence[str], formats: Sequence[str], out: Path | None, asked: Mapping[str, Any] | None = None
) -> Iterator[Path]:
    """Write the page of several runs, which compares them; yields its path.

    Args:
        asked: the options of figures that were given, of which the page takes none.

    Raises:
        NotFoundError: one of them does not exist.
        JobError: another format is asked for, an unknown one, or an option of figures.
        LandscapeError: a landscape cannot be read; the page is written without it.
    """
    from landscape.views import write_report
    from landscape.views.exports.export import FORMAT_TABLE

    wanted = _checked_formats(formats, (*FORMAT_TABLE, REPORT))
    if wanted != [REPORT]:
        raise JobError(
            f"to: must be report for several runs, not {shown(','.join(wanted))}; or export each run by itself"
        )
    if asked:
        option = next(iter(asked))
        raise JobError(
            f"{option}: must not be given for several runs, whose page has controls of its own; leave it out"
        )
    opened = [open_run(run) for run in runs]
    folder = out or SEVERAL_RUNS
    folder.mkdir(parents=True, exist_ok=True)
    yield write_report(opened, folder / "report.html")
    broken = {f"{run.path}: {name}": reason for run in opened for name, reason in run.unreadable.items()}
    _refuse_broken(broken)


def _refuse_broken(broken: Mapping[str, str]) -> None:
    """Tell of landscapes that could not be read, once all others are written.

    Raises:
        LandscapeError: there are any.
    """
    if broken:
        others = f" (and {len(broken) - 1} more of its landscapes)" if len(broken) > 1 else ""
        raise LandscapeError(f"{next(iter(broken.values()))}{others}")


def _checked_formats(formats: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names of formats as they are known.

    Raises:
        JobError: one of them is not known.
    """
    wanted = [name.strip() for name in formats]
    for name in wanted:
        if name not in known:
            raise JobError(f"to: unknown format {shown(name)}; {nearest(name, known)}")
    return wanted


def _check_observables(run: str, names: Iterable[str], observable: str) -> None:
    """Refuse an observable that a landscape does not have, before any file is written.

    A landscape whose metadata cannot be read is passed over: it is told of when the others are written.

    Raises:
        JobError: a landscape has no such observable.
    """
    for name in names:
        try:
            store = LandscapeStore.open(run, name)
        except StoreError:
            raise
        except LandscapeError:
            continue
        check_observable(name, observable, (*store.arrays.value_names, *store.record.surfaces))


def _readable(opened: Run, broken: dict[str, str]) -> Iterator[Surface]:
    """Every surface that can be read, one in memory at a time; the others join `broken`."""
    for name in opened:
        try:
            yield opened[name]
        except StoreError:
            raise
        except LandscapeError as error:
            broken[name] = str(error)


def _default_folder(run: str) -> Path:
    """Inside a run folder; beside us for a run in an object store."""
    return Path(f"{run.rpartition('/')[2]}-export") if "://" in run else Path(run) / "export"
