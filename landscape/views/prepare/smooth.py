"""Contour lines of coarse grids without corners: a bicubic interpolation, where the values are exact enough for one."""

from __future__ import annotations

import numpy as np

from landscape.core.grid import Floats
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare.figure import FigureData

COARSE, FEWEST = (
    60,
    4,
)  # points per axis: of a finer grid straight pieces look smooth, of a coarser one nothing is known
FINE = 240  # points per axis, at least, of the interpolated grid
EXACT = 0.1  # of the step between two contour lines: larger errors of the values would be drawn as shapes
GRID_POINTS = "points of the grid"  # the legend entry of their ticks
MOST = 0.95  # of the points, whose errors must be smaller


def contour_field(data: FigureData, spec: FigureSpec) -> tuple[Floats, Floats, Floats]:
    """The coordinates x [n] and y [m], and the drawn values [m, n], through which contour lines run."""
    x, y = (axis.coordinates for axis in data.axes[:2])
    if not is_smooth(data, spec):
        return x, y, data.drawn
    fine_x, fine_y = (_finer(axis) for axis in (x, y))
    return fine_x, fine_y, bicubic(x, y, data.drawn, fine_x, fine_y)


def is_smooth(data: FigureData, spec: FigureSpec) -> bool:
    """Whether contour lines run through interpolated values: as asked for, else if grid and errors allow it."""
    if len(data.axes) != 2 or min(data.drawn.shape) < FEWEST or data.categories:
        return False
    if spec.smooth is not None:
        return spec.smooth
    if max(data.drawn.shape) >= COARSE or data.interpolated is not None or not spec.is_for_print:
        return False
    return _is_exact(data)


def _is_exact(data: FigureData) -> bool:
    """Whether the sampling errors of the shape are small beside the step between two contour lines."""
    if data.shape_error is None or len(data.scale.ticks) < 2:
        return False
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = data.shape_error / (np.abs(data.values) * np.log(10)) if data.scale.log else data.shape_error
    known = errors[np.isfinite(errors) & np.isfinite(data.drawn)]
    return bool(known.size) and float(np.quantile(known, MOST)) <= EXACT * float(np.median(np.diff(data.scale.ticks)))


def smooth_note(data: FigureData, spec: FigureSpec) -> list[str]:
    """The caption's note that contour lines are interpolated."""
    return ["Contour lines from a bicubic interpolation between the points"] if is_smooth(data, spec) else []


def _finer(axis: Floats) -> Floats:
    factor = max(2, -(-FINE // (len(axis) - 1)))
    return np.interp(np.arange((len(axis) - 1) * factor + 1) / factor, np.arange(len(axis)), axis)


def bicubic(x: Floats, y: Floats, values: Floats, at_x: Floats, at_y: Floats) -> Floats:
    """The `values` [y, x] at other coordinates, by cubic Hermite pieces along each axis.

    The slope at a point is that of the parabola through it and its neighbours (Catmull-Rom on even steps; Keys 1981),
    so polynomials of second degree are met exactly, and the values at the points themselves. Beside a missing value the
    pieces are linear, and cells with a missing corner stay missing.

    >>> x = np.linspace(0, 3, 4)
    >>> bicubic(x, x, np.add.outer(x**2, x), np.array([1.5]), np.array([0.5]))
    array([[1.75]])
    """
    return _along(y, _along(x, values, at_x).T, at_y).T


def _along(x: Floats, rows: Floats, at: Floats) -> Floats:
    """Rows [m, n] over `x` [n] at the places `at` [k], [m, k]."""
    step = np.diff(x)
    slope = np.diff(rows, axis=1) / step
    inner = (slope[:, :-1] * step[1:] + slope[:, 1:] * step[:-1]) / (step[:-1] + step[1:])
    first = slope[:, :1] if slope.shape[1] < 2 else 2 * slope[:, :1] - inner[:, :1]
    last = slope[:, -1:] if slope.shape[1] < 2 else 2 * slope[:, -1:] - inner[:, -1:]
    slopes = np.concatenate([first, inner, last], axis=1)
    k = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    t, h, secant = (at - x[k]) / step[k], step[k], slope[:, k]
    left, right = (np.where(np.isfinite(part), part, secant) for part in (slopes[:, k], slopes[:, k + 1]))
    low, high = rows[:, k], rows[:, k + 1]
    # At a grid point its own value, also beside a missing one.
    straight = np.where(t == 0, low, np.where(t == 1, high, (1 - t) * low + t * high))
    bend = t * (1 - t) * h * ((1 - t) * (left - secant) - t * (right - secant))
    return np.asarray(straight + np.where(np.isfinite(bend), bend, 0.0))
