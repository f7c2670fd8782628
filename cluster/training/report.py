"""What a training reports: lines on stderr while it runs, its result at the end, and the logs of its ranks."""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from cluster.runtime.console import open_lossy
from cluster.runtime.logs import write_remark
from landscape.core.errors import NotFoundError, quoted
from landscape.core.files import Folder, LineLog
from landscape.core.folders import open_folder
from landscape.model.run_files import read_launch
from landscape.store.state import finite

# ----------------------------------------------------------------------------------------------------
# News from the ranks and the controller of a training to its driver, by way of an actor.

# The kinds of news.
PACE = "pace"  # how fast a rank did an epoch, or the part of it that is done
SUMMARY = "summary"  # what a rank did, at its end
STARTED = "started"  # a rank has started
KEPT = "kept"  # a checkpoint is kept
LOST = "lost"  # ranks are lost and begin anew: a line for the user
REMARK = "remark"  # another line for the user
CONTROLLER = "controller"  # the handle of Ray Train's controller
MOST_NEWS = 10_000  # that wait for the driver; beyond that the oldest are dropped


class Board:
    """An actor that keeps news until the driver takes them."""

    def __init__(self) -> None:
        self._news: list[dict[str, Any]] = []
        self._told: set[str] = set()

    def tell(self, kind: str, news: dict[str, Any]) -> None:
        """Keep a piece of news."""
        self._told.add(kind)
        self._news = [*self._news[1 - MOST_NEWS :], {"kind": kind, **news}]

    def was_told(self, kind: str) -> bool:
        """Whether news of this kind came at any time."""
        return kind in self._told

    def take(self) -> list[dict[str, Any]]:
        """All news since the last call."""
        news, self._news = self._news, []
        return news


@dataclass
class Report:
    """Takes the news of a training.

    Attributes:
        shown: whether lines are written.
        ranks: what each rank did, by its number.
    """

    epochs: int | None = None
    shown: bool = True
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, news: dict[str, Any]) -> None:
        """Take a piece of news."""
        match news["kind"]:
            case "pace":
                fields = {name: value for name, value in news.items() if name != "kind"}
                self._write(pace_text(news, self.epochs), PACE, **dict(finite(fields)))
            case "lost":
                self.ranks.clear()
                self._write(news["text"], LOST, logging.WARNING)
            case "remark":
                self._write(news["text"], REMARK)
            case "summary":
                self.ranks[news["rank"]] = {name: value for name, value in news.items() if name != "kind"}

    def _write(self, text: str, event: str, level: int = logging.INFO, **fields: Any) -> None:
        if self.shown:
            write_remark(text, event, level, **fields)

    def tell(self, kind: str, news: dict[str, Any]) -> None:
        """Take a piece of news from this process."""
        self({"kind": kind, **news})


@dataclass(frozen=True)
class TrainingResult:
    """How a training went; its trajectory, history and checkpoints are in the run.

    Attributes:
        run: the run's folder or URL.
        workers: how many ranks it had at its end.
        epochs, steps, samples, seconds: those since this start; `seconds` are those of batches, without evaluation.
        total_steps, total_epochs: those of the whole run; epochs are None where the function has no collector.
        loss: the mean over the last epoch; None where the function reports no loss.
        communication: the share of each rank's time in which ranks exchanged gradients and means, in the order of the
            ranks; most of this time gradients were computed as well. Empty for one rank.
    """

    run: str
    workers: int = 1
    epochs: int = 0
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    loss: float | None = None
    communication: tuple[float, ...] = ()
    total_steps: int = 0
    total_epochs: int | None = None

    @property
    def samples_per_second(self) -> float | None:
        """Samples of whole batches per second."""
        return self.samples / self.seconds if self.seconds else None


def result_of(run: str, ranks: dict[int, dict[str, Any]]) -> TrainingResult:
    """The result, from what the ranks did."""
    first = ranks.get(0, {})
    names = ("epochs", "steps", "samples", "seconds", "loss", "total_steps", "total_epochs")
    same = {name: first[name] for name in names if name in first}
    shares = [summary["communication"] for _, summary in sorted(ranks.items()) if summary["communication"] is not None]
    return TrainingResult(run, first.get("world", 1), **same, communication=tuple(shares))


def pace_text(news: dict[str, Any], epochs: int | None) -> str:
    """A line on an epoch: its number, its loss and its speed; and if it has not ended, how much of it is done."""
    parts = [f"epoch {news['epoch']}" + (f" of {epochs}" if epochs else "")]
    if news["count"]:
        parts[0] += f", {news['samples'] / news['count']:.0%} done"
    if news["loss"] is not None:
        parts.append(f"loss {news['loss']:.4f}")
    parts.append(f"{news['samples'] / news['seconds']:,.0f} samples/s")
    return f"{parts[0]}: {', '.join(parts[1:])}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _done(epochs: int | None, steps: int) -> str:
    return ", ".join([*([] if epochs is None else [_counted(epochs, "epoch")]), _counted(steps, "step")])


def result_text(result: TrainingResult) -> str:
    """The result in words: what this start did, and where an earlier one did a part, what the run has."""
    whole = _done(result.total_epochs, result.total_steps)
    if not result.steps:
        return f"{quoted(result.run)}: nothing was left to do" + (f" after {whole}" if result.total_steps else "")
    loss = "" if result.loss is None else f", loss {result.loss:.4f} over its last epoch"
    pace = result.samples_per_second
    text = f"{quoted(result.run)}: {_done(result.epochs, result.steps)}{loss}; {_counted(result.workers, 'worker')}"
    if pace is not None:
        text += f", {pace:,.0f} samples/s"
    if result.total_steps > result.steps:
        text += f"; since this start, and with those before {whole}"
    if result.communication:
        listed = ", ".join(f"{share:.0%}" for share in result.communication)
        text += f"; of their time in communication: {listed} (ranks 0 to {len(result.communication) - 1})"
    return text


# ----------------------------------------------------------------------------------------------------
# The log of a rank, RUN/logs/rank-0.log, read so far or as it grows: what the rank prints, what is printed below
# Python, and what is logged. Each start of the rank adds a line of its own.

FOLDER = "logs"
NAME = re.compile(r"rank-(\d+)\.log")
PART = 1 << 20  # bytes that are read at once of a log that is followed
LOOK_SECONDS = 0.5  # between two looks at a log that is followed


def log_path(rank: int) -> str:
    """The path of a rank's log in the run."""
    return f"{FOLDER}/rank-{rank}.log"


def read_log(run: str, rank: int) -> str:
    """The log of a rank so far.

    Raises:
        NotFoundError: there is no such run, or the rank has no log in it; lists those that have one.
    """
    folder = open_folder(run)
    content = folder.read(log_path(rank))
    if content is None:
        if not folder.exists():
            raise NotFoundError(f"run {quoted(run)} does not exist; look with landscape list, or give another")
        ranks = sorted(int(match[1]) for match in map(NAME.fullmatch, folder.names(FOLDER)) if match)
        existing = f"it has logs of ranks {', '.join(map(str, ranks))}" if ranks else "no training has logged there yet"
        raise NotFoundError(f"rank: run {quoted(run)} has no log of rank {rank}; {existing}")
    return content.decode(errors="replace")


def follow_log(run: str, rank: int, write: Callable[[str], object], is_over: Callable[[], bool]) -> None:
    """Write the log of a rank as it grows, until the training is over and all of it is written.

    While the training runs, a log that does not exist yet may still come.

    Raises:
        NotFoundError: as `read_log`; or the training has fewer ranks.
    """
    folder, written = open_folder(run), 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be half written
    while True:
        over = is_over()  # asked before the look, so that what is logged meanwhile is still seen
        try:
            part = folder.read_range(log_path(rank), written, PART)
        except FileNotFoundError:
            if over:
                read_log(run, rank)  # raises, and says which logs there are
            launch = read_launch(run)
            if launch is not None and rank >= launch.workers:
                raise NotFoundError(
                    f"rank: must be below {launch.workers}, the workers that run {quoted(run)} is trained by, not "
                    f"{rank}"
                ) from None
            part = b""
        written += len(part)
        write(decoder.decode(part, final=over and not part))
        if part:
            continue
        if over:
            return
        time.sleep(LOOK_SECONDS)


SYNC_SECONDS = 5.0  # after which an object store shows what was logged
QUIET = ("ray", "torch")  # libraries whose own remarks would hide the function's


@contextlib.contextmanager
def log_rank(run: str, rank: int, world: int, *, own_process: bool) -> Iterator[TextIO]:
    """Within the block, what this process prints and logs goes to the log of the rank, which is yielded.

    Args:
        run: an absolute folder or a URL.
        own_process: whether the process is this rank's alone. Then everything goes to the log only, also what native
            code prints; otherwise what Python prints and logs is also written where it was before.
    """
    folder = open_folder(run)
    lines = _local(folder, rank) if "://" not in folder.name else _remote(folder, rank)
    with lines as log:
        log.write(_mark(rank, world))
        with (_take_over_output if own_process else _copy_output)(log), _log_records(log, own_process):
            yield log


def _mark(rank: int, world: int) -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return f"--- {now} rank {rank} of {world} starts: process {os.getpid()} on {socket.gethostname()} ---\n"


@contextlib.contextmanager
def _local(folder: Folder, rank: int) -> Iterator[TextIO]:
    """A file that is appended to; what is written stays when the process is killed."""
    place = Path(folder.place(log_path(rank)))
    place.parent.mkdir(parents=True, exist_ok=True)
    # A link would let another file be written.
    handle = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open_lossy(handle) as log:
        yield log


@contextlib.contextmanager
def _remote(folder: Folder, rank: int) -> Iterator[TextIO]:
    """A pipe whose lines a thread puts into the object store; if the process is killed, the last seconds are lost."""
    reader, writer = os.pipe()
    thread = threading.Thread(target=_pass_on, args=(reader, folder.log(log_path(rank))), daemon=True, name="rank log")
    thread.start()
    with open_lossy(writer) as log:
        yield log
    thread.join(2 * SYNC_SECONDS)


def _pass_on(reader: int, log: LineLog) -> None:
    with open(reader, "rb") as lines:
        last = time.monotonic()
        for line in lines:
            with contextlib.suppress(Exception):  # a store that does not answer ends no training
                log.add(line)
                if time.monotonic() - last > SYNC_SECONDS:
                    log.sync()
                    last = time.monotonic()
    with contextlib.suppress(Exception):
        log.sync()


@contextlib.contextmanager
def _take_over_output(log: TextIO) -> Iterator[None]:
    """Within the block the descriptors 1 and 2 lead to the log."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(number) for number in (1, 2)]
    streams = sys.stdout, sys.stderr
    for number in (1, 2):
        os.dup2(log.fileno(), number)
    sys.stdout = sys.stderr = open_lossy(os.dup(log.fileno()))
    try:
        yield
    finally:
        sys.stdout.close()
        sys.stdout, sys.stderr = streams
        for number, descriptor in zip((1, 2), before, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


class _Both(io.TextIOBase):
    """Text that goes to two places."""

    def __init__(self, first: TextIO, second: TextIO) -> None:
        self._first, self._second = first, second

    def write(self, text: str) -> int:
        self._second.write(text)
        return self._first.write(text)

    def flush(self) -> None:
        self._first.flush()
        self._second.flush()

    def fileno(self) -> int:
        return self._first.fileno()

    def isatty(self) -> bool:
        return self._first.isatty()

    @property
    def buffer(self) -> BinaryIO:
        """The stream for bytes, which are not logged."""
        return self._first.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._first.encoding


@contextlib.contextmanager
def _copy_output(log: TextIO) -> Iterator[None]:
    """Within the block, what Python prints is also written to the log."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Both(sys.stdout, log), _Both(sys.stderr, log)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _log_records(log: TextIO, own_process: bool) -> Iterator[None]:
    """Within the block, what Python logs is written to the log; from INFO on, in a process of the rank's own."""
    handler, root = logging.StreamHandler(log), logging.getLogger()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.split(".")[0] not in QUIET)
    level = root.level
    root.addHandler(handler)
    if own_process:
        root.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
