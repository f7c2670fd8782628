"""Progress on stderr while a job runs: a bar with rate and ETA on a terminal, a line per 10 % elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cluster.runtime.logs import as_json, in_detail, write_remark
from landscape.core.errors import PREPARING, Observer, Progress, stages

if TYPE_CHECKING:
    from rich.console import Console


def seconds_text(seconds: float) -> str:
    """A duration for people: 8 s, 3 min 20 s, 2 h 05 min."""
    if seconds != seconds or seconds == float("inf"):
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 1 or whole == seconds else f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def bytes_text(count: float) -> str:
    """A number of bytes for people: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def describe(progress: Progress) -> str:
    """One line on a landscape: how much, how fast, how long to go, what went wrong."""
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
    """The same for machines."""
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
def shown_progress(observer: Observer | None) -> Iterator[Observer]:
    """The observer; where there is none, a display for whoever looks on."""
    if observer is not None:
        yield observer
    elif is_watched():
        with ProgressDisplay() as display:
            yield display
    else:
        yield lambda progress: None


class _Stages(logging.Handler):
    """Passes on which stage a job is in, and how far it is with that."""

    def __init__(self, tell: Callable[[str], None], note: Callable[[str], None]) -> None:
        super().__init__()
        self._tell, self._note = tell, note

    def emit(self, record: logging.LogRecord) -> None:
        (self._tell if record.name == stages.name else self._note)(record.getMessage())


class ProgressDisplay:
    """An observer of `Progress`, as a context manager; within it, the stages of the job are shown too.

    On a terminal and in a notebook a bar; elsewhere lines, which tell of stages only once the job is known to be good.
    """

    def __init__(self, screen: Console | None = None) -> None:
        """
        Args:
            screen: where the bar is drawn; default: stderr, where a person watches it, else there is no bar.
        """
        self._screen = screen
        self._bar: Any = None
        self._stage: Any = None
        self._tasks: dict[str, Any] = {}
        self._told: dict[str, int] = {}
        self._said: set[str] = set()
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

    def stage(self, what: str) -> None:
        """What is done now, before the points and between landscapes."""
        if self._bar is None:
            if what != PREPARING and what not in self._said and not in_detail():
                self._said.add(what)
                write_remark(what, "stage")
            return
        self._end_stage()
        self._stage = self._bar.add_task(what, total=None, note="")

    def note(self, what: str) -> None:
        """How far the present stage is; on a terminal alone, elsewhere it would be a line for each candidate."""
        if self._bar is not None and self._stage is not None:
            self._bar.update(self._stage, note=what)

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
        if self._told.get(progress.landscape) != tenth:
            self._told[progress.landscape] = tenth
            write_remark(describe(progress), "progress", **_fields(progress))
