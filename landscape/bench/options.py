"""What is measured, and how long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from landscape.core.errors import JobError, quoted
from landscape.core.plan import Engine, Precision

Report = Callable[[str], None]


@dataclass(frozen=True)
class BenchOptions:
    """What is measured, and how long.

    Args:
        precisions: default: float32 and bfloat16, and tf32 on a GPU.
        engines: default: plain eager, and every engine that the search for the best one measures.
        search_seconds: how long that search may take; default: what a run of the job would give it.
        rounds: how often every engine is timed.
        slice_seconds: about how long each timing takes.
        full: also evaluate the whole grid, with the best engine of the job's precision.
        report: is called with a line of text when something new begins.
    """

    precisions: tuple[Precision, ...] = ()
    engines: tuple[Engine, ...] = ()
    rounds: int = 5
    slice_seconds: float = 0.3
    search_seconds: float | None = None
    memory: bool = True
    ceilings: bool = True
    full: bool = False
    report: Report = field(default=lambda text: None, compare=False)


def options_for(
    precisions: Sequence[str], engines: Sequence[str], rounds: int = 5, *, search: float | None = None,
    quick: bool = False, full: bool = False, report: Report = lambda text: None,
) -> BenchOptions:  # fmt: skip
    """The options from words as they are given in a command.

    Raises:
        JobError: one of them is not a precision, an engine or a number of rounds.
    """
    known = get_args(Precision)
    for each in precisions:
        if each not in known:
            raise JobError(f"precision: must be one of {', '.join(known)}, not {quoted(each)}")
    if rounds < 1:
        raise JobError(f"rounds: must be at least 1, not {rounds}")
    try:
        parsed = tuple(Engine.parse(each) for each in engines)
    except ValueError as error:
        raise JobError(f"engine: {error}") from None
    chosen = tuple(each for each in known if each in precisions)
    options = BenchOptions(chosen, parsed, rounds, search_seconds=search, full=full, report=report)
    return replace(options, slice_seconds=0.05, search_seconds=search or 3.0) if quick else options
