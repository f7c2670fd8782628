"""The descriptors of a command: stdout for data alone, a stderr that may fail, Ray's native lines kept off both."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from landscape.core.errors import ClusterUnreachableError, LandscapeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_own = False  # whether the descriptors 0 to 2 are this command's, and not those of a program that calls it


class Forgiving(io.FileIO):
    """A descriptor whose text is lost where it cannot be written: no reader and no full disk end a job."""

    def write(self, data: Buffer, /) -> int:
        """Write what can be written; returns the bytes taken, which are all of them where writing fails."""
        size = memoryview(data).nbytes
        try:
            written: int | None = super().write(data)
        except OSError:
            return size
        return size if written is None else written


def open_standard() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed: else a file of the run would take its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given out, which is this one: those below it are open by now.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)


def own() -> None:
    """Make this process's descriptors the command's own: Python's stderr keeps working whatever becomes of fd 2."""
    global _own
    open_standard()
    sys.stderr = forgiving(os.dup(2), getattr(sys.stderr, "encoding", None) or "utf-8")
    # Python has none where it was closed.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    _own = True


def leave_stderr_to(descriptor: int) -> None:
    """Have all that is printed to stderr from now on, by Python or below it, go to a descriptor."""
    sys.stderr = forgiving(descriptor)
    os.dup2(descriptor, 2)


def forgiving(descriptor: int, encoding: str = "utf-8") -> TextIO:
    """Text that goes to a descriptor, or is lost."""
    raw = io.BufferedWriter(Forgiving(descriptor, "w"))
    return io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)


@contextlib.contextmanager
def diverted() -> Iterator[None]:
    """Within the block, everything printed goes to stderr: what user code and its libraries print is no data."""
    if sys.stdout is sys.stderr:
        yield
        return
    stdout, kept = sys.stdout, None
    stdout.flush()
    if _own:
        kept = os.dup(1)
        os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = stdout
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


@contextlib.contextmanager
def without_native_text(keep: bool) -> Iterator[None]:
    """Within the block what native code writes to stdout and stderr is dropped; Python's own stderr is not touched.

    Ray's C++ core logs there whatever its settings say, and once its cluster is gone to the very end of the process.
    In a program that is not this command's nothing is done: its loggers may hold the descriptor itself.
    """
    if keep or not _own:
        yield
        return
    kept = [os.dup(number) for number in (1, 2)]
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
        for number, before in zip((1, 2), kept, strict=True):
            if restore:
                os.dup2(before, number)
            os.close(before)


@contextlib.contextmanager
def stdout_as_it_is() -> Iterator[Callable[[str], None]]:
    """Within the block, a function that prints a line where stdout leads now, also while native text is dropped."""
    if not _own:
        yield put
        return
    sys.stdout.flush()
    with forgiving(os.dup(1)) as kept:

        def put_line(text: str) -> None:
            print(text, file=kept, flush=True)

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
            f"stdout: cannot be written ({error.strerror}); what was computed is kept: the same command shows it"
        ) from error
