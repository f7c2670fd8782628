"""Calling code of the user's: in the job's folder, and with whatever it raises told in one line that names where."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from landscape.errors import JobError, LandscapeError, flat, message_of, one_line

PACKAGE = Path(__file__).parents[1]
OURS = (str(PACKAGE), str(PACKAGE.parent / "cluster"))
STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
TORCH = tuple(os.path.join(each, "torch", "") for each in INSTALLED)
# What torch makes of an exception in a loader's worker: the traceback is the message.
IN_A_WORKER = "Original Traceback (most recent call last):"
PLACE = re.compile(r'^ *File "([^"\n]+)", line (\d+)', re.MULTILINE)


@contextlib.contextmanager
def calling(what: str, remedy: str = "") -> Iterator[None]:
    """Code of the user's, called for `what`; whatever it raises becomes one line.

    Raises:
        JobError: it raised, or asked to end the process.
    """
    try:
        yield
    except LandscapeError:
        raise
    except (Exception, SystemExit, GeneratorExit) as cause:
        raise JobError(f"{what} {in_words(cause)}{remedy and '; ' + remedy}") from cause


class Exited(RuntimeError):
    """User code asked to end the process, in words; an exception like others, so that it never counts as success."""


@contextlib.contextmanager
def kept_alive() -> Iterator[None]:
    """What user code raises to end the process, such as `sys.exit(0)`, is an exception like others; Ctrl-C is not.

    Raises:
        Exited: it did.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as cause:
        raise Exited(in_words(cause)) from cause


def in_words(error: BaseException) -> str:
    """What user code did, and where: 'raised ValueError: no such file (data.py:12)'."""
    if isinstance(error, Exited):
        return message_of(error)
    place = place_of(error)
    where = f" ({place})" if place else ""
    told = _text(error)
    if isinstance(error, SystemExit):
        return f"called sys.exit({'' if error.code is None else message_of(error)}){where}"
    if isinstance(error, RecursionError):
        return f"calls itself without end{where}"
    if isinstance(error, MemoryError):
        return f"ran out of memory{told and ': ' + message_of(error)}{where}"
    if IN_A_WORKER in told:
        return f"raised {flat(told.rstrip().splitlines()[-1])}{where}"
    return f"raised {one_line(error)}{where}"


def cause_of(error: BaseException) -> str:
    """The cause of a failed task: the exception, in words where its name tells how Python works inside."""
    return in_words(error) if isinstance(error, (Exited, RecursionError, MemoryError)) else one_line(error)


def place_of(error: BaseException) -> str:
    """The innermost line of the user's own that an exception came through, as 'file:line'; '' where there is none.

    Of code that is installed among the libraries it is the outermost line, the one that was called from here; torch
    complains of what it was given.
    """
    found = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    found += [(file, int(line)) for file, line in PLACE.findall(_text(error))]
    outside = [each for each in found if not each[0].startswith(("<", *OURS))]
    users = [each for each in outside if not each[0].startswith((*INSTALLED, *STANDARD))]
    installed = [each for each in outside if each[0].startswith(INSTALLED) and not each[0].startswith(TORCH)]
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
    except Exception:
        return ""


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Code of the user's runs with this folder as working directory, where there is such a folder.

    The working directory belongs to the whole process, so threads of the caller's see the other one meanwhile.
    Modules that are looked up relative to the caller's directory are still found.
    """
    try:
        before = os.getcwd()
    except OSError:  # it was deleted: nothing can be relative to it
        before = ""
    if before == str(folder) or not folder.is_dir():
        yield
        return
    tempfile.gettempdir()  # a relative TMPDIR is resolved when it is first asked for
    relative = {os.path.join(before, each): each for each in sys.path if not os.path.isabs(each)} if before else {}
    sys.path[:] = [each if os.path.isabs(each) else os.path.join(before, each) for each in sys.path]
    os.chdir(folder)
    try:
        yield
    finally:
        sys.path[:] = [relative.get(each, each) for each in sys.path]
        with contextlib.suppress(OSError):
            os.chdir(before or folder)
