"""The progress of a landscape, the stages before its first point, how people see both, and the rule for failed tasks.

People see a bar on a terminal and in a notebook, elsewhere a line for every 10 %, on stderr.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from landscape.core.errors import masked, printable
from landscape.core.text import seconds_text

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Progress:
    """How far one landscape is.

    Args:
        tasks_done: how many of all `tasks` are committed, by this session or an earlier one.
        points_done: how many of all `points` are done; evaluations of the path count too.
        seconds: of all sessions together.
        rate: points per second over this session.
        failures: tasks that were given up and have not been done since.
        workers: how many compute now.
        retries: how many tasks were sent again.
        given_up: points that this session gave up; a later session tries them again.
        unit: what is counted as points: `evaluations` where points know different numbers of samples.
        note: what else is reached so far; '' for nothing.
    """

    landscape: str
    tasks_done: int
    tasks: int
    points_done: int
    points: int
    seconds: float
    rate: float
    failures: int = 0
    workers: int = 1
    retries: int = 0
    given_up: int = 0
    unit: str = "points"
    note: str = ""

    @property
    def left(self) -> int:
        """Points that are neither done nor given up."""
        return self.points - self.points_done - self.given_up

    @property
    def eta(self) -> float:
        """Seconds left at the present rate; infinite before the first task is done."""
        return self.left / self.rate if self.rate > 0 else float("inf")


PREPARING, CHOOSING = "loading the problem and its samples", "measuring a point and choosing an engine"
STARTING_WORKERS = "starting workers"
stages = logging.getLogger("landscape.stages")


def stage(name: str) -> None:
    """Log what a job does now; the logger `landscape.stages` is silent unless somebody listens to it."""
    stages.info("%s", name, extra={"event": "stage", "fields": {"stage": name}})


Observer = Callable[[Progress], None]


# ----------------------------------------------------------------------------------------------------
# Whether a failed task is tried again or given up, in serial runs and in the schedule of a cluster. Counts alone
# decide, except for `NotRetried`, which ends the job; the schedule chooses the worker that tries a task next.

Fate = Literal["retry", "quarantine"]


@dataclass(frozen=True)
class RetryRule:
    """How often a task may fail.

    Attributes:
        attempts: exceptions of user code until the task is given up.
        kills: workers that die while they run it until the task is given up.
    """

    attempts: int = 3
    kills: int = 3

    def after_exception(self, exceptions: int) -> Fate:
        """The fate of a task whose user code has just raised.

        Args:
            exceptions: how often it has raised so far, this time included.
        """
        return "quarantine" if exceptions >= self.attempts else "retry"

    def after_death(self, kills: int) -> Fate:
        """The fate of a task that has just come back from a dead worker.

        Args:
            kills: how many workers died while they ran it, without those that were lost with their node.
        """
        return "quarantine" if kills >= self.kills else "retry"


# ----------------------------------------------------------------------------------------------------
# What people see.

NOTEBOOK_SECONDS = 0.2  # between two drawings of a bar in a notebook: each is a message to the browser


def progress_text(progress: Progress) -> str:
    """One line on a landscape: how much is done, how fast, how long the rest takes, what went wrong."""
    share = progress.points_done / progress.points if progress.points else 1.0
    parts = [f"{progress.landscape}: {progress.points_done}/{progress.points} {progress.unit} ({share:.0%})"]
    if progress.note:
        parts.append(progress.note)
    if progress.rate > 0:
        parts.append(f"{progress.rate:.3g} {progress.unit}/s")
        if progress.left:
            parts.append(f"ETA {seconds_text(progress.eta)}")
    if progress.retries:
        parts.append(f"{progress.retries} tried again")
    if progress.given_up:
        parts.append(f"{progress.given_up} given up")
    return ", ".join(parts)


def _fields(progress: Progress) -> dict[str, Any]:
    """The fields of `progress_text` for machines."""
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


class WriteLine(Protocol):
    """Writes a line: its text, the name of its event, and the fields of that event for machines."""

    def __call__(self, text: str, event: str, **fields: Any) -> None: ...


def write_line(text: str, event: str, **fields: Any) -> None:
    """Write a line to stderr, if there is one: with its end at once, so that no other thread writes between."""
    if sys.stderr is not None:
        sys.stderr.write(f"{printable(masked(text))}\n")
        sys.stderr.flush()


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _in_notebook() -> bool:
    return "IPython" in sys.modules and _console().is_jupyter


def is_watched() -> bool:
    """Whether a person watches: at a terminal, or in a notebook."""
    return (sys.stderr is not None and sys.stderr.isatty()) or _in_notebook()


@contextlib.contextmanager
def show_progress(observer: Observer | None, progress: bool = True) -> Iterator[Observer]:
    """The observer; where there is none, a display, or with `progress=False` an observer that does nothing."""
    if observer is not None:
        yield observer
    elif progress:
        with ProgressDisplay() as display:
            yield display
    else:
        yield lambda progress: None


class _Stages(logging.Handler):
    """Passes on the stage that a job is in, and its progress within the stage."""

    def __init__(self, tell: Callable[[str], None], note: Callable[[str], None]) -> None:
        super().__init__()
        self._tell, self._note = tell, note

    def emit(self, record: logging.LogRecord) -> None:
        (self._tell if record.name == stages.name else self._note)(record.getMessage())


class ProgressDisplay:
    """An observer of `Progress`, as a context manager, which also shows the stages of the job.

    On a terminal and in a notebook it shows a bar. Elsewhere it writes lines, and only on stages after the job was
    checked.
    """

    def __init__(self, screen: Console | None = None, write: WriteLine = write_line, *, events: bool = False) -> None:
        """
        Args:
            screen: where the bar is drawn; default: stderr, if a person watches it, else there is no bar.
            write: writes the lines where there is no bar.
            events: whether the lines are for machines: no bar is drawn, and stages are left to whoever logs them.
        """
        self._screen, self._write, self._events = screen, write, events
        self._bar: Any = None
        self._cell: Any = None  # the output of a notebook's cell that shows the bar
        self._drawn = 0.0  # when it was drawn last
        self._stage: Any = None
        self._tasks: dict[str, Any] = {}
        self._tenths: dict[str, int] = {}  # landscape → how many tenths of it the last line reported
        self._shown_stages: set[str] = set()
        self._level = logging.NOTSET
        self._logged = False  # whether the program's own log shows the stages, as with --debug
        self._stages = _Stages(self.stage, self.note)
        self.landscapes: set[str] = set()

    def __enter__(self) -> Self:
        if self._events:
            return self
        if self._screen or is_watched():
            self._show_bar()
        self._level, self._logged = stages.level, stages.isEnabledFor(logging.INFO)
        stages.setLevel(logging.INFO)
        stages.propagate = self._logged
        stages.addHandler(self._stages)
        return self

    def _show_bar(self) -> None:
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
        if self._screen is None and _in_notebook():
            # Rich would draw by ipywidgets, which not every notebook has; any notebook can replace an output.
            from IPython.display import display

            self._cell = display(self._bar, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._end_stage()
            self._draw(last=True)
            self._bar.stop()
        if self._stages in stages.handlers:
            stages.removeHandler(self._stages)
            stages.setLevel(self._level)
            stages.propagate = True

    def _draw(self, last: bool = False) -> None:
        """Draw the bar in its notebook, unless it has just been drawn; on a terminal it draws itself."""
        if self._cell is not None and (last or time.monotonic() > self._drawn + NOTEBOOK_SECONDS):
            self._drawn = time.monotonic()
            self._cell.update(self._bar)

    def stage(self, text: str) -> None:
        """Show the present stage, before the points and between landscapes."""
        if self._bar is None:
            if text != PREPARING and text not in self._shown_stages and not self._logged:
                self._shown_stages.add(text)
                self._write(text, "stage")
            return
        self._end_stage()
        self._stage = self._bar.add_task(text, total=None, note="")
        self._draw()

    def note(self, text: str) -> None:
        """Show the progress of the present stage, if there is a bar: elsewhere it would take a line per candidate."""
        if self._bar is not None and self._stage is not None:
            self._bar.update(self._stage, note=text)
            self._draw()

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
        notes = [f"{progress.rate:.3g}/s"] * (progress.rate > 0)
        notes += [f"ETA {seconds_text(progress.eta)}"] * (progress.rate > 0 and progress.left > 0)
        notes += [f"{progress.given_up} given up"] * (progress.given_up > 0)
        self._bar.update(self._tasks[name], completed=progress.points_done, note=", ".join(notes))
        self._draw()

    def _line(self, progress: Progress) -> None:
        settled = progress.points - progress.left
        tenth = 10 * settled // progress.points if progress.points else 10
        if self._tenths.get(progress.landscape) != tenth:
            self._tenths[progress.landscape] = tenth
            self._write(progress_text(progress), "progress", **_fields(progress))
