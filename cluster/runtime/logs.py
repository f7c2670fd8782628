"""What the commands write to stderr, as text for people or as one JSON object a line for machines; and workers' logs.

A log call gives the event and its fields with `event_fields`; as text, only the message is shown. Reports of a process
to its supervisor are here as well, since the fields of every event are among them.
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
# The pipe over which a child reports to its supervisor. A process without a supervisor reports nothing.

_pipe: int | None = None
ray_lost = False  # whether the loss of the private Ray was reported; the supervisor tells the user, and goes on
avoid_here = False  # whether an earlier process died while it computed this job by itself


def attach(pipe: int, here_failed: bool) -> None:
    """Report over this pipe from now on.

    Args:
        here_failed: whether an earlier process died while user code computed in it.
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
# They come first, in this order; an event may have others.
FIELDS = ("run", "landscape", "task", "worker", "host", "node", "attempt", "cause", "seconds")
LONGEST = 2000  # characters of a worker's message that travel
LONGEST_LINE = 1 << 16  # characters after which a printed line is cut
MOST = 20  # messages that travel with one receipt
# Text logs show only critical events of these loggers, which every worker or task may repeat.
WORKERS, TASKS = "landscape.workers", "landscape.tasks"


def event_fields(event: str, **fields: Any) -> dict[str, Any]:
    """The `extra` of a log call: which event this is, and its fields; None and '' are left out.

    >>> event_fields("worker-lost", worker="worker-1", node="")
    {'event': 'worker-lost', 'fields': {'worker': 'worker-1'}}
    """
    ordered = {name: fields[name] for name in FIELDS if name in fields}
    return {"event": event, "fields": {k: v for k, v in (ordered | fields).items() if v not in (None, "")}}


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
        """Write the record; where that fails, the logging module handles the error."""
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
    """The arguments without the options of every command; whether --debug is given; the value of --log-format."""
    others, form = [], None
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name == "--log-format":
            form = value if equals else next(remaining, "")
        elif argument != "--debug":
            others.append(argument)
    return others, "--debug" in arguments, form


def begin(arguments: list[str]) -> None:
    """Log in the format that the arguments name, before they are parsed; an unknown format is refused later."""
    _, debug, form = common_options(arguments)
    try:
        configure(choose_format(form), debug)
    except JobError:
        configure("text", debug)


def configure(form: Format, debug: bool) -> None:
    """Send everything that is logged, and Python's warnings, to stderr in this format; replaces an earlier call.

    Text shows what a person must know; JSON lines also report every task.
    """
    root, handler = logging.getLogger(), Stderr()
    handler.setFormatter(JsonLines() if form == "json" else Text("%(message)s"))
    root.handlers[:] = [*(other for other in root.handlers if not isinstance(other, Stderr)), handler]
    root.setLevel(logging.INFO if debug else logging.WARNING)
    logging.getLogger("landscape").setLevel(logging.INFO if form == "json" or debug else logging.WARNING)
    for name in (WORKERS, TASKS):
        logging.getLogger(name).setLevel(logging.NOTSET if form == "json" or debug else logging.CRITICAL)
    logging.captureWarnings(form == "json")


def quieten(library: str) -> None:
    """Remove the handlers and levels that a library set up for its loggers when it was imported.

    Errors in it reach the user as errors of this package; its own lines are shown with --debug.
    """
    loggers = [name for name in logging.root.manager.loggerDict if name.startswith(f"{library}.")]
    for name in (library, *loggers):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    logging.getLogger(library).setLevel(logging.INFO if in_detail() else logging.CRITICAL)


def tell_unraisable(ignored: Any) -> None:
    """Log what Python cannot raise, such as an interruption inside its own locks; Python's hook prints raw lines."""
    cause = "" if ignored.exc_value is None else one_line(ignored.exc_value)
    logging.getLogger("landscape").info(
        "ignored in %s: %s", quoted(ignored.object), cause, extra=event_fields("ignored")
    )


def _json_lines() -> list[JsonLines]:
    return [handler.formatter for handler in logging.getLogger().handlers if isinstance(handler.formatter, JsonLines)]


def as_json() -> bool:
    """Whether this process logs in JSON lines."""
    return bool(_json_lines())


def in_detail() -> bool:
    """Whether --debug was given, so that what libraries log is shown, too."""
    return logging.getLogger().level <= logging.INFO


def log_to(stream: TextIO) -> None:
    """Write what is logged to this stream, whatever becomes of stderr."""
    global _stream
    _stream = stream


def bind(**fields: Any) -> None:
    """Give every line from now on these fields, also the lines of this process's supervisor."""
    for formatter in _json_lines():
        formatter.context.update(fields)
    if as_json():
        tell(context=fields)


def write_remark_lines(text: str, event: str) -> None:
    """Write lines of another process as events; lines that are events already stay as they are."""
    for line in text.splitlines():
        if is_event(line):
            _put_line(printable(masked(line)))
        elif line.strip():
            write_remark(line[:LONGEST_LINE], event)


def is_event(line: str) -> bool:
    """Whether a line is one that `JsonLines` has made."""
    try:
        value = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and {"time", "level", "event", "message"} <= set(value)


def write_remark(text: str, event: str = "remark", level: int = logging.INFO, **fields: Any) -> None:
    """Write a remark of a command to stderr: plain text, or a line of JSON."""
    if as_json():
        logging.getLogger("landscape").log(level, text, extra=event_fields(event, **fields))
    else:
        _put_line(printable(masked(text)))


def _put_line(text: str) -> None:
    """Write a line and its end at once: `print` would write them apart, with another thread's line in between."""
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
        """Return the collected records, and forget them."""
        records, self._records = tuple(self._records), []
        return records

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


def relay(records: Iterable[Said], worker: str, host: str, node: str) -> None:
    """Log in this process what a worker logged in its own."""
    for record in records:
        fields = event_fields(
            "worker-log", worker=worker, host=host, node=node, logger=record.logger, traceback=record.traceback
        )
        logging.getLogger(WORKERS).log(record.level, "%s: %s", worker, record.message, extra=fields)


@contextlib.contextmanager
def in_environment(name: str, value: str) -> Iterator[None]:
    """Within the block a variable of the environment has this value, and afterwards its former one."""
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
        with contextlib.suppress(RuntimeError):  # raised if the signal came while a line was being written
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
