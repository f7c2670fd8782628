"""Calls the user's code in the job's folder, and turns its exceptions into one line that names the place."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import sysconfig
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

from landscape.core.errors import JobError, LandscapeError, flat, message_of, one_line

# Folders of files in a traceback: this project, Python's own library, installed libraries.
PACKAGE = Path(__file__).parents[1]
OURS = (str(PACKAGE), str(PACKAGE.parent / "cluster"))
STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
TORCH = tuple(os.path.join(folder, "torch", "") for folder in INSTALLED)
# An exception in a worker process of a DataLoader has the whole traceback as its message, after this line.
IN_A_WORKER = "Original Traceback (most recent call last):"
PLACE = re.compile(r'^ *File "([^"\n]+)", line (\d+)', re.MULTILINE)
SLOW_SECONDS = 10.0  # of a callback, after which the user is told what is waited for

log = logging.getLogger("landscape")


@contextlib.contextmanager
def calling(subject: str, remedy: str = "") -> Iterator[None]:
    """Turn an exception of the block into one line; our own errors pass unchanged.

    Args:
        subject: the beginning of the message: 'data: sample 7 of Images'.

    Raises:
        JobError: the block raised, or asked to end the process.

    Example:
        >>> with calling("data: sample 7 of Images"):
        ...     raise ValueError("no such file")
        Traceback (most recent call last):
        landscape.core.errors.JobError: data: sample 7 of Images raised ValueError: no such file
    """
    try:
        yield
    except LandscapeError:
        raise
    except (Exception, SystemExit, GeneratorExit) as cause:
        raise JobError(f"{subject} {in_words(cause)}{remedy and '; ' + remedy}") from cause


@contextlib.contextmanager
def told_if_slow(callback: object) -> Iterator[None]:
    """Say once, while the block goes on, that this callback takes long: nothing else is said meanwhile."""
    name = getattr(callback, "__name__", str(callback))

    def tell() -> None:
        text = (
            f"problem: {name} has not returned for {SLOW_SECONDS:g} s; every command and every worker calls it, so let "
            "it load weights rather than train them"
        )
        log.warning("%s", text, extra={"event": "callback-slow", "fields": {"cause": text}})

    timer = threading.Timer(SLOW_SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Exited(RuntimeError):
    """User code asked to end the process, for example by `sys.exit(0)`.

    It is an ordinary exception, so that such an end is never mistaken for success.
    """


@contextlib.contextmanager
def kept_alive() -> Iterator[None]:
    """Turn an attempt of user code to end the process, such as `SystemExit`, into an exception; Ctrl-C passes.

    Raises:
        Exited: the block asked to end the process.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as cause:
        raise Exited(in_words(cause)) from cause


def in_words(error: BaseException) -> str:
    """The failure of user code and its place, in words: 'raised ValueError: no such file (data.py:12)'."""
    if isinstance(error, Exited):
        return message_of(error)
    place = user_line(error)
    where = f" ({place})" if place else ""
    text = _text(error)
    if isinstance(error, SystemExit):
        return f"called sys.exit({'' if error.code is None else message_of(error)}){where}"
    if isinstance(error, RecursionError):
        return f"calls itself without end{where}"
    if isinstance(error, MemoryError):
        return f"ran out of memory{text and ': ' + message_of(error)}{where}"
    if IN_A_WORKER in text:
        return f"raised {flat(text.rstrip().splitlines()[-1])}{where}"
    return f"raised {one_line(error)}{where}"


def cause_of_failure(error: BaseException) -> str:
    """The cause of a failed task: 'Type: message', or words if the type means nothing to the user."""
    return in_words(error) if isinstance(error, (Exited, RecursionError, MemoryError)) else one_line(error)


def user_line(error: BaseException) -> str:
    """The line of code to look at, as 'file:line'; empty if there is none.

    It is the innermost line of the user's own files in the traceback. If the user's code is itself installed among the
    libraries, it is the outermost installed line, the one that was called from here. Lines of torch are never named:
    torch reports a fault of its caller.
    """
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    lines += [(file, int(line)) for file, line in PLACE.findall(_text(error))]
    outside = [(file, line) for file, line in lines if not file.startswith(("<", *OURS))]
    users = [(file, line) for file, line in outside if not file.startswith((*INSTALLED, *STANDARD))]
    installed = [(file, line) for file, line in outside if file.startswith(INSTALLED) and not file.startswith(TORCH)]
    chosen = users[-1:] or installed[:1]
    if not chosen:
        return ""
    file, line = chosen[0]
    with contextlib.suppress(OSError, ValueError):
        file = str(Path(file).resolve().relative_to(Path.cwd()))
    return f"{file}:{line}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the exception's own __str__ fails
        return ""


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Run the block with this folder as the working directory, if there is such a folder.

    The working directory belongs to the whole process: other threads see the change too. Entries of `sys.path` that are
    relative to the caller's directory still work.
    """
    try:
        before = os.getcwd()
    except OSError:  # the directory was deleted: nothing can be relative to it
        before = ""
    if before == str(folder) or not folder.is_dir():
        yield
        return
    tempfile.gettempdir()  # resolves and caches a relative TMPDIR while the directory is still the caller's
    relative = {os.path.join(before, entry): entry for entry in sys.path if not os.path.isabs(entry)} if before else {}
    sys.path[:] = [entry if os.path.isabs(entry) else os.path.join(before, entry) for entry in sys.path]
    os.chdir(folder)
    try:
        yield
    finally:
        sys.path[:] = [relative.get(entry, entry) for entry in sys.path]
        with contextlib.suppress(OSError):
            os.chdir(before or folder)
