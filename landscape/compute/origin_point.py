"""Whether the origin and the target of a line are points of a grid, and what makes them so."""

from __future__ import annotations

from landscape.core.grid import LARGEST_GROWTH, Grid, remedy_of_target, size_through
from landscape.core.validation import MAX_SIZE
from landscape.surface.barriers import has_point


def without_zero(grid: Grid) -> list[int]:
    """The axes that have no point at 0, where the origin is."""
    return [k for k, axis in enumerate(grid.coordinates) if 0.0 not in axis]


def target_remedy(grid: Grid) -> str | None:
    """What makes the target of a line, at 1, a point of the grid; None where it is one, or the range ends before it."""
    (axis,) = grid.coordinates
    return None if axis[-1] < 1 or has_point(axis, 1.0) else remedy_of_target(axis)


def origin_remedy(grid: Grid, *, line: bool = False) -> str | None:
    """What makes the origin a point of the grid; None where it is one.

    The smallest larger size that does is proposed, where zero lies at a simple fraction of the range as written.

    Args:
        line: whether the only axis leads to a target at 1, which is to be a point too where the range holds it.
    """
    axes = without_zero(grid)
    if not axes:
        return None
    sizes = [len(axis) for axis in grid.coordinates]
    better = [
        size_through(len(axis), float(axis[0]), float(axis[-1]), (0, 1) if line and axis[-1] >= 1 else (0,))
        for axis in grid.coordinates
    ]
    for k in axes:
        size = better[k]
        if size is None:
            return f"`range` must hold 0 for that, and {grid.names[k]} does not"
        if size > min(LARGEST_GROWTH * sizes[k], MAX_SIZE):
            return "a `range` with 0 in its middle and an odd `size` have one there"
        sizes[k] = size
    return f"`size: {sizes[0] if len(set(sizes)) == 1 else sizes}` has one there"
