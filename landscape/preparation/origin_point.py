"""Whether the origin is a point of a grid, and what makes it one."""

from __future__ import annotations

from landscape.fields import MAX_SIZE
from landscape.grid import Grid, size_through_zero

LARGEST_GROWTH = 2  # of an axis that is proposed so that the origin becomes a point


def without_zero(grid: Grid) -> list[int]:
    """The axes that have no point at 0, where the origin is."""
    return [k for k, axis in enumerate(grid.coordinates) if 0.0 not in axis]


def origin_remedy(grid: Grid) -> str | None:
    """What makes the origin a point of the grid; None where it is one.

    The smallest larger size that does is proposed, where zero lies at a simple fraction of the range as written.
    """
    axes = without_zero(grid)
    if not axes:
        return None
    sizes = [len(axis) for axis in grid.coordinates]
    better = [size_through_zero(len(axis), float(axis[0]), float(axis[-1])) for axis in grid.coordinates]
    for k in axes:
        size = better[k]
        if size is None:
            return f"`range` must hold 0 for that, and {grid.names[k]} does not"
        if size > min(LARGEST_GROWTH * sizes[k], MAX_SIZE):
            return "a `range` with 0 in its middle and an odd `size` have one there"
        sizes[k] = size
    return f"`size: {sizes[0] if len(set(sizes)) == 1 else sizes}` has one there"
