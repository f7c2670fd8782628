"""`landscape init`, `list`, `status`, `validate`, `rename`, `compact`, `rm`, `extend` and `refine`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cluster.commands.output import (
    ANYONE,
    AS_RECORDED,
    Callback,
    JobRunner,
    Json,
    Workers,
    requested_landscapes,
    show,
    with_tables,
)
from cluster.runtime.console import align, divert_stdout
from cluster.runtime.logs import write_remark
from cluster.runtime.options import Duration, Flag, MaybeWhole, Words, pairs_in, ranges_in
from landscape.core.errors import DONE, FAILED, PARTIAL, JobError, LandscapeError, NotFoundError, flat, quoted
from landscape.core.text import seconds_text

if TYPE_CHECKING:
    from landscape.store.runs import RunContents

LONGEST_NAMES = 60


def list_(folder: str = ".", *, older_than: Duration = None, json: Json = False) -> int:
    """List the runs below a folder: state, evaluations, size on disk, when they were last written, landscapes.

    Exit code 1 where something of a run cannot be read.

    Parameters
    ----------
    folder
        A folder, searched at every depth, or a URL such as s3://bucket/runs.
    older_than
        Only runs that were last written longer ago, such as 30d, 12h or 90min, and that nothing writes now.
    """
    from landscape.store.status import list_runs

    rows = list_runs(folder, older_than)
    if rows or json:
        show(rows, json, list_text(rows))
    else:
        write_remark(f"no runs in {flat(folder)}" + ("" if older_than is None else " are that old"))
    return DONE if all(row["readable"] for row in rows) else FAILED


def list_text(rows: list[dict[str, Any]]) -> str:
    """The rows of `list_runs` as aligned lines, each with its problem below it."""
    head_cells = ("run", "state", "points", "size", "trajectory", "checkpoints", "written", "from", "landscapes")
    imported = any(row["source"] for row in rows)
    cells = [head_cells, *map(_cells, rows)]
    head, *lines = align(cells if imported else [(*line[:-2], line[-1]) for line in cells])
    problems = [f"\n  {flat(row['problem'], 1000)}" if row["problem"] else "" for row in rows]
    return "\n".join([head, *(line + problem for line, problem in zip(lines, problems, strict=True))])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    names = [landscape["name"] for landscape in row["landscapes"] or []]
    age = row["age_seconds"]
    return (
        flat(row["name"]),
        state_text(row),
        f"{row['done']}/{row['points']}",
        size_text(row["bytes"]),
        *(size_text(row["parts"][part]) if row["parts"][part] else "" for part in ("trajectory", "checkpoints")),
        "" if age is None else f"{age_text(age)} ago",
        flat(row["source"] or "", LONGEST_NAMES),
        flat(", ".join(names), LONGEST_NAMES),
    )


def state_text(row: dict[str, Any]) -> str:
    """The state of a run's landscapes, and of a training that is running; without landscapes that of the training."""
    if row["state"] == "empty" and row["training"]:
        return f"training {row['training']}"
    return f"{row['state']}, training" if row["training"] == "running" else str(row["state"])


def age_text(seconds: float) -> str:
    """A duration in its largest unit alone, in whole days from two days on."""
    return f"{seconds / 86400:.0f} days" if seconds >= 2 * 86400 else seconds_text(float(round(seconds)))


def size_text(count: int | None) -> str:
    """A number of bytes in the largest unit of which it has at least one.

    >>> size_text(1536)
    '1.5 KiB'
    """
    if count is None:
        return "unknown"
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.4g} {units[0]}"


def init(folder: Path = Path()) -> None:
    """Write a commented job file and a callback to start from.

    Parameters
    ----------
    folder
        Where to write job.yaml and my_problem.py; existing files are never replaced.
    """
    from importlib.resources import files

    names = ("job.yaml", "my_problem.py")
    existing = [name for name in names if (folder / name).exists()]
    if existing:
        raise JobError(f"folder: {quoted(str(folder))} already holds {' and '.join(existing)}; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        template = files("cluster.commands").joinpath("templates", name).read_text()
        (folder / name).write_text(with_tables(template, " | ".join))
        print(folder / name)
    write_remark(f"next: landscape plan {folder / 'job.yaml'}")


def rename(run: str, name: str, new: str) -> None:
    """Give a landscape another name, also in its record. A job goes on with it where its `name:` is the new one.

    Refused where a driver writes the run, and where the new name is taken or differs from another one in case alone.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape.
    new
        Its name from now on: letters, digits, '.', '-' and '_'.
    """
    from landscape.store.results import rename_landscape

    rename_landscape(run, name, new)
    write_remark(f"{flat(name)} is {flat(new)} now; a job that goes on with it needs `name: {flat(new)}`", "renamed")


def compact(run: str, name: str | None = None) -> int:
    """Store landscapes that are complete in few files, for file systems that count them; every value stays as it is.

    The files are copied, compared with the old ones, and then put in their place at one moment. Killed in the middle,
    the landscape is whole, and the same command goes on. Refused where a driver writes the run, and where the landscape
    is incomplete, or is being extended or refined. Without NAME, exit code 4 where some could not be compacted.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape; default: all of the run.
    """
    from landscape.store.compact import compact_landscape
    from landscape.store.results import open_run

    opened, code = open_run(run), DONE
    for one in requested_landscapes(opened, name):
        try:
            found = compact_landscape(opened.path, one)
        except JobError as error:
            if name is not None:
                raise
            write_remark(str(error), "not compacted", landscape=one)
            code = PARTIAL
            continue
        fewer = found.files < found.files_before
        did = (
            f"{found.files_before} files are {found.files} now" if fewer else f"{found.files} files, no fewer to be had"
        )
        write_remark(f"{flat(one)}: {did}", "compacted", landscape=one)
    return code


def rm(
    run: str,
    *names: str,
    trajectory: Flag = False,
    checkpoints: Flag = False,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="")] = False,
) -> int:
    """Remove a run, or landscapes of it with all their values; on a terminal it lists what goes and asks first.

    An extension that is begun, NAME.extending, goes with its landscape; by its own name it is removed alone. Refused
    where something writes the run, and where something lies in a landscape that this software did not write; then
    nothing is removed. Other files in the run, and links, are left, and named. Killed in the middle, the same command
    goes on.

    Parameters
    ----------
    run
        The run folder or URL.
    names
        The landscapes; `landscape status RUN` lists them. Default: the whole run.
    trajectory
        Remove the snapshots alone; landscapes keep their values, but what needs weights ends, such as `extend`.
    checkpoints
        Remove the checkpoints alone; a training that is not done cannot go on.
    yes
        Do not ask.
    """
    from landscape.store.results import remove_landscapes, remove_run

    parts = [part for part, chosen in (("trajectory", trajectory), ("checkpoints", checkpoints)) if chosen]
    if names and parts:
        raise JobError(f"names: cannot be given with --{parts[0]}; give two commands")
    if "" in names:  # often of an unset variable
        raise JobError("names: must be names of landscapes, not ''; name none to remove the whole run")
    if not yes and not sys.stdin.isatty():
        raise JobError("yes: is needed where nobody can be asked; give --yes to remove without asking")
    if names:
        removed = remove_landscapes(run, names, (lambda path, names: True) if yes else _ask)
        gone = [(flat(name), name) for name in removed]
    else:
        contents = remove_run(run, parts, (lambda path, contents: True) if yes else _ask_of_run)
        gone = [] if contents is None else [(text, "") for text in _contents_lines(run, contents)]
        if contents is not None and not gone:
            write_remark(f"nothing of that is in {flat(run)}")
            return DONE
        if contents is not None and contents.foreign:
            left = flat(", ".join(contents.foreign), 1000)
            write_remark(f"left in {flat(run)}, as it is no part of the run: {left}", "left")
    if not gone:
        write_remark("nothing was removed")
        return FAILED
    for text, name in gone:
        write_remark(f"removed {text} from {flat(run)}", "removed", landscape=name)
    return DONE


def _ask_of_run(run: str, contents: RunContents) -> bool:
    """List on stderr what of a run is removed, and what is left, and ask."""
    from landscape.store.status import list_runs

    row = next((row for row in list_runs(run) if row["run"] == run), None)  # None where only a lock is left
    about = ""
    if row is not None:
        age = row["age_seconds"]
        about = f" ({size_text(row['bytes'])}{'' if age is None else f', written {age_text(age)} ago'})"
    print(f"run {flat(run)}{about}:", file=sys.stderr)
    for text in _contents_lines(run, contents, row["parts"] if row else {}):
        print(f"  remove {text}", file=sys.stderr)
    if contents.foreign:
        print(f"  leave {flat(', '.join(contents.foreign), 1000)}", file=sys.stderr)
    return _confirm("remove this? [y/N] ")


def _contents_lines(run: str, contents: RunContents, sizes: Mapping[str, int | None] | None = None) -> list[str]:
    """The parts of a run in words, without those that are empty."""
    from landscape.store.landscape import LandscapeStore

    sizes = sizes or {}
    counts = {"landscapes": len(contents.landscapes), **{part: len(files) for part, files in contents.files.items()}}
    lines = []
    for part, count in counts.items():
        size = f" ({size_text(sizes[part])})" if sizes.get(part) else ""
        if count and part == "landscapes":
            stores = [LandscapeStore.find(run, name) if sizes else None for name in contents.landscapes]
            described = [_describe(*one) for one in zip(contents.landscapes, stores, strict=True)] if sizes else []
            lines.append(f"landscapes{size}: {', '.join(described or map(flat, contents.landscapes))}")
        elif count:
            noun = {"trajectory": "the trajectory", "checkpoints": "the checkpoints"}.get(part, "the run's other files")
            lines.append(f"{noun}{size}: {count} file{'s' * (count > 1)}")
    return lines


def _ask(run: str, names: list[str]) -> bool:
    """Ask on stderr whether these landscapes shall be removed."""
    from landscape.store.landscape import LandscapeStore

    stores = [LandscapeStore.find(run, name) for name in names]
    parts = [_describe(name, store) for name, store in zip(names, stores, strict=True)]
    return _confirm(f"remove {', '.join(parts)} from {flat(run)}? [y/N] ")


def _confirm(question: str) -> bool:
    """Ask on stderr, since stdout is for data; no answer means no."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _describe(name: str, store: object) -> str:
    shape = getattr(store, "shape", ())
    return f"{flat(name)} ({' × '.join(map(str, reversed(shape)))} points)" if shape else f"{flat(name)} (half made)"


def status(
    run: str,
    *,
    address: str | None = None,
    allow_open: Flag = False,
    exit_code: Flag = False,
    json: Json = False,
) -> int:
    """Show what is done, missing and failed, and the rate, by landscape; of a job that was sent also its state.

    Exit code 1 where something of the run cannot be read; the state of a job changes no code but with `--exit-code`.
    `--json` has it: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED on Ray, the words of Slurm and Kubernetes there,
    UNREACHABLE where the cluster does not answer, UNKNOWN where a head was started anew and has forgotten the job.

    Parameters
    ----------
    run
        The run folder or URL, which may be read at any moment of a running job, or what `landscape submit` printed.
    address
        The dashboard's URL of a job that was sent; default: where it was sent to. Not asked where RUN can be read.
    allow_open
        Also talk to a cluster that is not on this machine and asks for no token.
    exit_code
        End with 0 only where everything that was begun is complete: 4 where points are missing or given up or something
        still runs, 1 where a training or a job failed, or the job's own code, 130 where it was cancelled on Ray, 5
        where its cluster does not answer.
    """
    from cluster.commands.submit import code_of_job, job_status, job_status_text, names_a_job
    from cluster.runtime.status import code_of_run, is_readable, run_status, status_text

    def show_job() -> int:
        job = job_status(run, address, allow_open)
        show(job, json, job_status_text(job))
        return code_of_job(job) if exit_code else DONE

    if names_a_job(run):
        return show_job()
    try:
        run_state = run_status(run)
    except LandscapeError as error:
        if "/" in run or os.path.isfile(run):
            raise
        if address is not None:
            return show_job()
        if not isinstance(error, NotFoundError):
            raise
        raise NotFoundError(
            f"{quoted(run)} is no run here, nor a job that was sent from here; name the run's folder or URL, or give "
            "the job's --address"
        ) from None
    show(run_state, json, status_text(run_state))
    if exit_code:
        return code_of_run(run_state)
    return DONE if is_readable(run_state) else FAILED


def validate(run: str, *, json: Json = False) -> int:
    """Read every chunk; check schema, checksums and digests. Exit code 1 where something is damaged.

    Parameters
    ----------
    run
        The run folder or URL.
    """
    from cluster.runtime.status import validate_run, validation_text

    validation = validate_run(run)
    show(validation, json, validation_text(validation))
    return FAILED if validation["damaged"] else DONE


# ----------------------------------------------------------------------------------------------------
# More of a landscape: samples, observables, a wider range, a finer grid; every stored value is kept.

OPTION_NAMES = {"num_samples": "samples", "observables": "observable", "ranges": "range"}


def extend(
    run: str,
    name: str,
    *,
    samples: MaybeWhole = None,
    observable: Words = None,
    range: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    accuracy: str | None = None,
    budget: str | None = None,
    plan: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Add samples, observables or a wider range to a landscape that is complete; every value that is known is kept.

    The result is what asking for all of it at once with the same plan would have given, to the bit; a refined landscape
    gets samples and observables level by level. It is computed as NAME.extending and takes the place of NAME when it is
    complete; interrupted, the same command goes on, and once complete it does nothing.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape.
    samples
        How many samples it shall have; the ones it has are the first of them.
    observable
        What observe returns by now and the landscape does not hold; may be repeated.
    range
        A wider range by whole steps, LOW,HIGH for all axes or LOW,HIGH,LOW,HIGH for each.
    accuracy
        How true the picture of a landscape with an accuracy shall become, such as 0.5% of its relief.
    budget
        What that may cost in all, such as "10 min" or "1e6 evaluations"; default: no limit.
    plan
        Show what it costs, step by step where several things are asked for, and write nothing.
    """
    who.check()
    from cluster.runtime.status import run_status, status_text
    from landscape.compute.extend import BY_ROUNDS, More, steps_left, truer_job
    from landscape.compute.extend import extend as extend_landscape
    from landscape.compute.planning import plan_job, plan_text

    folder, by_rounds = callback.folder_of(run), accuracy is not None or budget is not None
    if by_rounds and (samples is not None or observable or range is not None):
        raise JobError(BY_ROUNDS)
    with _name_options():
        more = More(samples, tuple(observable or ()), None if range is None else ranges_in(range))
        steps = [] if by_rounds else steps_left(run, name, more)
        if plan:
            from cluster.commands.planning import extension_text, plan_extension

            with divert_stdout():
                if by_rounds:
                    planned = plan_job(truer_job(run, name, accuracy, budget, callback.problem, folder), who.workers)
                else:
                    planned = plan_extension(run, name, steps, callback.problem, folder, who.workers)
            show(planned, json, plan_text(planned) if by_rounds else extension_text(planned))
            return DONE
        if not steps and not by_rounds:
            write_remark(f"{flat(name)} has all of this already: nothing is left to do")
        runner = JobRunner(who)
        extend_landscape(
            run, name, num_samples=more.num_samples, observables=more.observables, ranges=more.ranges,
            accuracy=accuracy, budget=budget, problem=callback.problem, folder=folder, compute=runner,
        )  # fmt: skip
    status = run_status(run)
    show(status, json, status_text(status))
    return runner.code


@contextmanager
def _name_options() -> Iterator[None]:
    """Let errors of `landscape.extend` name the options of the command instead of its own arguments."""
    try:
        yield
    except JobError as error:
        field, _, rest = str(error).partition(": ")
        of_job = field.removeprefix("landscapes.0.").partition(".")[0]
        option = of_job if of_job in ("accuracy", "budget") else OPTION_NAMES.get(field)
        if option is None:
            raise
        raise type(error)(f"{option}: {rest}") from error.__cause__


def refine(
    run: str,
    name: str,
    *,
    box: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    factor: MaybeWhole = None,
    plan: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Make a landscape that is complete finer, in a box or everywhere; every point that is there is kept.

    The new points are those of a job that asks for the finer grid at once, to the bit. They lie with the landscape, and
    every figure and export shows all of them; interrupted, the same command goes on, and once complete it does nothing.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape.
    box
        LOW,HIGH of each axis, ends included, such as --box=-0.5,0.5,-0.2,0.2; widened to whole blocks of 8 cells;
        default: everywhere.
    factor
        2 or 4: by how much the steps are divided; default: 2.
    plan
        Show what it costs, level by level, and write nothing.
    """
    who.check()
    from cluster.runtime.status import run_status, status_text
    from landscape.compute.refine import refine as refine_landscape
    from landscape.store.landscape import LandscapeStore
    from landscape.store.levels import Finer, levels_left
    from landscape.store.results import open_run

    folder = callback.folder_of(run)
    finer = Finer(2 if factor is None else factor, None if box is None else _corners(box))
    path = open_run(run).path
    levels = levels_left(path, name, finer)
    if plan:
        from cluster.commands.planning import plan_refinement, refinement_text

        with divert_stdout():
            planned = plan_refinement(run, name, levels, callback.problem, folder, who.workers)
        show(planned, json, refinement_text(planned))
        return DONE
    if not levels:
        write_remark(finer.held_already(flat(name), len(LandscapeStore.open(path, name).shape)))
    runner = JobRunner(who)
    refine_landscape(
        run, name, factor=finer.factor, box=finer.box, problem=callback.problem, folder=folder, compute=runner
    )
    status = run_status(run)
    show(status, json, status_text(status))
    return runner.code


def _corners(text: str) -> list[tuple[float, float]]:
    """The ends of a box on each axis."""
    pairs = pairs_in(text)
    if not pairs:
        raise JobError(f"box: must be LOW,HIGH of each axis, such as --box=-0.5,0.5,-0.2,0.2, not {quoted(text)}")
    return pairs
