"""What a command shows: progress on stderr, as a bar on a terminal or a line for every 10 %; and data on stdout."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from cluster.runtime.logs import as_json, in_detail, write_remark
from landscape.core.errors import ClusterUnreachableError, LandscapeError
from landscape.core.progress import PREPARING, Observer, Progress, stages
from landscape.core.text import seconds_text

if TYPE_CHECKING:
    from rich.console import Console
    from typing_extensions import Buffer


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines whose columns are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def progress_text(progress: Progress) -> str:
    """One line on a landscape: how much is done, how fast, how long the rest takes, what went wrong."""
    share = progress.points_done / progress.points if progress.points else 1.0
    parts = [f"{progress.landscape}: {progress.points_done}/{progress.points} points ({share:.0%})"]
    if progress.rate > 0:
        parts.append(f"{progress.rate:.3g} points/s")
        if progress.left:
            parts.append(f"ETA {seconds_text(progress.eta)}")
    if progress.retries:
        parts.append(f"{progress.retries} tried again")
    if progress.given_up:
        parts.append(f"{progress.given_up} given up")
    return ", ".join(parts)


def _fields(progress: Progress) -> dict[str, Any]:
    """The fields of `progress_text` for machines."""
    return {
        "landscape": progress.landscape,
        "seconds": round(progress.seconds, 3),
        "points_done": progress.points_done,
        "points": progress.points,
        "rate": round(progress.rate, 3),
        "eta_seconds": round(progress.eta, 1) if progress.rate > 0 else None,
        "workers": progress.workers,
        "retries": progress.retries,
        "failures": progress.failures,
        "given_up": progress.given_up,
    }


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def is_watched() -> bool:
    """Whether a person watches: at a terminal, or in a notebook."""
    if sys.stderr.isatty():
        return True
    return "IPython" in sys.modules and bool(_console().is_jupyter)


@contextlib.contextmanager
def show_progress(observer: Observer | None) -> Iterator[Observer]:
    """The observer; where there is none, a progress display if a person watches."""
    if observer is not None:
        yield observer
    elif is_watched():
        with ProgressDisplay() as display:
            yield display
    else:
        yield lambda progress: None


class _Stages(logging.Handler):
    """Passes on the stage that a job is in, and its progress within the stage."""

    def __init__(self, tell: Callable[[str], None], note: Callable[[str], None]) -> None:
        super().__init__()
        self._tell, self._note = tell, note

    def emit(self, record: logging.LogRecord) -> None:
        (self._tell if record.name == stages.name else self._note)(record.getMessage())


class ProgressDisplay:
    """An observer of `Progress`, as a context manager, which also shows the stages of the job.

    On a terminal and in a notebook it shows a bar. Elsewhere it writes lines, and only on stages after the job was
    checked.
    """

    def __init__(self, screen: Console | None = None) -> None:
        """
        Args:
            screen: where the bar is drawn; default: stderr, if a person watches it, else there is no bar.
        """
        self._screen = screen
        self._bar: Any = None
        self._stage: Any = None
        self._tasks: dict[str, Any] = {}
        self._tenths: dict[str, int] = {}  # landscape → how many tenths of it the last line reported
        self._shown_stages: set[str] = set()
        self._level = logging.NOTSET
        self._stages = _Stages(self.stage, self.note)
        self.landscapes: set[str] = set()

    def __enter__(self) -> Self:
        if (self._screen or is_watched()) and not as_json():
            from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
            from rich.progress import Progress as Bar
            from rich.table import Column

            columns = (
                SpinnerColumn(finished_text=" "),
                TextColumn("{task.description}", table_column=Column(overflow="fold")),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._bar = Bar(*columns, console=self._screen or _console())
            self._bar.start()
        if not as_json():
            self._level = stages.level
            stages.setLevel(logging.INFO)
            stages.propagate = in_detail()
            stages.addHandler(self._stages)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._end_stage()
            self._bar.stop()
        if self._stages in stages.handlers:
            stages.removeHandler(self._stages)
            stages.setLevel(self._level)
            stages.propagate = True

    def stage(self, text: str) -> None:
        """Show the present stage, before the points and between landscapes."""
        if self._bar is None:
            if text != PREPARING and text not in self._shown_stages and not in_detail():
                self._shown_stages.add(text)
                write_remark(text, "stage")
            return
        self._end_stage()
        self._stage = self._bar.add_task(text, total=None, note="")

    def note(self, text: str) -> None:
        """Show the progress of the present stage, on a terminal only: elsewhere it would take a line per candidate."""
        if self._bar is not None and self._stage is not None:
            self._bar.update(self._stage, note=text)

    def _end_stage(self) -> None:
        if self._stage is not None:
            self._bar.remove_task(self._stage)
            self._stage = None

    def __call__(self, progress: Progress) -> None:
        self.landscapes.add(progress.landscape)
        if self._bar is None:
            self._line(progress)
            return
        self._end_stage()
        name = progress.landscape
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=progress.points, note="")
        rate = f"{progress.rate:.3g}/s, ETA {seconds_text(progress.eta)}" if progress.rate > 0 else ""
        failed = f", {progress.given_up} given up" if progress.given_up else ""
        self._bar.update(self._tasks[name], completed=progress.points_done, note=rate + failed)

    def _line(self, progress: Progress) -> None:
        settled = progress.points - progress.left
        tenth = 10 * settled // progress.points if progress.points else 10
        if self._tenths.get(progress.landscape) != tenth:
            self._tenths[progress.landscape] = tenth
            write_remark(progress_text(progress), "progress", **_fields(progress))


# ----------------------------------------------------------------------------------------------------
# The descriptors of a command: stdout holds only data, stderr may fail, and Ray's native lines go to neither.

_own = False  # whether this process is the command, so that it may redirect the descriptors 0 to 2


class LossyFile(io.FileIO):
    """A file that drops what it cannot write, so that neither a closed pipe nor a full disk ends a job."""

    def write(self, data: Buffer, /) -> int:
        """Write what can be written; returns how many bytes were written, or all of them where writing fails."""
        size = memoryview(data).nbytes
        try:
            written: int | None = super().write(data)
        except OSError:
            return size
        return size if written is None else written


def open_standard() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed, so that no file of the run takes its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The system gives the lowest free number, which is this one, as those below it are open by now.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)


def own_descriptors() -> None:
    """Let this process redirect its descriptors; Python's stderr keeps working whatever becomes of descriptor 2."""
    global _own
    open_standard()
    sys.stderr = open_lossy(os.dup(2), getattr(sys.stderr, "encoding", None) or "utf-8")
    # It is None where stdout was closed.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    _own = True


def leave_stderr_to(descriptor: int) -> None:
    """Send everything that Python or native code prints to stderr from now on to a descriptor."""
    sys.stderr = open_lossy(descriptor)
    os.dup2(descriptor, 2)


def open_lossy(descriptor: int, encoding: str = "utf-8") -> TextIO:
    """A text stream to a descriptor that drops what it cannot write."""
    raw = io.BufferedWriter(LossyFile(descriptor, "w"))
    return io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)


@contextlib.contextmanager
def divert_stdout() -> Iterator[None]:
    """Within the block, everything printed goes to stderr, as what user code and its libraries print is no data."""
    if sys.stdout is sys.stderr:
        yield
        return
    stdout, descriptor = sys.stdout, None
    stdout.flush()
    if _own:
        descriptor = os.dup(1)
        os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = stdout
        if descriptor is not None:
            os.dup2(descriptor, 1)
            os.close(descriptor)


@contextlib.contextmanager
def without_native_text(keep: bool) -> Iterator[None]:
    """Within the block what native code writes to stdout and stderr is dropped; Python's own stderr is not touched.

    Ray's C++ core logs there whatever its settings say, and when its cluster is gone, to the end of the process. Where
    the process is not the command, this does nothing, as loggers of the program may hold the descriptor itself.
    """
    if keep or not _own:
        yield
        return
    copies = [os.dup(number) for number in (1, 2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    restore = True
    try:
        yield
    except ClusterUnreachableError:
        restore = False
        raise
    finally:
        for number, copy in zip((1, 2), copies, strict=True):
            if restore:
                os.dup2(copy, number)
            os.close(copy)


@contextlib.contextmanager
def stdout_as_it_is() -> Iterator[Callable[[str], None]]:
    """Within the block, a function that prints lines to where stdout leads now, even while native text is dropped."""
    if not _own:
        yield put
        return
    sys.stdout.flush()
    with open_lossy(os.dup(1)) as stream:

        def put_line(text: str) -> None:
            print(text, file=stream, flush=True)

        yield put_line


def drop_output() -> None:
    """Drop what is written to stdout from now on, so that Python's flush at its end raises no error."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def put(text: str) -> None:
    """Print data of the command to stdout; where nobody reads it any more, it is dropped.

    Raises:
        LandscapeError: stdout takes nothing, as on a full disk.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        drop_output()
        raise LandscapeError(
            f"stdout: cannot be written ({error.strerror}); what was computed is saved: the same command shows it"
        ) from error
