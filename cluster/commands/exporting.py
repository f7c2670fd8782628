"""`landscape export`: landscapes as pictures, pages and data, of one run or several, alone or compared."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Parameter

from cluster.runtime.logs import write_remark
from cluster.runtime.options import Flag, MaybeFlag, MaybeNumber, MaybeWhole
from landscape.core.errors import JobError, LandscapeError, StoreError, nearest, quoted
from landscape.core.folders import open_folder, run_labels
from landscape.views.figure_spec import DEFAULT_SPEC, MODE_TABLE, ComparisonSpec, FigureSpec, option_flag

if TYPE_CHECKING:
    from landscape.store.landscape import LandscapeStore
    from landscape.store.results import Run
    from landscape.surface.surface import Surface


# ----------------------------------------------------------------------------------------------------
# The options of figures: those of `landscape.views.figure`, with its texts as their help.

NAMES = {"--colours": ["--colours", "--colors"]}  # of options that have two
TYPES = {bool: Flag, bool | None: MaybeFlag, int | None: MaybeWhole, float | None: MaybeNumber}


def _options_as_dataclass(
    name: str, spec: type[FigureSpec], options: Sequence[Any], *more: tuple[str, Any, Any]
) -> type:
    """Make a dataclass with a field for each of these options of a spec, and with `more` fields."""
    types = get_type_hints(spec)
    made_fields: list[tuple[str, Any, Any]] = []
    for option in options:
        text, flag = option.metadata["help"], option_flag(option)
        parameter = Parameter(help=f"{text[:1].upper()}{text[1:]}.", name=NAMES.get(flag))
        kind = TYPES.get(types[option.name], str | None)
        kind = MaybeFlag if kind is Flag and option.default else kind  # one that is on gets --no-NAME
        kind = MaybeNumber if types[option.name] is float else kind
        made_fields.append((option.name, Annotated[kind, parameter], False if kind is Flag else None))

    def as_arguments(self: Any) -> dict[str, Any]:
        """The options that differ from their defaults, as the functions of `landscape.views` take them."""
        values = {option.name: getattr(self, option.name) for option in options}
        values |= {"title": False} if getattr(self, "no_title", False) else {}
        defaults = {option.name: option.default for option in options}
        return {name: value for name, value in values.items() if value is not None and value != defaults[name]}

    # Without `__module__` the class would belong to a standard module, and cyclopts would take it for one word.
    namespace = {"as_arguments": as_arguments, "__module__": __name__}
    return make_dataclass(name, [*made_fields, *more], frozen=True, namespace=namespace)


_COMMON = [option.name for option in FigureSpec.options()]
_OF_COMPARISONS = [option for option in ComparisonSpec.options() if option.name not in _COMMON]
_MODE = f"Compare landscapes, RUN:NAME each, in one figure: {', '.join(MODE_TABLE)}."
FigureOptions: Any = _options_as_dataclass(
    "FigureOptions", FigureSpec, FigureSpec.options("command"),
    ("no_title", Annotated[Flag, Parameter(help="No title.")], False),
)  # fmt: skip
ComparisonOptions: Any = _options_as_dataclass(
    "ComparisonOptions", ComparisonSpec, _OF_COMPARISONS,
    ("mode", Annotated[str | None, Parameter(help=_MODE)], None),
)  # fmt: skip

# ----------------------------------------------------------------------------------------------------


def export(
    run: str,
    name: str | None = None,
    *more: str,
    to: str = "html",
    out: Path | None = None,
    kind: str | None = None,
    observable: str = "loss",
    look: Annotated[FigureOptions, Parameter(name="*", group="How figures look")] = FigureOptions(),  # noqa: B008
    how: Annotated[ComparisonOptions, Parameter(name="*", group="Comparisons")] = ComparisonOptions(),  # noqa: B008
) -> None:
    """Write pictures and data.

    Parameters
    ----------
    run
        The run folder or URL, or a packed run; with --mode a landscape, RUN:NAME.
    name
        One landscape; default: all whose number of axes fits --kind and the format. This and what follows may be
        further runs: their files get names as RUN+NAME.png in one folder, and the report compares them. With --mode,
        RUN:NAME of further landscapes.
    more
        Further landscapes of the run; or further runs; with --mode further landscapes.
    to
        Formats, separated by commas: {formats}; report for the page of the whole run. csv writes the trajectory to a
        table of its own, NAME+path.csv, and measures of the run to run+measures.csv; status is 0 not computed, 1 ok, 2
        not finite, 3 quarantined (given up after several tries).
    out
        Folder to write to; default: RUN/export, for a URL or a packed run NAME-export here, for several runs
        comparison-export here.
    kind
        {kinds}; default: what suits the landscape.
    observable
        What to draw: loss, accuracy, …
    """

    formats = to.split(",")
    if how.mode is None and how.as_arguments():
        raise JobError(f"{next(iter(how.as_arguments()))}: goes with --mode, which compares landscapes; add it")
    if how.mode is not None:
        words = [run, *([name] if name is not None else []), *more]
        options = {"observable": observable, **look.as_arguments(), **how.as_arguments()}
        for path in export_comparison(words, how.mode, formats, out, ComparisonSpec.of(kind, options)):
            print(path, flush=True)
        return
    others, names = runs_or_names(run, [*([name] if name is not None else []), *more])
    if others:
        more_options = {"kind": kind, "observable": observable if observable != "loss" else None}
        options = {option: value for option, value in more_options.items() if value is not None} | look.as_arguments()
        paths = export_runs([run, *others], formats, out, options)
    else:
        paths = export_run(
            run, names, formats, out, FigureSpec(kind=kind, observable=observable, **look.as_arguments())
        )
    for path in paths:
        print(path, flush=True)


REPORT = "report"
MEASURES = "run+measures.csv"  # no landscape has a plus in its name
SEVERAL_RUNS = Path("comparison-export")  # the default folder of several runs, outside all of them


@dataclass(frozen=True)
class _Chosen:
    """A run to export.

    Attributes:
        names: the landscapes; none: all whose number of axes fits the kind and the format.
        label: what its files begin with; empty for the only run.
    """

    opened: Run
    names: tuple[str, ...] = ()
    label: str = ""

    def file(self, name: str) -> str:
        """The name of a file of this run; a label ends with a plus, which no landscape has in its name."""
        return f"{self.label}+{name}" if self.label else name


def export_run(
    run: str, names: Sequence[str], formats: Sequence[str], out: Path | None, spec: FigureSpec = DEFAULT_SPEC
) -> Iterator[Path]:
    """Write landscapes of a run in each format; yields the path of each file once it is written.

    Args:
        names: the landscapes; none: all whose number of axes fits the kind and the format.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: a format, kind or observable is unknown, or fits no landscape, or not all in `names`.
        LandscapeError: a landscape cannot be read; the others are written.
    """
    from landscape.store.results import open_run
    from landscape.views.exporting import FORMAT_TABLE

    chosen = _check_formats(formats, (*FORMAT_TABLE, REPORT))
    opened = open_run(run)
    yield from _write([_Chosen(opened, tuple(names))], chosen, out or _default_folder(run, opened.path), spec)


def runs_or_names(run: str, more: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words after the first run of a command: as further runs, or as names of landscapes of the first run.

    A word is a run only if the first run has no landscape of this name. If one word is a run, all are.
    """
    from landscape.store.results import open_run

    if not any(_is_run(word) and word not in open_run(run) for word in more):
        return [], list(more)
    return list(more), []


def _is_run(word: str) -> bool:
    from landscape.store.packed_run import is_packed_run

    return open_folder(word).exists() or is_packed_run(word)


def export_runs(
    runs: Sequence[str], formats: Sequence[str], out: Path | None, options: Mapping[str, Any] | None = None
) -> Iterator[Path]:
    """Write several runs into one folder: the page that compares them, and files as LABEL+NAME.png; yields their paths.

    Args:
        options: options of figures; the page alone has controls of its own, and takes none.

    Raises:
        NotFoundError: a run does not exist.
        JobError: as `export_run`, or an option of figures is given for the page alone.
        LandscapeError: a landscape cannot be read; all else is written.
    """
    from landscape.store.results import open_run
    from landscape.views.exporting import FORMAT_TABLE

    chosen = _check_formats(formats, (*FORMAT_TABLE, REPORT))
    if options and chosen == [REPORT]:
        option = next(iter(options))
        raise JobError(
            f"{option}: must not be given for several runs, whose page has controls of its own; leave it out"
        )
    opened = {run.path: run for run in map(open_run, runs)}
    labelled = zip(opened.values(), _labels(list(opened)), strict=True)
    yield from _write(
        [_Chosen(run, label=label) for run, label in labelled], chosen, out or SEVERAL_RUNS, FigureSpec(**options or {})
    )


def _labels(paths: Sequence[str]) -> list[str]:
    """A name for the files of each run: the shortest end of its path that no other one has."""
    labels: list[str] = []
    for label in (label.replace("/", "-") for label in run_labels(paths)):
        taken = sum(other == label for other in labels)
        labels.append(f"{label}-{taken + 1}" if taken else label)
    return labels


def _write(runs: Sequence[_Chosen], formats: Sequence[str], folder: Path, spec: FigureSpec) -> Iterator[Path]:
    """Write the report and the landscapes of runs, after everything was checked that can be refused."""
    from landscape.core.lock import driver_alive
    from landscape.views.exporting import (
        FORMAT_TABLE,
        ExportRequest,
        browser,
        files_beside,
        name_export,
        write_export,
        write_rows,
    )
    from landscape.views.prepare.tables import table_csv
    from landscape.views.prepare.words import of_driver
    from landscape.views.report import write_report

    endings = [ending for ending in formats if ending != REPORT]
    fitting = _fitting_of_runs(runs, endings, spec)
    folder.mkdir(parents=True, exist_ok=True)
    if REPORT in formats:
        opened = [run.opened for run in runs]
        yield write_report(opened if len(runs) > 1 else opened[0], folder / "report.html")
    unreadable: dict[str, str] = {}
    # One browser draws all pictures, since its start takes longer than drawing.
    pictures = any(FORMAT_TABLE[ending].pictures for ending in endings)
    with browser() if pictures else contextlib.nullcontext() as drawing:
        request = ExportRequest(spec, browser=drawing)
        for run, written in zip(runs, fitting, strict=True):
            broken = {} if run.names else dict(run.opened.unreadable)
            if "csv" in formats and not run.names and (rows := table_csv(run.opened.measures))[1:]:
                yield write_rows(rows, folder / run.file(MEASURES))
            names = dict.fromkeys(run.names)
            alive = driver_alive(run.opened.path)
            for stored in (run.opened[name] for name in names) if names else _readable(run.opened, broken):
                surface = of_driver(stored, alive)
                for ending in (ending for ending in endings if surface.name in written[ending]):
                    path = folder / run.file(name_export(surface, ending, spec))
                    yield write_export(surface, ending, path, request)
                    yield from files_beside(surface, ending, path)
            where = f"{run.opened.path}: " if len(runs) > 1 else ""
            unreadable |= {f"{where}{name}": reason for name, reason in broken.items()}
    _refuse_broken(unreadable)


def _fitting_of_runs(runs: Sequence[_Chosen], endings: Sequence[str], spec: FigureSpec) -> list[dict[str, set[str]]]:
    """For each run the names of the landscapes that fit, by format; a run without any is told, unless all are without.

    Raises:
        JobError: a landscape lacks the observable, or no landscape fits a format and the kind.
    """
    stores = [_stores(run.opened.path, dict.fromkeys(run.names) or run.opened, skip=not run.names) for run in runs]
    if endings:
        for its in stores:
            _check_observables(its, spec.observable)
    fitting: list[dict[str, set[str]]] = [{} for _ in runs]
    for ending in endings:
        refused: dict[str, JobError] = {}
        for run, its, found in zip(runs, stores, fitting, strict=True):
            try:
                found[ending] = _fitting(its, ending, spec.kind, all_must=bool(run.names))
            except JobError as error:
                found[ending], refused[run.label] = set(), error
        if len(refused) == len(runs):
            raise next(iter(refused.values()))
        for label, reason in refused.items():
            write_remark(f"nothing of run {label} is written as {ending}: {reason}")
    return fitting


def export_comparison(
    landscapes: Sequence[str], mode: str, formats: Sequence[str], out: Path | None, spec: ComparisonSpec
) -> list[Path]:
    """Write the figure that compares landscapes, RUN:NAME each, as `landscape.views.compare` draws it.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: a text is not RUN:NAME, a format cannot show figures, or the landscapes cannot be compared so.
    """
    from landscape.core.lock import driver_alive
    from landscape.store.results import open_run
    from landscape.views.draw.comparison import comparison_name, draw_comparison, side_by_side
    from landscape.views.exporting import DRAWN_FORMATS, write_drawn
    from landscape.views.prepare.comparison import item_labels
    from landscape.views.prepare.words import of_driver

    chosen = _check_formats(formats, DRAWN_FORMATS)
    parts = [(run, name) for run, _, name in (text.rpartition(":") for text in landscapes)]
    for text, (run, name) in zip(landscapes, parts, strict=True):
        if not run or not name or "/" in name:
            raise JobError(f"run: must be RUN:NAME with --mode, such as runs/mine:minimum, not {quoted(text)}")
    opened = {run: open_run(run) for run, _ in parts}
    surfaces = [of_driver(opened[run][name], driver_alive(opened[run].path)) for run, name in parts]
    labels = item_labels([(opened[run].path, name) for run, name in parts])
    figures = draw_comparison(list(zip(labels, surfaces, strict=True)), mode, spec)
    drawn = side_by_side([one.figure for one in figures])
    return write_drawn({comparison_name(figures, mode): drawn}, out or SEVERAL_RUNS, chosen)


def _refuse_broken(broken: Mapping[str, str]) -> None:
    """Raise the error of landscapes that could not be read, once all others are written."""
    if broken:
        others = f" (and {len(broken) - 1} more of its landscapes)" if len(broken) > 1 else ""
        raise LandscapeError(f"{next(iter(broken.values()))}{others}")


def _check_formats(formats: Sequence[str], known: Sequence[str]) -> list[str]:
    """The formats without blanks; refuses unknown ones."""
    names = [name.strip() for name in formats]
    for name in names:
        if name not in known:
            raise JobError(f"to: unknown format {quoted(name)}; {nearest(name, known)}")
    return names


def _stores(run: str, names: Iterable[str], *, skip: bool) -> list[LandscapeStore]:
    """The stores of landscapes.

    Args:
        skip: leave out landscapes whose metadata cannot be read; `_refuse_broken` reports them later.
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
    """The names of the landscapes whose number of axes fits a format and a kind; says which are left out."""
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
    """Every surface that can be read, one in memory at a time; the errors of the others are added to `broken`."""
    for name in opened:
        try:
            yield opened[name]
        except StoreError:
            raise
        except LandscapeError as error:
            broken[name] = str(error)


def _default_folder(run: str, path: str) -> Path:
    """RUN/export; for a run in an object store, or a packed one, NAME-export in the current directory."""
    elsewhere = "://" in path or os.path.isfile(run)
    return Path(f"{path.rpartition('/')[2]}-export") if elsewhere else Path(path) / "export"
