"""What a command shows: its progress and remarks on stderr, and data on stdout."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from cluster.runtime.logs import as_json, write_remark
from landscape.core.errors import ClusterUnreachableError, LandscapeError
from landscape.core.progress import ProgressDisplay

if TYPE_CHECKING:
    from typing_extensions import Buffer


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines whose columns are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def command_progress() -> ProgressDisplay:
    """The progress display of a command, which writes its lines, or the events of JSON, as all remarks are written."""
    return ProgressDisplay(write=write_remark, events=as_json())


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
