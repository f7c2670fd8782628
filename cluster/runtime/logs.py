"""What the commands write to stderr, as text for people or as one JSON object a line for machines; and workers' logs.

A log call gives the event and its fields with `event_fields`. As text, only the message is shown. What a process
reports to its supervisor is here as well, since the fields of every event are reported to it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Literal, TextIO, cast

from landscape.core.errors import INTERRUPTED, JobError, one_line, printable, quoted
from landscape.core.errors import masked as masked  # where who writes to a terminal looks for it

# ----------------------------------------------------------------------------------------------------
# The pipe over which a child reports to its supervisor. In a process without a supervisor nothing is reported.

_pipe: int | None = None
ray_lost = False  # it was reported that the private Ray is gone: the supervisor says so to the user, and goes on
avoid_here = False  # an earlier process died while it computed this job by itself


def attach(pipe: int, here_failed: bool) -> None:
    """Report over this pipe from now on.

    Args:
        here_failed: an earlier process died while user code computed in it.
    """
    global _pipe, avoid_here
    _pipe, avoid_here = pipe, here_failed


def is_supervised() -> bool:
    """Whether this process has a supervisor."""
    return _pipe is not None


def tell(**report: object) -> None:
    """Report to the supervisor: fields of its `ChildReport`, or `context`, the fields of every event from now on."""
    global ray_lost
    ray_lost = ray_lost or "lost" in report
    if _pipe is not None:
        with contextlib.suppress(OSError):
            os.write(_pipe, (json.dumps(report, default=str) + "\n").encode())


Format = Literal["text", "json"]
FORMATS = ("text", "json")
VARIABLE = "LANDSCAPE_LOG_FORMAT"
# In this order, and first; an event may have further fields of its own.
FIELDS = ("run", "landscape", "task", "worker", "host", "node", "attempt", "cause", "seconds")
LONGEST = 2000  # characters of a worker's message that travel
LONGEST_LINE = 1 << 16  # characters of what is printed that make one line
MOST = 20  # messages that travel with one receipt
# Text logs show only critical events of these loggers: what every worker or task repeats would hide the rest.
WORKERS, TASKS = "landscape.workers", "landscape.tasks"


def event_fields(event: str, **fields: Any) -> dict[str, Any]:
    """The `extra` of a log call: which event this is, and its fields; None and '' are left out.

    >>> event_fields("worker-lost", worker="worker-1", node="")
    {'event': 'worker-lost', 'fields': {'worker': 'worker-1'}}
    """
    known = {name: fields[name] for name in FIELDS if name in fields}
    return {"event": event, "fields": {k: v for k, v in (known | fields).items() if v not in (None, "")}}


class Text(logging.Formatter):
    """The message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The text, without credentials and without control characters."""
        return printable(masked(super().format(record)))


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, event, message, then the fields of the event.

    `context` holds fields that every line has, such as the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.context: dict[str, Any] = {}

    def format(self, record: logging.LogRecord) -> str:
        """The line, without credentials and without its newline."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
            "message": record.getMessage(),
            **self.context,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return printable(masked(json.dumps(line, default=str, ensure_ascii=False)))


_stream: TextIO | None = None  # where log lines go while stderr is left to what is printed; None for stderr


class Stderr(logging.Handler):
    """Writes to whatever sys.stderr is at the moment: a program that calls a command may have replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; what cannot be written is told as the logging module tells it."""
        try:
            _put_line(self.format(record))
        except Exception:
            self.handleError(record)


def choose_format(given: str | None = None) -> Format:
    """The log format that the command line or the environment names.

    Raises:
        JobError: there is no such format.
    """
    value = given or os.environ.get(VARIABLE) or "text"
    if value not in FORMATS:
        raise JobError(f"log_format: must be text or json, not {quoted(value)}; see --log-format and {VARIABLE}")
    return cast(Format, value)


def common_options(arguments: list[str]) -> tuple[list[str], bool, str | None]:
    """The arguments without what every command takes; whether --debug is given; the value of --log-format."""
    left, form = [], None
    given = iter(arguments)
    for each in given:
        name, equals, value = each.partition("=")
        if name == "--log-format":
            form = value if equals else next(given, "")
        elif each != "--debug":
            left.append(each)
    return left, "--debug" in arguments, form


def begin(arguments: list[str]) -> None:
    """Log in the format that the arguments name, before they are parsed; an unknown format is refused later."""
    _, debug, form = common_options(arguments)
    try:
        configure(choose_format(form), debug)
    except JobError:
        configure("text", debug)


def configure(form: Format, debug: bool) -> None:
    """Send all that is logged, and Python's warnings, to stderr in this format; replaces what an earlier call set up.

    Text shows what a person must know; JSON lines also tell of every task.
    """
    root, handler = logging.getLogger(), Stderr()
    handler.setFormatter(JsonLines() if form == "json" else Text("%(message)s"))
    root.handlers[:] = [*(each for each in root.handlers if not isinstance(each, Stderr)), handler]
    root.setLevel(logging.INFO if debug else logging.WARNING)
    logging.getLogger("landscape").setLevel(logging.INFO if form == "json" or debug else logging.WARNING)
    for name in (WORKERS, TASKS):
        logging.getLogger(name).setLevel(logging.NOTSET if form == "json" or debug else logging.CRITICAL)
    logging.captureWarnings(form == "json")


def quieten(library: str) -> None:
    """Remove the handlers and levels that a library set up for its loggers when it was imported.

    What goes wrong in it reaches the user as our errors; its own lines are shown with --debug.
    """
    below = [each for each in logging.root.manager.loggerDict if each.startswith(f"{library}.")]
    for name in (library, *below):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    logging.getLogger(library).setLevel(logging.INFO if in_detail() else logging.CRITICAL)


def tell_unraisable(ignored: Any) -> None:
    """Log what Python cannot raise, such as an interruption inside its own locks; its own hook prints raw lines."""
    cause = "" if ignored.exc_value is None else one_line(ignored.exc_value)
    logging.getLogger("landscape").info(
        "ignored in %s: %s", quoted(ignored.object), cause, extra=event_fields("ignored")
    )


def _json_lines() -> list[JsonLines]:
    return [each.formatter for each in logging.getLogger().handlers if isinstance(each.formatter, JsonLines)]


def as_json() -> bool:
    """Whether this process speaks JSON lines."""
    return bool(_json_lines())


def in_detail() -> bool:
    """Whether --debug was given: what others log is shown, too."""
    return logging.getLogger().level <= logging.INFO


def log_to(stream: TextIO) -> None:
    """Write what is logged there, whatever becomes of stderr."""
    global _stream
    _stream = stream


def bind(**fields: Any) -> None:
    """Give every line from now on these fields, also those of who supervises this process."""
    for each in _json_lines():
        each.context.update(fields)
    if as_json():
        tell(context=fields)


def write_remark_lines(text: str, event: str) -> None:
    """Write lines of a person or another process as events; those that are events already stay as they are."""
    for line in text.splitlines():
        if is_event(line):
            _put_line(printable(masked(line)))
        elif line.strip():
            write_remark(line[:LONGEST_LINE], event)


def is_event(line: str) -> bool:
    """Whether a line is one that `JsonLines` has made."""
    try:
        found = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"time", "level", "event", "message"} <= set(found)


def write_remark(text: str, event: str = "remark", level: int = logging.INFO, **fields: Any) -> None:
    """Write a remark of a command to stderr: plain text, or a line of JSON."""
    if as_json():
        logging.getLogger("landscape").log(level, text, extra=event_fields(event, **fields))
    else:
        _put_line(printable(masked(text)))


def _put_line(text: str) -> None:
    """Write a line at once: `print` writes its end apart from it, and another thread's line may come between."""
    stream: TextIO | None = _stream or sys.stderr  # a program without a console has none
    if stream is not None:
        stream.write(f"{text}\n")
        stream.flush()


# -- what a worker says ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """A record of a worker's log, as plain data."""

    level: int
    logger: str
    message: str
    traceback: str = ""


class Listener(logging.Handler):
    """Collects warnings and worse, each message once, until they are taken."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._records: list[Said] = []
        self._known: set[tuple[str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record unless the same message has come before, or MOST are kept."""
        message = record.getMessage()[:LONGEST]
        if (record.name, message) in self._known or len(self._records) == MOST:
            return
        self._known.add((record.name, message))
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        self._records.append(Said(record.levelno, record.name, message, trace[-LONGEST:]))

    def take(self) -> tuple[Said, ...]:
        """Return what was collected, and forget it."""
        taken, self._records = tuple(self._records), []
        return taken

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collect what is logged in the block, Python's warnings too."""
        root = logging.getLogger()
        root.addHandler(self)
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            root.removeHandler(self)


def relay(said: Iterable[Said], worker: str, host: str, node: str) -> None:
    """Log in this process what a worker logged in its own."""
    for each in said:
        fields = event_fields(
            "worker-log", worker=worker, host=host, node=node, logger=each.logger, traceback=each.traceback
        )
        logging.getLogger(WORKERS).log(each.level, "%s: %s", worker, each.message, extra=fields)


@contextlib.contextmanager
def in_environment(name: str, value: str) -> Iterator[None]:
    """Within the block a variable of the environment has this value, and afterwards its own."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


# ----------------------------------------------------------------------------------------------------
# SIGINT and SIGTERM as a flag: the first asks for an orderly end, the second ends at once.


@contextlib.contextmanager
def graceful_stop() -> Iterator[Callable[[], bool]]:
    """Within the block, the yielded function says whether a signal has come; afterwards signals act as before.

    Enter it after `ray.init`, which installs a SIGTERM handler of its own. Outside the main thread, where Python
    allows no handlers, nothing is installed.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            if is_supervised():
                return  # the supervisor counts signals, and this one may have come twice
            os._exit(INTERRUPTED)
        received.append(number)
        with contextlib.suppress(RuntimeError):  # raised where the signal came while a line was being written
            write_remark("stopping; again to stop at once", "stopping")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    tell(orderly=True)
    try:
        yield lambda: bool(received)
    finally:
        tell(orderly=False)
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
