"""What a person sees while a job runs: a bar with rate and ETA on a terminal, a line per 10 % elsewhere. On stderr."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from cluster.logs import as_json, say
from landscape.progress import Progress


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


def describe(progress: Progress) -> str:
    """One line on a landscape: how much, how fast, how long to go, what went wrong."""
    share = progress.points_done / progress.points if progress.points else 1.0
    parts = [f"{progress.landscape}: {progress.points_done}/{progress.points} points ({share:.0%})"]
    if progress.rate > 0:
        parts.append(f"{progress.rate:.3g} points/s")
        if progress.points_done < progress.points:
            parts.append(f"ETA {seconds_text(progress.eta)}")
    if progress.retries:
        parts.append(f"{progress.retries} tried again")
    if progress.failures:
        parts.append(f"{progress.failures} given up")
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
    }


class ProgressDisplay:
    """An observer of `Progress`, as a context manager."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        self._told: dict[str, int] = {}
        self.landscapes: set[str] = set()

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not as_json():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
            )  # fmt: skip
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        self.landscapes.add(progress.landscape)
        if self._bar is None:
            self._line(progress)
            return
        name = progress.landscape
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=progress.points, note="")
        rate = f"{progress.rate:.3g}/s, ETA {seconds_text(progress.eta)}" if progress.rate > 0 else ""
        failed = f", {progress.failures} given up" if progress.failures else ""
        self._bar.update(self._tasks[name], completed=progress.points_done, note=rate + failed)

    def _line(self, progress: Progress) -> None:
        tenth = 10 * progress.points_done // progress.points if progress.points else 10
        if self._told.get(progress.landscape) != tenth:
            self._told[progress.landscape] = tenth
            say(describe(progress), "progress", **_fields(progress))
