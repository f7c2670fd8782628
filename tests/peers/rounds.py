"""Time contenders in turns, A B C A B C …, in one process, so that the machine's noise hits all alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from adapters import Contender, Prepared, Surface
from subjects import Lattice, Points, Subject

TRIALS = 5  # of one point for each batch size, in turns; the quickest counts


@dataclass
class Row:
    """A contender and all that was found about it; `reason` says why where it cannot run."""

    contender: Contender
    batch_size: int | None = None
    first_seconds: float = 0.0
    trials: dict[int, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    surface: Surface | None = None
    losses_at: Callable[[Points], list[float]] | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def median(self) -> float:
        return median(self.seconds)


def ratios(above: Row, below: Row, *, cpu: bool = False) -> list[float]:
    """Time of one over time of the other, round by round; CPU time leaves out what other processes took."""
    pairs = (above.cpu_seconds, below.cpu_seconds) if cpu else (above.seconds, below.seconds)
    return [a / b for a, b in zip(*pairs, strict=True)]


def run_rounds(
    contenders: Sequence[Contender],
    subject: Subject,
    lattice: Lattice,
    rounds: int,
    batch_sizes: Sequence[int],
    say: Callable[[str], None],
) -> list[Row]:
    """Every contender once to begin with, whose values are kept, then all of them in each round."""
    rows, calls = [Row(each) for each in contenders], {}
    for row in rows:
        try:
            calls[row.name] = _begin(row, subject, lattice, batch_sizes)
        except Exception as error:  # whatever stops a tool is what the table says about it
            row.reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        say(f"{subject.name}: {row.name}: {row.reason or f'ready, batches of {row.batch_size}'}")
    for number in range(rounds):
        running = [row for row in rows if not row.reason]
        start = number % max(1, len(running))  # each round begins with another one
        for row in running[start:] + running[:start]:
            wall, cpu = _timed(calls[row.name])
            row.seconds.append(wall / len(lattice.points))
            row.cpu_seconds.append(cpu / len(lattice.points))
        say(f"{subject.name}: round {number + 1} of {rounds}")
    return rows


def _begin(row: Row, subject: Subject, lattice: Lattice, batch_sizes: Sequence[int]) -> Callable[[], Any]:
    """Choose the batch size, prepare, and call once: compilation, caches and lazy imports are not in the rounds."""
    adapter = row.contender.adapter
    if row.contender.tuned:
        sizes = sorted({min(size, len(subject.targets)) for size in batch_sizes})
        row.trials = _try_batch_sizes({size: adapter(subject, Lattice(1), size) for size in sizes})
        row.batch_size = min(row.trials, key=row.trials.__getitem__)
    begun = time.perf_counter()
    prepared = adapter(subject, lattice, row.batch_size)
    row.surface = prepared.compute()
    row.first_seconds = time.perf_counter() - begun
    row.notes, row.losses_at = dict(prepared.notes), prepared.losses_at
    if not row.contender.tuned:
        row.batch_size = row.notes.get("plan", {}).get("batch_size", len(subject.targets))
    return prepared.compute


def _try_batch_sizes(prepared: Mapping[int, Prepared]) -> dict[int, float]:
    """Seconds for one point by batch size."""
    found = [{size: _timed(each.compute)[0] for size, each in prepared.items()} for _ in range(TRIALS)]
    return {size: min(trial[size] for trial in found) for size in prepared}


def _timed(compute: Callable[[], Any]) -> tuple[float, float]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    compute()
    return time.perf_counter() - wall, time.process_time() - cpu
