"""`landscape export`: pictures and data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cluster.runtime.logs import write_remark
from cluster.runtime.options import Flag, MaybeFlag, MaybeNumber, MaybeWhole, given_options
from landscape.core.errors import JobError, LandscapeError, StoreError, nearest, quoted
from landscape.core.folders import open_folder
from landscape.core.lock import driver_alive

if TYPE_CHECKING:
    from landscape.store.landscape import LandscapeStore
    from landscape.store.results import Run
    from landscape.surface.surface import Surface


@dataclass(frozen=True)
class FigureOptions:
    """How figures are drawn: the options of `landscape.views.figure`, where None leaves the choice to it."""

    log: MaybeFlag = None
    """Logarithmic scale; default: where the values span more than two decades."""
    levels: MaybeWhole = None
    """About how many contour lines; they lie at round values. Default: about 12."""
    exact_levels: Flag = False
    """Exactly that many lines, evenly spaced, whatever their values."""
    zmin: MaybeNumber = None
    """The low end of the range drawn."""
    zmax: MaybeNumber = None
    """The high end of the range drawn."""
    clip: MaybeNumber = None
    """The percentile of the values at which the range ends, in place of --zmax."""
    uncertainty: Flag = False
    """Mark where the values cannot be told from that of the origin."""
    extrema: Flag = False
    """Mark the minima above the noise of sampling, and the saddles at which they merge."""
    colours: Annotated[str | None, Parameter(name=["--colours", "--colors"])] = None
    """{colours}. Default: viridis, and rdbu around 0 for values on both sides of it."""
    theme: str | None = None
    """light or dark."""
    preset: str | None = None
    """For print: {presets}, by its width; words of 7 to 9 pt, no title, no caption."""
    width: str | None = None
    """The width of the figure: 3.25in, 8cm, 80mm, 240pt or 312px; words keep their size."""
    font: str | None = None
    """The family of the font."""
    font_size: str | None = None
    """The size of the words, such as 8pt."""
    title: str | None = None
    """The title; default: the names of the landscape and of what is drawn."""
    no_title: Flag = False
    """No title."""
    caption: MaybeFlag = None
    """The caption below the figure; default: with one, unless --preset is given."""

    def of_figure(self) -> dict[str, Any]:
        """The options that were given, as `landscape.views.figure` takes them; `log` apart."""
        given = given_options(self)
        given.pop("log", None)
        if given.pop("no_title", False):
            given["title"] = False
        if "colours" in given:
            given["colour_scale"] = given.pop("colours")
        return given


PLAIN = FigureOptions()


def export(
    run: str,
    name: str | None = None,
    *more: str,
    to: str = "html",
    out: Path | None = None,
    kind: str | None = None,
    observable: str = "loss",
    look: Annotated[FigureOptions, Parameter(name="*", group="How figures look")] = PLAIN,
) -> None:
    """Write pictures and data.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        One landscape; default: all whose number of axes fits --kind and the format. With --to report, this and what
        follows may be further runs: the page compares them.
    more
        Further landscapes of the run; or further runs.
    to
        Formats, separated by commas: {formats}; report for the page of the whole run. csv writes the trajectory to a
        table of its own, NAME+path.csv, and measures of the run to run+measures.csv; status is 0 not computed, 1 ok, 2
        not finite, 3 quarantined (given up after several tries).
    out
        Folder to write to; default: RUN/export, for a URL NAME-export here, for several runs comparison-export here.
    kind
        {kinds}; default: what suits the landscape.
    observable
        What to draw: loss, accuracy, …
    """

    formats = to.split(",")
    others, names = runs_or_names(run, [*([name] if name is not None else []), *more])
    if others:
        of_one = {"kind": kind, "observable": observable if observable != "loss" else None, "log": look.log}
        asked = {option: value for option, value in of_one.items() if value is not None} | look.of_figure()
        paths = export_runs([run, *others], formats, out, asked)
    else:
        paths = export_run(run, names, formats, out, kind, observable, look.log, **look.of_figure())
    for path in paths:
        print(path, flush=True)


REPORT = "report"
MEASURES = "run+measures.csv"  # no landscape has a plus in its name
SEVERAL_RUNS = Path("comparison-export")  # where the page of several runs goes, as it belongs to none of them


def export_run(
    run: str,
    names: Sequence[str],
    formats: Sequence[str],
    out: Path | None,
    kind: str | None,
    observable: str,
    log: bool | None,
    **look: Any,
) -> Iterator[Path]:
    """Write each landscape (or those named) in each format; yields the paths as they are written.

    Args:
        names: of landscapes; none: all of the run whose number of axes fits the kind and the format.
        look: further options of `landscape.views.figure`.

    Raises:
        NotFoundError: no such run or landscape.
        JobError: an unknown format, kind or observable, or one that fits none of them, or not all that are named.
    """
    from landscape.store.results import open_run
    from landscape.views.exporting import FORMAT_TABLE, browser, export, export_name, files_beside, write_rows
    from landscape.views.prepare.tables import table_csv
    from landscape.views.prepare.words import stopped
    from landscape.views.report import write_report

    wanted = _check_formats(formats, (*FORMAT_TABLE, REPORT))
    opened = open_run(run)
    folder = out or _default_folder(opened.path)
    of_surfaces = [ending for ending in wanted if ending != REPORT]
    stores = _stores(opened.path, dict.fromkeys(names) or opened, skip=not names)
    if of_surfaces:
        _check_observables(stores, observable)
    written = {ending: _fitting(stores, ending, kind, all_must=bool(names)) for ending in of_surfaces}
    folder.mkdir(parents=True, exist_ok=True)
    broken = {} if names else dict(opened.unreadable)
    surfaces = (opened[name] for name in dict.fromkeys(names)) if names else _readable(opened, broken)
    alive = driver_alive(opened.path)
    if REPORT in wanted:
        write_report(opened, folder / "report.html")
        yield folder / "report.html"
    if "csv" in wanted and not names and (rows := table_csv(opened.measures))[1:]:
        yield write_rows(rows, folder / MEASURES)
    # One browser for all pictures: starting it costs more than drawing.
    pictures = any(FORMAT_TABLE[ending].pictures for ending in of_surfaces)
    with browser() if pictures else contextlib.nullcontext() as drawing:
        options: dict[str, Any] = {"kind": kind, "log": log, "in_browser": drawing} | look
        for read in surfaces:
            surface = read if alive else stopped(read)
            endings = [ending for ending in of_surfaces if surface.name in written[ending]]
            paths = [folder / export_name(surface, ending, kind, observable, log) for ending in endings]
            for ending, path in zip(endings, paths, strict=True):
                yield export(surface, ending, path, observable=observable, **options)
                yield from files_beside(surface, ending, path)
    _refuse_broken(broken)


def runs_or_names(run: str, more: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands after the first run in a command: further runs, or the names of landscapes of it, or nothing.

    A word is a run only where the first run has no landscape of that name; beside a run, all words are runs.
    """
    from landscape.store.results import open_run

    if not any(open_folder(word).exists() and word not in open_run(run) for word in more):
        return [], list(more)
    return list(more), []


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
    from landscape.store.results import open_run
    from landscape.views.exporting import FORMAT_TABLE
    from landscape.views.report import write_report

    wanted = _check_formats(formats, (*FORMAT_TABLE, REPORT))
    if wanted != [REPORT]:
        raise JobError(
            f"to: must be report for several runs, not {quoted(','.join(wanted))}; or export each run by itself"
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
    """Tell of landscapes that could not be read, once all others are written."""
    if broken:
        others = f" (and {len(broken) - 1} more of its landscapes)" if len(broken) > 1 else ""
        raise LandscapeError(f"{next(iter(broken.values()))}{others}")


def _check_formats(formats: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names of formats as they are known."""
    wanted = [name.strip() for name in formats]
    for name in wanted:
        if name not in known:
            raise JobError(f"to: unknown format {quoted(name)}; {nearest(name, known)}")
    return wanted


def _stores(run: str, names: Iterable[str], *, skip: bool) -> list[LandscapeStore]:
    """The stores of landscapes.

    Args:
        skip: pass over those whose metadata cannot be read, as they are told of when the others are written.
    """
    from landscape.store.landscape import LandscapeStore

    stores = []
    for name in names:
        try:
            stores.append(LandscapeStore.open(run, name))
        except StoreError:
            raise
        except LandscapeError:
            if not skip:
                raise
    return stores


def _check_observables(stores: Iterable[LandscapeStore], observable: str) -> None:
    """Refuse an observable that a landscape does not have, before any file is written."""
    from landscape.surface.surface import check_observable

    for store in stores:
        check_observable(store.name, observable, (*store.arrays.value_names, *store.record.surfaces))


def _fitting(stores: Iterable[LandscapeStore], ending: str, kind: str | None, *, all_must: bool) -> set[str]:
    """The names of the landscapes that a format and a kind are for, by their axes; says which are left out."""
    from landscape.views.exporting import check_axes

    fitting, left, refused = set[str](), list[str](), list[JobError]()
    for store in stores:
        axes = len(store.arrays.axis_names)
        try:
            check_axes(store.name, axes, ending, kind)
        except JobError as error:
            left.append(f"{store.name} ({axes} {'axis' if axes == 1 else 'axes'})")
            refused.append(error)
        else:
            fitting.add(store.name)
    if refused and (all_must or not fitting):
        raise refused[0]
    if left:
        what = "stl is" if ending == "stl" else f"the kind {quoted(kind)} is"
        write_remark(f"left out of {ending}: {', '.join(left)}; {what} for another number of axes")
    return fitting


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
