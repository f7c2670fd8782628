"""Other means over the samples of a computed landscape: of some samples, of each class, of resampled samples."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from landscape.core.errors import JobError, quoted
from landscape.core.grid import Floats
from landscape.surface.surface import NOT_COMPUTED, RISE_STDERR, ProjectedPath, SampleLosses, Surface

DRAWS_AT_ONCE = 1 << 22  # counts, one per draw and sample, in memory at once

Statistic = Literal["mean", "rise"]


@dataclass(frozen=True)
class Bootstrap:
    """The bootstrap of a mean at every point; arrays over the grid, NaN where not computed.

    Attributes:
        value: of the samples themselves.
        stderr: the standard deviation over the resamples.
        low, high: the ends of the percentile interval.
    """

    value: Floats
    stderr: Floats
    low: Floats
    high: Floats


def bootstrap(
    surface: Surface, statistic: Statistic = "mean", resamples: int = 1000, seed: int = 0, confidence: float = 0.95
) -> Bootstrap:
    """The bootstrap of the mean loss at every point: samples drawn with replacement, the same ones at all points.

    Args:
        surface: one whose job had `keep_samples: true`.
        statistic: `mean`, the loss, Σwℓ/Σw; or `rise`, the mean of ℓ(point) − ℓ(origin), sample by sample.
        resamples: how often samples are drawn.
        seed: of the draws.
        confidence: of the interval from `low` to `high`, which are percentiles of the resampled means.

    Raises:
        JobError: the losses of single samples were not stored, or an argument is impossible.

    References:
        Efron and Tibshirani, An Introduction to the Bootstrap, 1993, sections 6.2 and 13.3.
    """
    losses = losses_of(surface)
    if statistic not in ("mean", "rise"):
        raise JobError(f"statistic: must be 'mean' or 'rise', not {quoted(statistic)}")
    if resamples < 2:
        raise JobError(f"resamples: must be at least 2, not {resamples}")
    if not 0 < confidence < 1:
        raise JobError(f"confidence: must lie between 0 and 1, not {confidence:g}")
    weights, origin = losses.weights, losses.origin if statistic == "rise" else None
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    result = {name: np.full(losses.shape[:-1], np.nan) for name in ("value", "stderr", "low", "high")}
    # A slab holds all resampled means of its points.
    for slab in losses.slabs(losses.shape[-1] * max(1, DRAWS_AT_ONCE // resamples)):
        values = _float64(surface, losses, slab, origin)
        flat = values.reshape(-1, values.shape[-1])
        draws = [_weighted_mean(flat, counts * weights) for counts in _draw_counts(flat.shape[1], resamples, seed)]
        means = np.concatenate(draws, axis=1)  # [points, resamples]
        shape = values.shape[:-1]
        result["value"][slab] = _weighted_mean(flat, weights[None])[:, 0].reshape(shape)
        result["stderr"][slab] = means.std(axis=1, ddof=1).reshape(shape)
        low, high = np.quantile(means, tails, axis=1)
        result["low"][slab], result["high"][slab] = low.reshape(shape), high.reshape(shape)
    return Bootstrap(**result)


def subset(surface: Surface, samples: ArrayLike, name: str | None = None) -> Surface:
    """The landscape over some of its samples: mean loss, its standard error, and that of the rise over the origin.

    Args:
        surface: one whose job had `keep_samples: true`.
        samples: different numbers from 0 in the order of `sample_index`; or a mask over all samples.
        name: of the new surface; default: that of `surface`.

    Raises:
        JobError: the losses of single samples were not stored, or `samples` are no samples.
    """
    losses = losses_of(surface)
    chosen = _sample_numbers(np.asarray(samples), losses.shape[-1])
    return _surfaces_of(surface, losses, [chosen], [name or surface.name])[0]


def by_class(surface: Surface, labels: ArrayLike) -> dict[Any, Surface]:
    """The landscape over each class of samples, by its label: mean loss, its standard error, and that of the rise.

    Args:
        surface: one whose job had `keep_samples: true`.
        labels: one for every item of the data that the problem returned, in the order of the data.

    Raises:
        JobError: the losses of single samples were not stored, or labels are missing.
    """
    losses, index, all_labels = losses_of(surface), surface.sample_index, np.asarray(labels)
    if index is None or len(index) != losses.shape[-1]:
        raise JobError(f"labels: the samples of {quoted(surface.name)} have no places in the data; choose by `subset`")
    if all_labels.ndim != 1 or len(all_labels) <= index.max(initial=-1):
        raise JobError(
            f"labels: must be one for each item of the data, at least {index.max() + 1}, not of shape "
            f"{all_labels.shape}"
        )
    names, class_of = np.unique(all_labels[index], return_inverse=True)
    classes: list[Hashable] = names.tolist()
    groups = [np.flatnonzero(class_of == number) for number in range(len(classes))]
    surfaces = _surfaces_of(surface, losses, groups, [f"{surface.name}: {label}" for label in classes])
    return dict(zip(classes, surfaces, strict=True))


def losses_of(surface: Surface) -> SampleLosses:
    """The losses of the single samples of a surface.

    Raises:
        JobError: they were not stored.
    """
    if surface.loss_samples is None:
        raise JobError(
            f"landscape {quoted(surface.name)} holds no losses of single samples; compute it with keep_samples: true, "
            "under another name"
        )
    return surface.loss_samples


def _surfaces_of(
    surface: Surface, losses: SampleLosses, groups: Sequence[NDArray[np.int64]], names: Sequence[str]
) -> list[Surface]:
    """The surfaces of several groups of samples; each loss is read once."""
    weights, origin = losses.weights, losses.origin.astype(np.float64)
    arrays = ("loss", "loss_stderr", RISE_STDERR)
    tables = [{name: np.full(losses.shape[:-1], np.nan) for name in arrays} for _ in groups]
    for slab in losses.slabs():
        values = _float64(surface, losses, slab)
        for table, group in zip(tables, groups, strict=True):
            own = values[..., group]
            table["loss"][slab], table["loss_stderr"][slab] = _mean_and_stderr(own, weights[group])
            table[RISE_STDERR][slab] = _mean_and_stderr(own - origin[group], weights[group])[1]
    path = _path_without_losses(surface)  # its losses are means over all samples
    surfaces = []
    for name, table, group in zip(names, tables, groups, strict=True):
        at_origin = [float(value) for value in _mean_and_stderr(origin[group], weights[group])]
        record = surface.record.changed(
            name=name, observables=["loss"], derived={}, num_samples=len(group),
            origin_loss=_or_none(at_origin[0]), origin_loss_stderr=_or_none(at_origin[1]), guessing=None,
        )  # fmt: skip
        index = surface.sample_index  # for whole batches, it has a place per batch
        places = None if index is None or len(index) != losses.shape[-1] else index[group]
        surfaces.append(Surface(name, surface.axes, table, surface.status, path, record.attributes, None, places))
    return surfaces


def _path_without_losses(surface: Surface) -> ProjectedPath | None:
    path = surface.path
    if path is None:
        return None
    unknown = np.full(len(path.step), np.nan)
    status = np.full(len(path.step), NOT_COMPUTED, np.uint8)
    return replace(path, loss=unknown, projected_loss=unknown, status=status)


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _float64(surface: Surface, losses: SampleLosses, slab: slice, origin: Any = None) -> Floats:
    """The losses of a slab, or their rises over those at the origin; NaN where a point is not computed."""
    values = losses[slab].astype(np.float64)
    values[surface.status[slab] == NOT_COMPUTED] = np.nan
    return values if origin is None else values - origin


def _mean_and_stderr(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Σwℓ/Σw and √(Σw²(ℓ−m)²)/Σw · √(n/(n−1)) over the last dimension, as for landscapes."""
    count, total = len(weights), weights.sum()
    with np.errstate(all="ignore"):
        mean = np.asarray((weights * values).sum(-1) / total)
        spread = np.square(weights * (values - mean[..., None])).sum(-1)
        error = np.sqrt(spread) / total * np.sqrt(count / np.float64(count - 1)) if count > 1 else mean * np.nan
    return mean, np.asarray(error)


def _weighted_mean(values: Floats, weights: Floats) -> Floats:
    """The means [points, draws] of values [points, n] with weights [draws, n]."""
    with np.errstate(all="ignore"):
        return np.asarray(values @ weights.T / weights.sum(1), np.float64)


def _draw_counts(samples: int, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each sample is drawn [draws, samples], some draws at a time; equal at every call with one seed."""
    generator, remaining = np.random.default_rng(seed), resamples
    while remaining:
        draws = min(remaining, max(1, DRAWS_AT_ONCE // samples))
        places = generator.integers(0, samples, (draws, samples))
        rows = np.arange(draws)[:, None] * samples
        counts = np.bincount((places + rows).ravel(), minlength=draws * samples)
        yield counts.reshape(draws, samples).astype(np.float64)
        remaining -= draws


def _sample_numbers(samples: NDArray[Any], count: int) -> NDArray[np.int64]:
    """The numbers of samples.

    Raises:
        JobError: there are none, or one is no sample or stands twice.
    """
    if samples.dtype == np.bool_ and samples.shape == (count,):
        samples = np.flatnonzero(samples)
    whole = samples.ndim == 1 and np.issubdtype(samples.dtype, np.integer) and samples.size > 0
    if not whole or samples.min() < 0 or samples.max() >= count or len(np.unique(samples)) < len(samples):
        raise JobError(
            f"samples: must be different whole numbers from 0 to {count - 1}, at least one, or a mask of {count}, not "
            f"{quoted(samples.tolist())}"
        )
    return samples.astype(np.int64)
