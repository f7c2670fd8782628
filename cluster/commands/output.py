"""What the commands share: help, `--json`, results on stdout, the job file, worker options, errors and exit codes."""

from __future__ import annotations

import errno
import json as json_module
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from cyclopts import CycloptsError, Parameter, UnknownOptionError

from cluster.runtime import logs
from cluster.runtime.console import command_progress, divert_stdout, drop_output, put
from cluster.runtime.logs import as_json, bind, is_supervised, masked, write_remark
from cluster.runtime.options import Flag, MaybeWhole, Words, check_workers
from landscape.core.errors import (
    BAD_USAGE,
    DONE,
    FAILED,
    INTERRUPTED,
    PARTIAL,
    JobError,
    LandscapeError,
    NotFoundError,
    few_lines,
    message_of,
    one_line,
    printable,
    quoted,
)

if TYPE_CHECKING:
    from landscape.compute.executor import Executor
    from landscape.compute.prepared import PreparedJob, PreparedLandscape
    from landscape.job.job import Job
    from landscape.store.results import Run


Json = Annotated[bool, Parameter(negative="", help="Print one JSON document instead of text.")]


def show(data: Any, as_json: bool, text: str) -> None:
    """Print the result of a command to stdout."""
    put(json_module.dumps(data, indent=1, default=str, allow_nan=False) if as_json else printable(text))


def requested_landscapes(run: Run, name: str | None) -> list[str]:
    """The landscape that a command names, else all of the run.

    Raises:
        NotFoundError: the run holds none.
    """
    if name is None and not len(run):
        raise NotFoundError(f"run {quoted(run.path, 300)} holds no landscape; `landscape run JOB` computes one")
    return list(run) if name is None else [name]


def read_bound_job(path: Path, **overrides: Any) -> Job:
    """Read the job of a file, some fields replaced; every later log event carries its run.

    Raises:
        JobError: the file holds no job.
    """
    job = read_job_file(path, **overrides)
    bind(run=job.run_path)
    return job


def read_job_file(path: Path, **overrides: Any) -> Job:
    """Read the job of a file, some fields replaced; tell the supervisor if its problem is a packed file.

    Raises:
        JobError: the file holds no job.
    """
    from landscape.job.reading import read_job
    from landscape.model.packed_file import names_a_file

    job = read_job(path, **overrides)
    if names_a_file(job.problem):
        logs.tell(packed=True)
    return job


# ----------------------------------------------------------------------------------------------------
# The options of commands that compute: which callback, and whether this process or workers; each text is its help.


@dataclass(frozen=True)
class CallbackOptions:
    """Which callback gives the problem of a landscape that is on disk."""

    problem: str | None = None
    """The callback, module:function; default: the one that it was computed with."""
    folder: Annotated[Words, Parameter(consume_multiple=False)] = None
    """The folder of the callback, DIR, or RUN=DIR for one of several runs; may be repeated. Default: where it was then,
    else where the job was sent from, else the packed copy that the run of a sent job keeps."""

    def folder_of(self, run: str) -> Path | None:
        """The folder that is given for the only run of a command; None if none is."""
        return self.folders([run]).get(run)

    def folders(self, runs: Sequence[str]) -> dict[str, Path]:
        """The folders that are given, by the run as the command names it.

        Raises:
            JobError: one is no folder, names no run of the command, or a run has two.
        """
        found: dict[str, Path] = {}
        for_all: dict[str, Path] = {}
        for text in self.folder or ():
            run = next((run for run in runs if text.startswith(f"{run.rstrip('/')}=")), None)
            folder = text if run is None else text.partition(f"{run.rstrip('/')}=")[2]
            place = Path(folder).expanduser().absolute()
            if not place.is_dir():
                named = f"a run's folder of code, DIR or RUN=DIR with one of {', '.join(map(quoted, runs))} as RUN"
                raise JobError(f"folder: must be {named}, not {quoted(text)}")
            if run in found or (run is None and for_all):
                raise JobError(
                    f"folder: must be given once for a run, not again as {quoted(text)}; give RUN=DIR for each"
                )
            found |= {} if run is None else {run: place}
            for_all |= dict.fromkeys(runs, place) if run is None else {}
        return for_all | found


@dataclass(frozen=True)
class WorkerOptions:
    """Who computes: this process, or workers on Ray."""

    serial: Flag = False
    """In this process, without Ray: the reference."""
    workers: MaybeWhole = None
    """How many actors; default: one per GPU, else one per core."""
    address: str | None = None
    """host:port or auto, to attach to a Ray cluster; default: RAY_ADDRESS, else a private local Ray."""
    allow_open: Flag = False
    """Also attach to a cluster that is not on this machine and asks for no token."""

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            JobError: `serial` is given with workers or a cluster, or the number of workers is out of range.
        """
        if self.serial and (self.workers or self.address):
            raise JobError("serial: runs in this process alone; leave out workers and address")
        check_workers(self.workers)

    def compute(self, job: Job, *, shown: bool = True, accept_origin: bool = False) -> int:
        """Compute a job with progress on stderr; returns the exit code 0, or 4 if points are missing or given up.

        Args:
            shown: whether the status of the run is printed.
            accept_origin: continue with a warning if the user's own model has another loss at the origin or beside it.
        """
        # Imported here, since the help of a command needs none of it.
        from cluster.runtime.status import run_status, status_text

        with divert_stdout(), command_progress() as display:
            if self.serial:
                from cluster.driver.driver import run_serially
                from landscape.core.devices import keep_freed_memory

                keep_freed_memory()
                run = run_serially(job, display, accept_origin=accept_origin)
            else:
                from cluster.driver.driver import run as run_on_ray

                run = run_on_ray(
                    job, self.workers, self.address, display, allow_open=self.allow_open, accept_origin=accept_origin
                )
        status = run_status(run.path)
        if shown:
            put(printable(status_text(status)))
        computed = [landscape for landscape in status["landscapes"] if landscape["name"] in display.landscapes]
        return PARTIAL if any(landscape["failed"] or landscape["missing"] for landscape in computed) else DONE

    def executor(
        self, prepared: PreparedJob, landscape: PreparedLandscape, evaluations: int
    ) -> AbstractContextManager[Executor]:
        """The executor of a landscape's work items, see `executor_of`."""
        from cluster.driver.ray_executor import executor_of

        return executor_of(
            prepared, landscape, evaluations,
            serial=self.serial, workers=self.workers, address=self.address, allow_open=self.allow_open,
        )  # fmt: skip


@dataclass
class JobRunner:
    """Computes the jobs of a command one after another, and keeps the worst exit code.

    Attributes:
        accept_origin: continue with a warning if the user's own model has another loss at the origin or beside it.
        code: the largest exit code of the jobs so far.
    """

    options: WorkerOptions
    accept_origin: bool = False
    code: int = field(default=DONE, init=False)

    def __call__(self, job: Job) -> Run:
        """Compute a job; returns its run, opened for reading."""
        from landscape.store.results import open_run

        self.code = max(self.code, self.options.compute(job, shown=False, accept_origin=self.accept_origin))
        return open_run(job.run_path)


# Types of a command's parameters; each field becomes an option of the command.
Callback = Annotated[CallbackOptions, Parameter(name="*")]
Workers = Annotated[WorkerOptions, Parameter(name="*")]
AS_RECORDED, ANYONE = CallbackOptions(), WorkerOptions()


# ----------------------------------------------------------------------------------------------------
# How a command ends: its errors as one or two lines on stderr, and its exit code.


def exit_code_of(carry_out: Callable[[], object], debug: bool) -> int:
    """Carry out a command; write what it raises to stderr.

    Args:
        carry_out: returns the exit code, or anything else if the command is done.
        debug: write the traceback too.

    Returns:
        The exit code of the process.
    """
    try:
        code = carry_out()
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except CycloptsError as error:
        return _failed(_usage(error), BAD_USAGE, debug)
    except LandscapeError as error:
        if is_supervised() and logs.ray_lost and not debug:
            return error.exit_code  # the supervisor reports the loss of Ray, and starts the work again
        return _failed(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        return _failed("interrupted; the same command goes on", INTERRUPTED, debug)
    except BrokenPipeError:
        drop_output()
        return DONE
    except PermissionError as error:
        return _failed(f"no permission: {error}; change the rights or name another place", BAD_USAGE, debug)
    except OSError as error:
        place = quoted(str(error.filename), 300) if error.filename else "a file"
        if error.errno == errno.EROFS:
            message = f"{place} lies on a disk that is mounted read-only; mount it for writing or name another place"
            return _failed(message, BAD_USAGE, debug)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _failed(
                f"{place} cannot be written: {error.strerror}; make room or name another place", FAILED, debug
            )
        return _fail_unexpectedly(error, debug)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich ends the process if the reader of a pipe is gone
            drop_output()
            return DONE
        code = f"sys.exit({quoted(ended.code)})"
        return _failed(f"{code} was called {_place(ended)}; leave it out: it ends the whole command", FAILED, debug)
    except Exception as error:
        return _fail_unexpectedly(error, debug)


def _fail_unexpectedly(error: Exception, debug: bool) -> int:
    return _failed(f"{one_line(error)} (--debug shows where)", FAILED, debug)


def _usage(error: CycloptsError) -> str:
    """The error of a command line, with the command that prints the help.

    For an unknown option that resembles no other, all options are listed.
    """
    message, command = message_of(error), " ".join(("landscape", *(error.command_chain or ())))
    if isinstance(error, UnknownOptionError) and error.argument_collection and "Did you mean" not in message:
        # A group of options, such as those of one target, is an argument named `*`.
        names = [option.name for option in error.argument_collection if option.name.startswith("--")]
        message += f" Known: {', '.join(names)}"
    return f"landscape: {message} (see {command} --help)"


def _place(error: BaseException) -> str:
    """The function, file and line that raised an exception."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {last.name} ({last.filename}, line {last.lineno})"


def _failed(message: str, code: int, debug: bool) -> int:
    """Write to stderr why the command ends with this code; returns the code."""
    trace = traceback.format_exc() if debug else ""
    if debug and not as_json():
        print(printable(masked(trace)), end="", file=sys.stderr)
    write_remark(few_lines(message), "error", logging.ERROR, code=code, traceback=trace)
    return code


# ----------------------------------------------------------------------------------------------------
# Help texts, and the template of job files, name tables in braces, such as {formats}. The entries of a table replace
# its name when the help is shown, and not before, since some tables need the imports for drawing.

TABLES = {
    "batch_norms": ("landscape.core.plan", "BatchNorm"),
    "curves": ("landscape.surface.barriers", "Curve"),
    "formats": ("landscape.views.exporting", "FORMAT_TABLE"),
    "kinds": ("landscape.views.figure_spec", "KIND_TABLE"),
    "normalisations": ("landscape.job.directions.base", "Normalise"),
    "precisions": ("landscape.core.plan", "Precision"),
    "recipes": ("landscape.recipes.table", "RECIPES"),
}
TABLE = re.compile(r"\{(" + "|".join(TABLES) + r")\}")


def any_of(names: Sequence[str]) -> str:
    """A list of alternatives, in words.

    >>> any_of(["html", "png", "csv"]), any_of(["html"])
    ('html, png or csv', 'html')
    """
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def with_tables(text: str, join: Callable[[Sequence[str]], str] = any_of) -> str:
    """Replace the name of each table in a text by the entries of the table.

    >>> with_tables("{precisions} or none; {kind: random}")
    'float32, tf32, bfloat16 or float64 or none; {kind: random}'
    """
    return TABLE.sub(lambda match: _entries(match[1], join), text)


def _entries(name: str, join: Callable[[Sequence[str]], str]) -> str:
    module, attribute = TABLES[name]
    table = getattr(import_module(module), attribute)
    return join(list(table) if isinstance(table, dict) else get_args(table))


# ----------------------------------------------------------------------------------------------------
# Help texts are filled by paragraphs, whatever the line breaks of the source.

# A line break within a paragraph: not before an empty, an indented, or a listed line.
BREAK = re.compile(r"(?<=\S)[ \t]*\n(?=\S)(?![*-] )")


def join_lines(plain: str) -> str:
    r"""Put each paragraph of a text on one line.

    >>> join_lines("The plane, the line and the\ncurve.\n\nEach epoch.\n- one\n- two\n")
    'The plane, the line and the curve.\n\nEach epoch.\n- one\n- two\n'
    """
    return BREAK.sub(" ", plain)


class Paragraphs:
    """The formatter of cyclopts, which keeps line breaks, for texts whose paragraphs are joined to one line first."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        """Print a panel of commands or parameters."""
        from cyclopts.help import DefaultFormatter

        for part in (panel, *panel.entries):
            _lay_out(part.description)
        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        """Print how the command is called."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        """Print what the command does."""
        from cyclopts.help import DefaultFormatter

        _lay_out(description)
        DefaultFormatter().render_description(console, options, description)


def _lay_out(description: Any) -> None:
    for text in _texts(description):
        text.plain = with_tables(join_lines(cleandoc(text.plain)))  # the texts of fields are still indented


def _texts(description: Any) -> Iterator[Any]:
    """The texts, objects of rich, in a description that cyclopts prints."""
    first, others = getattr(description, "primary_renderable", None), getattr(description, "renderables", ())
    for part in (description, first, *others):
        if isinstance(getattr(part, "plain", None), str):
            yield part
