"""The commands that refine a box of a landscape: what each computes, and why one has nothing to do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from landscape.core.errors import LandscapeError
from landscape.page.runs import RunReader
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import FACTORS, Finer, box_of_blocks, levels_left, points_left
from landscape.store.state import cause_of
from landscape.surface.surface import Axis

DIGITS = 6  # of the ends of a box that a hand has drawn


def finer_steps(
    run: RunReader, landscape: str, axes: Sequence[Axis], box: Sequence[tuple[float, float]], problem: str | None
) -> list[dict[str, Any]]:
    """A command per factor, for a box cut off where it leaves the landscape.

    Args:
        problem: what stands for the callback in the command; None for the recorded one.

    Returns:
        For each factor `command`, how many `points` it computes, and what it `covers` as [low, high] of each axis; or
        the `reason` why there is no such command.
    """
    return [{"factor": factor} | _finer(run, landscape, axes, box, factor, problem) for factor in FACTORS]


def _finer(
    run: RunReader,
    landscape: str,
    axes: Sequence[Axis],
    box: Sequence[tuple[float, float]],
    factor: int,
    problem: str | None,
) -> dict[str, Any]:
    try:
        inside = [snapped(*ends, axis) for ends, axis in zip(box, axes, strict=False)]
        inside += [(float(axis.coordinates[0]), float(axis.coordinates[-1])) for axis in axes[len(box) :]]
        finer = Finer(factor, inside)
        if run.alive():
            return {"reason": "a job writes this run now; refine when it has ended"}
        path, store = run.found.path, LandscapeStore.open(run.found.path, landscape)
        points = sum(points_left(path, landscape, each, store.shape) for each in levels_left(path, landscape, finer))
        covers = [list(ends) for ends in box_of_blocks(store, finer)]
    except LandscapeError as error:
        return {"reason": cause_of(error)}
    return {"command": _command(path, landscape, inside, factor, problem), "points": points, "covers": covers}


def snapped(low: float, high: float, axis: Axis) -> tuple[float, float]:
    """The ends of a box along an axis in a few digits, within the landscape.

    >>> import numpy as np
    >>> snapped(-3.0, 0.123456789, Axis("alpha", np.array([-1.0, 0.0, 1.0])))
    (-1.0, 0.123457)
    """
    first, last = float(axis.coordinates[0]), float(axis.coordinates[-1])
    rounded = [float(f"{end:.{DIGITS}g}") for end in (low, high)]
    return max(first, min(last, rounded[0])), max(first, min(last, rounded[1]))


def _command(run: str, landscape: str, box: Sequence[tuple[float, float]], factor: int, problem: str | None) -> str:
    ends = ",".join(repr(end) for pair in box for end in pair)
    more = ["--problem", problem] if problem is not None else []
    words = ["landscape", "refine", run, landscape, f"--box={ends}", "--factor", str(factor), *more]
    return " ".join(map(shlex.quote, words))
