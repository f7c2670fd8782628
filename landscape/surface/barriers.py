"""Barriers of a line between two networks, by three definitions; and the columns that describe any path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats

SAME_PLACE = 1e-9  # of coordinates: a point this near to an end of [0, 1] is that end
ROUNDING = 8 * float(np.finfo(np.float64).eps)  # of the losses: rounding may lift a straight line by this much
STABLE = 0.02  # Frankle et al. 2020 call a pair of networks stable below this error, by which their own runs vary
RESAMPLES, RESAMPLING_SEED = 1000, 0


@dataclass(frozen=True)
class Barrier:
    """The height of the loss on a line above the straight line between the losses of its ends, and its place.

    `stderr` is an upper bound of the standard error of `height`; NaN if the errors of the rise are unknown. All three
    are 0 if no loss lies above that straight line by more than rounding. `Barriers` describes barriers of other
    definitions, and errors that were resampled.
    """

    height: float
    alpha: float
    stderr: float

    @property
    def is_within_error(self) -> bool:
        """Whether the height is at most twice its standard error; False if that is unknown."""
        return within_error(self.height, self.stderr)


@dataclass(frozen=True)
class Barriers:
    """The barrier of a line between two networks by each definition; they differ if the losses of the ends differ.

    Attributes:
        entezari: max L(α) − ((1−α)·L(0) + α·L(1)), Entezari et al. 2022, "The role of permutation invariance in linear
            mode connectivity of neural networks", definition 1.
        git_re_basin: max L(α) − ½(L(0) + L(1)), Ainsworth et al. 2023, "Git Re-Basin: merging models modulo
            permutation symmetries", definition 2.1. At least ½|L(0) − L(1)|.
        frankle: max E(α) − ½(E(0) + E(1)) of the error E = 1 − accuracy, Frankle et al. 2020, "Linear mode connectivity
            and the lottery ticket hypothesis", section 2, there over 30 points; below `STABLE` the pair counts as
            stable. None if no accuracy is known.
        resampled: whether the errors of the first two come from a bootstrap over the samples, and are no upper bounds.
    """

    entezari: Barrier
    git_re_basin: Barrier
    frankle: Barrier | None = None
    resampled: bool = False


@dataclass(frozen=True)
class PathColumns:
    """The columns of Garipov et al. 2018 for the values on a path: least, largest, mean over the points, integral."""

    least: float
    largest: float
    mean: float
    integral: float


class LossesOfSamples(Protocol):
    """The losses of single samples on a line, an array [points, samples] with two more arrays."""

    @property
    def weights(self) -> Floats:
        """How much each sample counts [samples]."""

    @property
    def origin(self) -> NDArray[np.float32]:
        """The loss of each sample at the origin [samples]."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...


def loss_barrier(alpha: Floats, loss: Floats, rise_stderr: Floats | None, origin_loss: float) -> Barrier | None:
    """B = max over the points α of [0, 1] of L(α) − ((1−α)·L(0) + α·L(1)).

    Entezari et al. 2022, "The role of permutation invariance in linear mode connectivity of neural networks",
    definition 1. If the grid has no point at 0, L(0) is `origin_loss`, the loss that was evaluated there. No loss is
    interpolated between points: its error by the bend of the curve could make a barrier where there is none.

    With the rise R(α) = L(α) − L(0), B = R(α*) − α*·R(1). The standard errors s of both rises are known, but not their
    covariance, so the standard error of B is at most s(α*) + α*·s(1).

    Args:
        alpha: the coordinates [n], ascending.
        loss: L [n].
        rise_stderr: s [n]; None if unknown.
        origin_loss: L(0); NaN if unknown.

    Returns:
        None if the grid does not cover [0, 1], if 1 is no point of it, if 0 is no point and the loss there is unknown,
        or if a loss on [0, 1] is not finite.

    >>> alpha = np.linspace(0, 1, 5)
    >>> loss_barrier(alpha, np.array([0.5, 1.0, 2.5, 2.0, 1.5]), np.full(5, 0.25), origin_loss=0.5)
    Barrier(height=1.5, alpha=0.5, stderr=0.375)
    """
    return _barrier(alpha, loss, rise_stderr, origin_loss, _chord, lambda at: (0.0, at))


def barrier_over_mean(
    alpha: Floats, values: Floats, stderr: Floats | None, at_origin: float, *, rises: bool = True
) -> Barrier | None:
    """B = max over the points α of [0, 1] of v(α) − ½(v(0) + v(1)); see `loss_barrier`.

    For the loss it is Git Re-Basin's barrier, for the error that of Frankle et al.; see `Barriers`. The standard error
    is at most s(α*) + ½(s(0) + s(1)); at an end ½(s(0) + s(1)).

    Args:
        rises: whether `stderr` are errors of the rises over the origin, so that s(0) is 0, and not of the values.

    >>> alpha = np.linspace(0, 1, 5)
    >>> barrier_over_mean(alpha, np.array([0.5, 1.0, 2.5, 2.0, 1.5]), None, at_origin=0.5)
    Barrier(height=1.5, alpha=0.5, stderr=nan)
    >>> barrier_over_mean(alpha, np.array([0.5, 0.5, 0.5, 1.0, 1.5]), None, at_origin=0.5)
    Barrier(height=0.5, alpha=1.0, stderr=nan)
    """
    return _barrier(alpha, values, stderr, at_origin, _mean_of_ends, lambda at: (0.0 if rises else 0.5, 0.5))


def barriers_of(
    alpha: Floats, observables: Mapping[str, Floats], origin_loss: float, samples: LossesOfSamples | None
) -> Barriers | None:
    """The barriers of a line; their errors come from a bootstrap if the losses of the samples were stored.

    Only losses are stored sample by sample: the error of Frankle's barrier is always an upper bound.

    Args:
        observables: [n] each, those of a `landscape.Surface` over a line.

    Returns:
        None if `loss_barrier` returns None; without Frankle's barrier if 0 is no point of the grid, as the accuracy
        there is then unknown.
    """
    loss, rise = observables["loss"], observables.get("loss_rise_stderr")
    entezari, git_re_basin = (rule(alpha, loss, rise, origin_loss) for rule in (loss_barrier, barrier_over_mean))
    if entezari is None or git_re_basin is None:
        return None
    accuracy, frankle = observables.get("accuracy"), None
    if accuracy is not None:
        frankle = barrier_over_mean(alpha, 1 - accuracy, observables.get("accuracy_stderr"), np.nan, rises=False)
    if samples is None or not np.isfinite(losses := np.asarray(samples, np.float64)).all():
        return Barriers(entezari, git_re_basin, frankle)
    errors = resampled_errors(alpha, losses, samples.weights, samples.origin.astype(np.float64))
    pair = (replace(entezari, stderr=errors[0]), replace(git_re_basin, stderr=errors[1]))
    return Barriers(*pair, frankle, resampled=True)


def resampled_errors(
    alpha: Floats, losses: Floats, weights: Floats, at_origin: Floats, resamples: int = RESAMPLES,
    seed: int = RESAMPLING_SEED,
) -> tuple[float, float]:  # fmt: skip
    """The standard errors of Entezari's and Git Re-Basin's barrier, by a bootstrap over the samples.

    Each draw with replacement takes the same samples at all points, so the errors are paired, and it searches for the
    highest point anew (Efron and Tibshirani 1993, section 6.2).

    Args:
        alpha: the coordinates; 1 is one of them.
        losses: ℓᵢ(α) [points, samples].
        weights: of the samples.
        at_origin: ℓᵢ(0) [samples].
    """
    alpha = _with_ends(alpha)
    if 0.0 not in alpha:
        place = int(np.searchsorted(alpha, 0.0))
        alpha, losses = np.insert(alpha, place, 0.0), np.insert(losses, place, at_origin, axis=0)
    inside = (alpha >= 0) & (alpha <= 1)
    where, losses = alpha[inside], losses[inside]
    generator, samples = np.random.default_rng(seed), losses.shape[1]
    counts = np.stack([np.bincount(generator.integers(0, samples, samples), minlength=samples)
                       for _ in range(resamples)]) * weights  # fmt: skip
    means = losses @ counts.T / counts.sum(axis=1)  # [points, resamples]
    heights = [np.max(means - below(where[:, None], means), axis=0) for below in (_chord, _mean_of_ends)]
    entezari, git_re_basin = (float(draws.std(ddof=1)) for draws in heights)
    return entezari, git_re_basin


def path_columns(values: Floats, lengths: Floats) -> PathColumns:
    """Garipov's columns of the values along a path: least, largest, mean, and the arc-length integral.

    The integral is Σ ½(vᵢ + vᵢ₊₁)·lᵢ / Σ lᵢ, the mean loss per distance in weight space. Garipov et al. 2018, "Loss
    surfaces, mode connectivity, and fast ensembling of DNNs".

    Args:
        values: v [n] at points of the path, in order.
        lengths: l [n − 1], the Euclidean distance in weight space from each point to the next.

    >>> path_columns(np.array([0.0, 2.0, 0.0]), np.array([1.0, 3.0]))
    PathColumns(least=0.0, largest=2.0, mean=0.6666666666666666, integral=1.0)
    """
    middle = (values[:-1] + values[1:]) / 2
    integral = float((middle * lengths).sum() / lengths.sum())
    return PathColumns(float(values.min()), float(values.max()), float(values.mean()), integral)


def has_point(alpha: Floats, place: float) -> bool:
    """Whether `place` is one of the coordinates, up to rounding.

    >>> has_point(np.linspace(-0.2, 1.2, 15), 1), has_point(np.linspace(-0.2, 1.2, 13), 1)
    (True, False)
    """
    return bool((np.abs(alpha - place) <= SAME_PLACE).any())


def within_error(height: float, stderr: float | None) -> bool:
    """Whether a barrier above 0 is no higher than twice its standard error (95 %); False if that is unknown.

    >>> within_error(0.0012, 0.018), within_error(1.2, 0.1), within_error(0.01, float("nan")), within_error(0.01, None)
    (True, False, False, False)
    """
    return stderr is not None and 0 < height <= 2 * stderr


def _chord(where: Floats, values: Floats) -> Floats:
    """The straight line between the first value and the last, over coordinates from 0 to 1."""
    return np.asarray((1 - where) * values[0] + where * values[-1])


def _mean_of_ends(where: Floats, values: Floats) -> Floats:
    return np.asarray(np.broadcast_to((values[0] + values[-1]) / 2, values.shape))


def _barrier(
    alpha: Floats, values: Floats, stderr: Floats | None, at_origin: float, below: Callable[[Floats, Floats], Floats],
    shares: Callable[[float], tuple[float, float]],
) -> Barrier | None:  # fmt: skip
    """The highest rise of the values on [0, 1] above the reference line that `below` computes from them.

    Args:
        shares: for a place, the factors of the errors at 0 and at 1 in the error of the barrier there.
    """
    alpha = _with_ends(alpha)
    if alpha[0] > 0 or 1.0 not in alpha or not (0.0 in alpha or np.isfinite(at_origin)):
        return None
    errors = np.full(len(alpha), np.nan) if stderr is None else stderr
    alpha, values, errors = _with_origin(alpha, values, errors, at_origin)
    inside = (alpha >= 0) & (alpha <= 1)
    where, values, spread = alpha[inside], values[inside], errors[inside]
    if not np.isfinite(values).all():
        return None
    above = values - below(where, values)
    highest = int(np.argmax(above))
    if above[highest] <= ROUNDING * np.abs(values).max():
        return Barrier(0.0, 0.0, 0.0)
    at = float(where[highest])
    # At an end, the reference line contains a share of the same value, so its own error cancels.
    own, ends = (0.0 if at in (0.0, 1.0) else 1.0), shares(at)
    terms = zip((own, *ends), (spread[highest], spread[0], spread[-1]), strict=True)
    error = sum(share * float(value) for share, value in terms if share)
    return Barrier(float(above[highest]), at, error)


def _with_ends(alpha: Floats) -> Floats:
    """The coordinates; one that is 0 or 1 up to rounding becomes exactly that."""
    moved = np.array(alpha, np.float64)
    for end in (0.0, 1.0):
        nearest = int(np.argmin(np.abs(moved - end)))
        moved[nearest] = end if abs(moved[nearest] - end) <= SAME_PLACE else moved[nearest]
    return moved


def _with_origin(alpha: Floats, loss: Floats, errors: Floats, origin_loss: float) -> tuple[Floats, Floats, Floats]:
    """The coordinates, losses and errors with the origin among them, whose rise is 0 without an error."""
    if 0.0 in alpha:
        return alpha, loss, errors
    place = int(np.searchsorted(alpha, 0.0))
    return np.insert(alpha, place, 0.0), np.insert(loss, place, origin_loss), np.insert(errors, place, 0.0)


# ----------------------------------------------------------------------------------------------------
# Curves between two networks with one bend: each of their points as a mixture of the ends and the bend.

Curve = Literal["bezier", "polyline"]


def curve_shares(kind: Curve, t: Floats) -> Floats:
    """The shares of w₁, w₂ and the bend θ in each point of a curve: [n, 3], each row adding to 1.

    Bezier: φ(t) = (1−t)²·w₁ + 2t(1−t)·θ + t²·w₂. Polyline: from w₁ straight to θ over t in [0, ½], and from there
    to w₂. Garipov et al. 2018, section 3.2.

    Args:
        t: [n], from 0 to 1.

    >>> curve_shares("bezier", np.array([0.0, 0.5, 1.0])).tolist()
    [[1.0, 0.0, 0.0], [0.25, 0.25, 0.5], [0.0, 1.0, 0.0]]
    """
    if kind == "bezier":
        return np.stack([(1 - t) ** 2, t**2, 2 * t * (1 - t)], axis=1)
    return np.stack([np.maximum(1 - 2 * t, 0), np.maximum(2 * t - 1, 0), 1 - np.abs(2 * t - 1)], axis=1)


def curve_places(kind: Curve, corners: Floats, t: Floats) -> Floats:
    """The coordinates [n, axes] of a curve's points, from the coordinates of its ends and its bend.

    Args:
        corners: [3, axes], of w₁, w₂ and the bend.
    """
    return curve_shares(kind, t) @ corners
