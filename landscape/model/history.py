"""The history of a training: one JSON object per recorded step and per epoch's end, each on a line of its own."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.files import Folder, Place
from landscape.core.folders import open_folder
from landscape.core.lock import training_alive
from landscape.core.validation import Unit, is_number, parse_json
from landscape.model.run_files import (
    DONE,
    HISTORY_FILE,
    INTERRUPTED,
    MOST_DIGITS,
    RUNNING,
    Launch,
    checkpoint_numbers,
    contents,
    parse_whole_number,
    read_info,
    read_launch,
    refusing_disk_errors,
)
from landscape.model.snapshots import Snapshot

LAST_LINES = 20  # of a log, whose mean counts as its last loss: the loss of one step is that of one batch
MOST_READ = 10_000  # lines that are read at the end of a log without losses
log = logging.getLogger("landscape")


@dataclass(frozen=True)
class HistoryLines:
    """The lines of a history file.

    Text after the last newline is no line: a crash, or a writer at work, leaves it incomplete.

    Args:
        data: the whole file.
        readable: each line that can be parsed, as bytes (newline included) and as its object.
        damaged: the numbers, from 1, of the lines that cannot be parsed.
    """

    data: bytes
    readable: tuple[tuple[bytes, dict[str, Any]], ...]
    damaged: tuple[int, ...]


def read_lines(run: Place) -> HistoryLines:
    """The lines of the history that counts in this run; empty if there is no history."""
    data = history_data(open_folder(run))
    readable, damaged = [], []
    for number, text in enumerate(data.split(b"\n")[:-1], 1):
        line = _parse_line(text)
        if line is None:
            damaged.append(number)
        else:
            readable.append((text + b"\n", line))
    return HistoryLines(data, tuple(readable), tuple(damaged))


def history_data(folder: Folder) -> bytes:
    """The file of the history that counts; empty if there is none."""
    path = contents(folder, read_info(folder)).history
    try:
        return (folder.read(path) if path else None) or b""
    except OSError as error:
        raise LandscapeError(f"{quoted(folder.place(HISTORY_FILE))} cannot be read: {error.strerror}") from None


def _parse_line(text: bytes) -> dict[str, Any] | None:
    """The JSON object on a line; None if the line holds none."""
    try:
        # Only a long line can hold a number beyond all floating-point numbers, which nothing could draw.
        value = parse_json(text) if len(text) <= MOST_DIGITS else parse_json(text, parse_int=parse_whole_number)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_history(run: Place) -> list[dict[str, Any]]:
    """The recorded steps and epochs, in order; empty if there are none.

    Damaged lines are left out, with a warning that names them.
    """
    lines = read_lines(run)
    if lines.damaged:
        _warn(open_folder(run).place(HISTORY_FILE), lines.damaged)
    return [line for _, line in lines.readable]


@dataclass(frozen=True)
class HistoryBytes:
    """The bytes of a history, read once."""

    data: bytes


@dataclass(frozen=True)
class LogEnd:
    """The end of a log, or of its part up to some step or epoch.

    Attributes:
        step: how many steps were done; None if no line has a step.
        epoch: how many epochs had ended; None if no line has an epoch.
        loss: the mean of the last finite losses, at most 20 and all of one epoch, since the loss of one step is that of
            one batch; None if there are none.
        stderr: the standard error of that mean; 0 for a single loss.
        is_finite: whether the last loss in the log is finite; otherwise `loss` is of earlier steps. The log holds null
            for NaN and infinity.
        loss_at: the step of the last finite loss, such as `step 149`; empty if the log ends with a finite loss.
    """

    step: int | None = None
    epoch: int | None = None
    loss: float | None = None
    stderr: float = 0.0
    is_finite: bool = True
    loss_at: str = ""

    @property
    def not_finite(self) -> str:
        """The message that the log ends without a finite loss, with `loss`; empty if it ends with a finite one."""
        if self.is_finite:
            return ""
        before = "" if self.loss is None else f", {self.loss:.4g} on average up to {self.loss_at or 'then'}"
        return f"no finite loss at its log's end{before}"


@dataclass(frozen=True)
class LossStretch:
    """Successive losses of a log: their mean, its standard error, and their count.

    If `whole`, they are those of all steps of an epoch: the mean is over all samples, so it has no sampling noise.
    """

    mean: float
    stderr: float
    count: int
    whole: bool = False


Until = tuple[Unit, int]  # an epoch or step, by its number


def read_history_bytes(run: Place) -> HistoryBytes:
    """The history that counts in this run, for `log_end` and `last_stretches`, which then need not read it again."""
    return HistoryBytes(history_data(open_folder(run)))


def log_end(run: Place | HistoryBytes, until: Until | None = None) -> LogEnd | None:
    """The end of a run's log; None if it has no lines. This is the only function that looks for it.

    Args:
        run: the run, or its log if that was read before.
        until: count only the lines up to this epoch or step.
    """
    step: int | None = None
    epoch: int | None = None
    losses: list[float] = []
    of_epoch, lines_read, is_finite, loss_at = None, 0, True, ""
    for line in _lines_backwards(run, until):
        lines_read += 1
        step = number_in(line, "step") if step is None else step
        epoch = _epochs_ended(line) if epoch is None else epoch
        loss = line.get("loss")
        if is_number(loss):
            if losses and line.get("epoch") != of_epoch:
                break
            if not losses and not is_finite:
                loss_at = _place(line)
            of_epoch = line.get("epoch")
            losses.append(float(loss))
        elif "loss" in line and not losses:
            is_finite = False
        is_complete = len(losses) == LAST_LINES and (step is not None or epoch is not None)
        if is_complete or lines_read == MOST_READ:
            break
    if not lines_read:
        return None
    last = losses[:LAST_LINES]
    mean, error = _mean_and_error(last) if last else (None, 0.0)
    return LogEnd(step, epoch, mean, error, is_finite, loss_at)


def last_stretches(run: Place | HistoryBytes, until: Until | None = None, most: int = 3) -> list[LossStretch]:
    """The last stretches of a log, by which the loss still falls or not, the oldest first; fewer if the log is short.

    They are epochs; the last epoch counts from its middle on. For a log of a single epoch, or without epochs, they are
    stretches of equal length, at least 20 lines each.

    Args:
        run: the run, or its log if that was read before.
        until: count only the lines up to this epoch or step.
        most: how many stretches.
    """
    lines = [line for line in _lines_backwards(run, until) if is_number(line.get("loss"))][::-1]
    epochs: dict[Any, list[dict[str, Any]]] = {}
    for line in lines:
        epochs.setdefault(number_in(line, "epoch"), []).append(line)
    groups, of_epochs = list(epochs.values()), True
    if len(groups) > 1 and 2 * len(groups[-1]) < len(groups[-2]):  # the beginning of an epoch is not enough
        groups.pop()
    if len(groups) < 2 or None in epochs:
        of_epochs = False
        size = max(LAST_LINES, len(lines) // LAST_LINES)
        ends = range(len(lines), size - 1, -size)
        groups = [lines[end - size : end] for end in ends][::-1]
    groups = groups[-most:]
    whole = of_epochs and len({len(group) for group in groups}) == 1 and all(map(_is_gapless, groups))
    return [_stretch([float(line["loss"]) for line in group], whole) for group in groups]


def _is_gapless(lines: list[dict[str, Any]]) -> bool:
    """Whether lines of one epoch are those of successive steps, or one line stands for the epoch."""
    first, last = number_in(lines[0], "step"), number_in(lines[-1], "step")
    return len(lines) == 1 or (first is not None and last is not None and last - first + 1 == len(lines))


def _stretch(losses: list[float], whole: bool) -> LossStretch:
    return LossStretch(*_mean_and_error(losses), len(losses), whole)


def _mean_and_error(losses: list[float]) -> tuple[float, float]:
    mean = math.fsum(losses) / len(losses)
    if len(losses) < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((loss - mean) ** 2 for loss in losses) / (len(losses) - 1) / len(losses))


def _lines_backwards(run: Place | HistoryBytes, until: Until | None) -> Iterator[dict[str, Any]]:
    """The readable lines up to an epoch or step, the last one first."""
    whole = run if isinstance(run, HistoryBytes) else read_history_bytes(run)
    for text in reversed(whole.data.split(b"\n")[:-1]):
        line = _parse_line(text)
        if line is not None and (until is None or (number_in(line, until[0]) or 0) <= until[1]):
            yield line


def _place(line: Mapping[str, Any]) -> str:
    """The step of a line, else its epoch, such as `step 149`; empty if another program wrote neither."""
    numbered = ((name, number_in(line, name)) for name in ("step", "epoch"))
    return next((f"{name} {number}" for name, number in numbered if number is not None), "")


def number_in(line: Mapping[str, Any], name: str) -> int | None:
    """The step or epoch of a line; None if another program wrote none."""
    value = line.get(name)
    return int(value) if is_number(value) else None


def _epochs_ended(line: Mapping[str, Any]) -> int | None:
    """How many epochs have ended at a line; the line of a step has the number of its epoch."""
    epoch = number_in(line, "epoch")
    if epoch is None or line.get("epoch_end") or line.get("step") is None:  # a line without a step is of an epoch
        return epoch
    return max(0, epoch - 1)


@lru_cache(maxsize=256)  # an open page reads the same lines repeatedly, and should warn once
def _warn(place: str, damaged: tuple[int, ...]) -> None:
    rest = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
    numbers = ", ".join(map(str, damaged[:5]))
    log.warning(
        "history %s: line%s %s%s cannot be read and %s left out; the other lines are kept",
        quoted(place), "s" if len(damaged) > 1 else "", numbers, rest, "are" if len(damaged) > 1 else "is",
    )  # fmt: skip


def keep_beside(folder: Folder, data: bytes, reason: str) -> str:
    """Copy a history to `history.jsonl.<reason>-<digest>`, which is never overwritten; returns that name."""
    name = f"{HISTORY_FILE}.{reason}-{hashlib.sha256(data).hexdigest()[:8]}"
    with refusing_disk_errors(folder.place(name)):
        folder.write(name, data)
    return name


def kept_beside(folder: Folder, reason: str) -> list[str]:
    """The names of the copies that `keep_beside` wrote for this reason."""
    pattern = re.compile(rf"{re.escape(HISTORY_FILE)}\.{reason}-[0-9a-f]{{8}}")
    return [name for name in folder.names("") if pattern.fullmatch(name)]


class HistoryWriter:
    """Appends to the history of a run that is being trained.

    `core/files.py` (`LineLog`) says when an appended line is safe from a crash.
    """

    def __init__(self, run: Place) -> None:
        self._folder = open_folder(run)
        with refusing_disk_errors(self._folder.name):
            self._log = self._folder.log(HISTORY_FILE)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one recorded step or epoch."""
        with refusing_disk_errors(self._folder.name):
            self._log.add(history_line(line).encode())

    def sync(self) -> None:
        """Make every line appended so far survive a crash of this process and a power cut."""
        with refusing_disk_errors(self._folder.name):
            self._log.sync()


def history_line(line: Mapping[str, Any]) -> str:
    """A line of the history as text, newline included."""
    return json.dumps(line, allow_nan=False) + "\n"


def recorded_number(name: str, value: Any) -> float | int | None:
    """A loss or metric in the form of the history: a number; None if it is None, NaN or infinite.

    Example:
        >>> recorded_number("loss", 0.5), recorded_number("loss", float("nan"))
        (0.5, None)

    Raises:
        JobError: the value is not one number; the message begins with `name`.
    """
    if value is None:
        return None
    if getattr(value, "numel", lambda: 1)() != 1 or isinstance(value, (str, bytes)):
        shape = f"an array of shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)
        raise JobError(f"{name}: must be one number, not {shape}; take its mean")
    try:
        number = value.item() if hasattr(value, "item") else value
        return finite(number if isinstance(number, int) else float(number))
    except (TypeError, ValueError, ArithmeticError, RuntimeError):  # the last: a tensor without data
        raise JobError(f"{name}: must be one number, not {type(value).__name__}") from None


def finite(value: Any) -> float | int | None:
    """A number for JSON: None if it is NaN or infinite."""
    return value if isinstance(value, int) or math.isfinite(value) else None


# ----------------------------------------------------------------------------------------------------
# The state of a run's training, from its last start, its history and its checkpoints.


def training_state(run: Place, end: LogEnd | None) -> dict[str, Any] | None:
    """The state of a run's training; None if the run has no sign of one.

    Returns:
        A dict of plain values: `state` ("running", "done", "interrupted", "failed"; None for a training that
        `landscape train` did not begin), `function` and `workers` of the last start (None likewise), `steps` and
        `epochs` of the history, the `loss` at its end, see `log_end`, `loss_not_finite` (the message that the log ends
        without a finite loss; else empty), `checkpoint` (the number of the last one, which is its step), `reason` (of a
        failure, else empty), and `next` (the command to give now; empty if there is none).

    Raises:
        LandscapeError: the history or run.json cannot be read, or the object store does not answer.
    """
    folder = open_folder(run)
    launch, numbers = read_launch(folder), checkpoint_numbers(folder)
    alive = training_alive(folder.name)
    if not (launch or numbers or alive or end):
        return None
    state = _state(launch, alive)
    return {
        "state": state,
        "function": launch.function if launch else None,
        "workers": launch.workers if launch else None,
        "steps": end.step if end else None,
        "epochs": end.epoch if end else None,
        "loss": end.loss if end else None,
        "loss_not_finite": end.not_finite if end else "",
        "checkpoint": numbers[-1] if numbers else None,
        "reason": launch.reason if launch and not alive else "",
        "next": _next(launch, state, folder),
    }


def _state(launch: Launch | None, alive: bool) -> str | None:
    if alive:
        return RUNNING
    if launch is None:
        return None
    # A killed driver could not record its end.
    return INTERRUPTED if launch.outcome == RUNNING else launch.outcome


def _next(launch: Launch | None, state: str | None, folder: Folder) -> str:
    run = folder.name
    if state == RUNNING:
        return f"landscape logs {shlex.quote(run)} --rank 0 --follow" if launch else ""
    if state == DONE:  # without a collector, there is nothing to draw
        return f"landscape view {shlex.quote(run)}" if read_info(folder) else ""
    return launch.command if launch else ""


def went_on_to(end: LogEnd | None, snapshot: Snapshot) -> str:
    """The end of a run's log if it is beyond a snapshot, such as `epoch 12`, or `epoch 12 (no finite loss)`.

    Empty if the training ended with the snapshot, according to its log.
    """
    if end is None:
        return ""
    if snapshot.step is not None and end.step is not None:
        goes_on = end.step > snapshot.step
    else:
        last = end.epoch if snapshot.unit == "epoch" else end.step
        goes_on = last is not None and last > snapshot.number
    if not goes_on:
        return ""
    of_epochs = snapshot.unit == "epoch" and end.epoch is not None and end.epoch > snapshot.number
    suffix = "" if end.is_finite else " (no finite loss)"
    return (f"epoch {end.epoch}" if of_epochs or end.step is None else f"step {end.step}") + suffix
