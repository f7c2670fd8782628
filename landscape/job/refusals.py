"""What is refused of the axes of a landscape, whatever short form they were written in."""

from __future__ import annotations

from landscape.job.directions.kinds import Direction
from landscape.job.directions.pca import PcaDirection
from landscape.job.paths import PathOfRun, refuse_twice


def refuse_without_paths(directions: tuple[Direction, ...], paths: tuple[PathOfRun, ...] | None) -> None:
    """Refuse paths that stand twice, and components of paths where none are drawn.

    Raises:
        ValueError: with the rule and the remedy.
    """
    if paths:
        refuse_twice(paths)
    elif any(isinstance(each, PcaDirection) and each.trajectory == "paths" for each in directions):
        raise ValueError("directions: `trajectory: paths` goes with paths only; list the runs: paths: [runs/sgd, …]")


def refuse_auto(directions: tuple[Direction, ...]) -> None:
    """Refuse a range that is to be found along axes that end somewhere already.

    Raises:
        ValueError: with the rule and the remedy.
    """
    for direction in directions:
        if direction.reaches_to:
            kind = direction.title or direction.kind
            raise ValueError(
                f"range must be left out along {kind} axes, or given in numbers, not auto; left out, it reaches "
                f"{direction.reaches_to}"
            )


def refuse_equal(directions: tuple[Direction, ...]) -> None:
    """Refuse two axes that are one.

    Raises:
        ValueError: with the rule and the remedy.
    """
    described = [direction.model_dump_json() for direction in directions]
    for axis, text in enumerate(described):
        if text in described[:axis]:
            raise ValueError(f"directions {described.index(text) + 1} and {axis + 1} are the same: {text}; change one")
