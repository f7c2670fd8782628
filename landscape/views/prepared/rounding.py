"""What the figures of rounding show: the loss at the origin over the bits, and its steps on a short line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.views.prepared.comparable import Comparable

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
    """Both losses on a short line through the origin, as rises over the loss of the first one there."""

    title: str
    caption: tuple[str, ...]
    axis: str
    at: Floats
    plain: Floats
    rounded: Floats


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
    start = float(np.interp(0.0, at, plain))
    caption = (
        f"{what[:1].upper()}{what[1:]}; about {changes} weights change their level on this line",
        "Losses less that of the network that is not rounded, at the origin; computed in float64",
    )
    return StepLine("The steps of rounding near the origin", caption, axis, at, plain - start, rounded - start)
