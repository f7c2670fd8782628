"""What the figures of rounding show: the loss at the origin over the bits, and its steps on a line and on a patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.views.prepare.comparable import Comparable
from landscape.views.prepare.levels import number

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BitCurve(Comparable):
    """The loss at the origin with so many bits.

    Attributes:
        bits, loss: one of each for every width.
        error: two standard errors of the difference from the network that is not rounded.
        plain: the loss of that network; NaN where not known.
        log: whether the losses span more than a decade.
    """

    title: str
    caption: tuple[str, ...]
    bits: tuple[int, ...]
    loss: Floats
    error: Floats
    plain: float
    log: bool


@dataclass(frozen=True, eq=False)
class StepLine(Comparable):
    """Both losses on a short line through the origin, each as the rise over its own loss there."""

    title: str
    caption: tuple[str, ...]
    axis: str
    at: Floats
    plain: Floats
    rounded: Floats


@dataclass(frozen=True, eq=False)
class StepPatch(Comparable):
    """Both losses on a small patch of the plane, each as the rise over its own loss at the origin.

    Attributes:
        titles: of the network before it is rounded, and after.
        axes, at: names of the first and the second axis, and the coordinates along them.
        rises: [second axis, first axis] of both.
        low, high: the smallest and the largest rise of both; 0 and 1 where none is finite.
    """

    titles: tuple[str, str]
    caption: tuple[str, ...]
    axes: tuple[str, str]
    at: tuple[Floats, Floats]
    rises: tuple[Floats, Floats]
    low: float
    high: float


def prepare_bits(
    bits: Sequence[int], loss: Sequence[float], stderr: Sequence[float], plain: float, what: str, samples: int | None
) -> BitCurve:
    """The curve of the loss at the origin over the bits.

    Args:
        stderr: of the difference from `plain`, pair by pair.
        what: how it was rounded, beside the bits, such as `per channel`.
    """
    values = np.asarray(loss, np.float64)
    known = np.append(values, plain)
    known = known[np.isfinite(known) & (known > 0)]
    log = bool(known.size and known.max() > 10 * known.min())
    over = f" of {samples} samples" if samples is not None else ""
    caption = (
        f"Mean loss{over}, {what}",
        "Bars: two standard errors of the difference from the network that is not rounded, over the same samples",
    )
    return BitCurve("Loss at the origin by bits", caption, tuple(bits), values, 2 * np.asarray(stderr), plain, log)


def prepare_steps(axis: str, at: Floats, plain: Floats, rounded: Floats, changes: int, what: str) -> StepLine:
    """The losses on the short line.

    Args:
        changes: about how many weights change their level on it.
        what: what is rounded, in words.
    """
    first, second = (float(np.interp(0.0, at, losses)) for losses in (plain, rounded))
    # What rounding costs at the origin may be a hundred times as much as a step, which would then not be seen.
    caption = (
        f"{what[:1].upper()}{what[1:]}; about {changes} weights change their level on this line",
        f"{_own(first, second)}; computed in float64",
    )
    return StepLine("The steps of rounding near the origin", caption, axis, at, plain - first, rounded - second)


def prepare_patch(
    axes: tuple[str, str], at: tuple[Floats, Floats], losses: tuple[Floats, Floats], origin: tuple[float, float],
    changes: int, what: str, precision: str,
) -> StepPatch:  # fmt: skip
    """The losses on the patch.

    Args:
        losses: of the network that is not rounded and of the one that is, [second axis, first axis].
        origin: both losses at the origin.
        changes: about how many weights change their level along each side of the patch.
        what: what is rounded, in words.
        precision: in which they were computed.
    """
    rises = (losses[0] - origin[0], losses[1] - origin[1])
    known = np.concatenate([rise[np.isfinite(rise)] for rise in rises])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    caption = (
        f"{what[:1].upper()}{what[1:]}; about {changes} weights change their level along each side",
        f"{_own(*origin)}; one scale for both; computed in {precision}",
    )
    return StepPatch(("not rounded", "rounded"), caption, axes, at, rises, low, high if high > low else low + 1)


def _own(plain: float, rounded: float) -> str:
    return (
        f"Each loss less its own at the origin, which is {number(plain, 4)} of the network that is not rounded and "
        f"{number(rounded, 4)} of the rounded one"
    )
