"""What the commands share: their help, `--json`, results on stdout, the job file, who computes, how one ends."""

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
from cluster.runtime.console import ProgressDisplay, divert_stdout, drop_output, put
from cluster.runtime.logs import as_json, bind, is_supervised, masked, write_remark
from cluster.runtime.options import Flag, MaybeWhole, check_workers
from landscape.core.errors import (
    BAD_USAGE,
    DONE,
    FAILED,
    INTERRUPTED,
    PARTIAL,
    JobError,
    LandscapeError,
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
    """The command's result, on stdout."""
    put(json_module.dumps(data, indent=1, default=str, allow_nan=False) if as_json else printable(text))


def read_bound_job(path: Path, **overrides: Any) -> Job:
    """The job of a file, some fields replaced; every log event carries its run from now on.

    Raises:
        JobError: the file holds no job.
    """
    found = read_job_file(path, **overrides)
    bind(run=found.run_path)
    return found


def read_job_file(path: Path, **overrides: Any) -> Job:
    """The job of a file, some fields replaced; reports to the supervisor whether it is a packed problem.

    Raises:
        JobError: the file holds no job.
    """
    from landscape.job.reading import read_job
    from landscape.model.packed_file import names_a_file

    found = read_job(path, **overrides)
    if names_a_file(found.problem):
        logs.tell(packed=True)
    return found


# ----------------------------------------------------------------------------------------------------
# The options of commands that compute: which callback, and whether this process or workers; each text is its help.


@dataclass(frozen=True)
class CallbackOptions:
    """Which callback gives the problem of a landscape that is on disk."""

    problem: str | None = None
    """The callback, module:function; default: the one that it was computed with."""
    folder: Path | None = None
    """Where the callback is looked up first; default: where it was then."""


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
            JobError: this process is to compute alone, and workers are asked for; or there cannot be so many.
        """
        if self.serial and (self.workers or self.address):
            raise JobError("serial: runs in this process alone; leave out workers and address")
        check_workers(self.workers)

    def compute(self, job: Job, *, shown: bool = True, accept_origin: bool = False) -> int:
        """Compute a job with progress on stderr; the exit code is 0, or 4 where something was given up.

        Args:
            shown: whether a line per landscape is printed.
            accept_origin: go on, with a warning, where the user's own model has another loss at the origin or beside.
        """
        # Each command imports what it needs: none of this is needed for its help.
        from cluster.runtime.status import run_status, status_text

        with divert_stdout(), ProgressDisplay() as display:
            if self.serial:
                from cluster.driver.driver import run_serially
                from landscape.core.devices import keep_freed_memory

                keep_freed_memory()
                found = run_serially(job, display, accept_origin=accept_origin)
            else:
                from cluster.driver.driver import run as run_on_ray

                found = run_on_ray(
                    job, self.workers, self.address, display, allow_open=self.allow_open, accept_origin=accept_origin
                )
        status = run_status(found.path)
        if shown:
            put(printable(status_text(status)))
        mine = [each for each in status["landscapes"] if each["name"] in display.landscapes]
        return PARTIAL if any(each["failed"] or each["missing"] for each in mine) else DONE

    def executor(
        self, prepared: PreparedJob, landscape: PreparedLandscape, evaluations: int
    ) -> AbstractContextManager[Executor]:
        """The executor that answers questions about a landscape, see `executor_of`."""
        from cluster.driver.ray_executor import executor_of

        return executor_of(
            prepared, landscape, evaluations,
            serial=self.serial, workers=self.workers, address=self.address, allow_open=self.allow_open,
        )  # fmt: skip


@dataclass
class JobRunner:
    """Computes the jobs of a command one after another, and remembers how they ended.

    Attributes:
        accept_origin: go on, with a warning, where the user's own model has another loss at the origin or beside.
        code: the exit code of the command: that of the job which ended worst.
    """

    options: WorkerOptions
    accept_origin: bool = False
    code: int = field(default=DONE, init=False)

    def __call__(self, job: Job) -> Run:
        """Compute a job; its run, opened for reading."""
        from landscape.store.results import open_run

        self.code = max(self.code, self.options.compute(job, shown=False, accept_origin=self.accept_origin))
        return open_run(job.run_path)


# As parameters of a command, whose fields are options of it.
Callback = Annotated[CallbackOptions, Parameter(name="*")]
Workers = Annotated[WorkerOptions, Parameter(name="*")]
AS_RECORDED, ANYONE = CallbackOptions(), WorkerOptions()


# ----------------------------------------------------------------------------------------------------
# How a command ends: its errors as one or two lines on stderr, and its exit code.


def exit_code_of(carry_out: Callable[[], object], debug: bool) -> int:
    """Carry out a command; what it raises is said on stderr.

    Args:
        carry_out: returns the exit code, or anything else where the command is done.
        debug: say the traceback too.

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
            return error.exit_code  # the supervisor says why, and starts the work anew
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
            told = f"{place} lies on a disk that is mounted read-only; mount it for writing or name another place"
            return _failed(told, BAD_USAGE, debug)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _failed(
                f"{place} cannot be written: {error.strerror}; make room or name another place", FAILED, debug
            )
        return _unforeseen(error, debug)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich ends the process where a reader has gone
            drop_output()
            return DONE
        code = f"sys.exit({quoted(ended.code)})"
        return _failed(f"{code} was called {_place(ended)}; leave it out: it ends the whole command", FAILED, debug)
    except Exception as error:
        return _unforeseen(error, debug)


def _unforeseen(error: Exception, debug: bool) -> int:
    return _failed(f"{one_line(error)} (--debug shows where)", FAILED, debug)


def _usage(error: CycloptsError) -> str:
    """What is wrong with a command line, and where the help of its command is.

    An unknown option that resembles none gets the list of those that there are.
    """
    message, command = message_of(error), " ".join(("landscape", *(error.command_chain or ())))
    if isinstance(error, UnknownOptionError) and error.argument_collection and "Did you mean" not in message:
        # A group of options, as those of one target, is an argument whose name is `*`.
        names = [option.name for option in error.argument_collection if option.name.startswith("--")]
        message += f" Known: {', '.join(names)}"
    return f"landscape: {message} (see {command} --help)"


def _place(error: BaseException) -> str:
    """Where an exception was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {last.name} ({last.filename}, line {last.lineno})"


def _failed(message: str, code: int, debug: bool) -> int:
    """Say why the command ends with this code; returns the code."""
    trace = traceback.format_exc() if debug else ""
    if debug and not as_json():
        print(printable(masked(trace)), end="", file=sys.stderr)
    write_remark(few_lines(message), "error", logging.ERROR, code=code, traceback=trace)
    return code


# ----------------------------------------------------------------------------------------------------
# A help text, and the template of job files, name a table in braces, such as {formats}. Its names are filled in when
# the help is shown, as some tables import what draws.

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
    """Names of which one is meant.

    >>> any_of(["html", "png", "csv"]), any_of(["html"])
    ('html, png or csv', 'html')
    """
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def with_tables(text: str, listed: Callable[[Sequence[str]], str] = any_of) -> str:
    """The text with the names of each table in place of the table's own.

    >>> with_tables("{precisions} or none; {kind: random}")
    'float32, tf32, bfloat16 or float64 or none; {kind: random}'
    """
    return TABLE.sub(lambda match: _names_in(match[1], listed), text)


def _names_in(name: str, listed: Callable[[Sequence[str]], str]) -> str:
    module, attribute = TABLES[name]
    table = getattr(import_module(module), attribute)
    return listed(list(table) if isinstance(table, dict) else get_args(table))


# ----------------------------------------------------------------------------------------------------
# A paragraph fills its lines, wherever the source breaks its own.

# A line that goes on from the one before: neither empty lines nor indented or listed ones do.
BREAK = re.compile(r"(?<=\S)[ \t]*\n(?=\S)(?![*-] )")


def reflowed(plain: str) -> str:
    r"""The text with each paragraph in one line.

    >>> reflowed("The plane, the line and the\ncurve.\n\nEach epoch.\n- one\n- two\n")
    'The plane, the line and the curve.\n\nEach epoch.\n- one\n- two\n'
    """
    return BREAK.sub(" ", plain)


class Paragraphs:
    """The formatter of cyclopts, which keeps line breaks, told texts that have none within a paragraph."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        """Print a panel of commands or parameters."""
        from cyclopts.help import DefaultFormatter

        for described in (panel, *panel.entries):
            _lay_out(described.description)
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


def _lay_out(described: Any) -> None:
    for text in _texts(described):
        text.plain = with_tables(reflowed(cleandoc(text.plain)))  # the texts of fields are still indented


def _texts(described: Any) -> Iterator[Any]:
    """The texts in what cyclopts prints, which are of rich."""
    for each in (described, getattr(described, "primary_renderable", None), *getattr(described, "renderables", ())):
        if isinstance(getattr(each, "plain", None), str):
            yield each
