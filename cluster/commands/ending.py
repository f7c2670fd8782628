"""How a command ends: its errors as one or two lines on stderr, and its exit code."""

from __future__ import annotations

import errno
import logging
import sys
import traceback
from collections.abc import Callable

from cyclopts import CycloptsError, UnknownOptionError

from cluster.runtime import logs
from cluster.runtime.console import drop_output
from cluster.runtime.logs import as_json, masked, supervised, write_remark
from landscape.core.errors import (
    BAD_USAGE,
    DONE,
    FAILED,
    INTERRUPTED,
    LandscapeError,
    few_lines,
    message_of,
    one_line,
    printable,
    shown,
)


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
        if supervised() and logs.ray_lost and not debug:
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
        place = shown(str(error.filename), 300) if error.filename else "a file"
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
        code = f"sys.exit({shown(ended.code)})"
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
