"""What is stored of single samples: their places in the data, their losses, and what belongs to the samples alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, shown
from landscape.core.grid import Index
from landscape.store.arrays import LandscapeArrays
from landscape.surface.surface import LOSS_SAMPLES, SAMPLE_INDEX, SAMPLE_WEIGHTS, SampleLosses


def sample_index(arrays: LandscapeArrays) -> NDArray[np.int64] | None:
    """The places of the samples in the data; None where they were not recorded, or are damaged."""
    if not arrays.moment_rows or arrays.level:
        return None
    checked = arrays.read_checked(SAMPLE_INDEX, {(0,)})
    return None if checked.damaged else checked.values


def stored_losses(arrays: LandscapeArrays) -> SampleLosses | None:
    """The losses of single samples, nothing of them read yet; None where they are not kept."""
    if not arrays.kept_samples:
        return None
    reader = arrays.reader(LOSS_SAMPLES)

    def read(index: Index) -> NDArray[Any] | None:
        return next(values for _, values, _ in reader.read([index]))

    over: dict[str, Callable[[], NDArray[Any] | None]] = {
        name: partial(_over_samples, arrays, name) for name in arrays.over_samples
    }
    return SampleLosses(arrays.name, reader.shape, reader.chunks, read, over)


def _over_samples(arrays: LandscapeArrays, name: str) -> NDArray[Any] | None:
    """An array over the samples; None where it is not written yet, or damaged."""
    return next(values for _, values, _ in arrays.reader(name).read([(0,)]))


def arrays_over_samples(
    arrays: LandscapeArrays, tiles: Sequence[Mapping[str, NDArray[Any]]]
) -> dict[str, NDArray[Any]]:
    """The arrays over the samples that are to be written with some tiles, unless they are there.

    Raises:
        JobError: the tiles have another number of samples than the landscape, or other weights.
    """
    if not arrays.kept_samples:
        return {}
    stored = {name: _over_samples(arrays, name) for name in arrays.over_samples}
    weights = stored[SAMPLE_WEIGHTS]
    for values in tiles:
        count = values[LOSS_SAMPLES].shape[-1]
        if count != arrays.kept_samples:
            raise JobError(
                f"keep_samples: observe returned {count} losses for the {arrays.kept_samples} samples of landscape "
                f"{shown(arrays.name)}; return one per sample, or leave keep_samples out"
            )
        weights = values[SAMPLE_WEIGHTS] if weights is None else weights
        refuse_other_weights(weights, values[SAMPLE_WEIGHTS])
    absent = any(values is None for values in stored.values())
    return {name: tiles[0][name] for name in arrays.over_samples} if absent else {}


def refuse_other_weights(before: NDArray[np.float64], now: NDArray[np.float64]) -> None:
    """Refuse weights of samples that are not those of another point.

    Raises:
        JobError: they are others.
    """
    differ = before != now
    if differ.any():
        sample = int(np.argmax(differ))
        raise JobError(
            f"keep_samples: 'weight' must be the same at every point, not {before[sample]:.6g} and then "
            f"{now[sample]:.6g} for sample {sample}; leave keep_samples out, or return weights of the data alone"
        )


def spoilt_over_samples(arrays: LandscapeArrays, missing: NDArray[np.bool_]) -> list[tuple[str, Index]]:
    """The damaged arrays over the samples, each as its name and chunk; a tile that brings them anew is marked missing.

    Args:
        missing: a mask over the tiles of those to compute; it is changed.
    """
    if missing.all():  # the first tile that is computed brings them
        return []
    damaged: list[tuple[str, Index]] = [
        (name, (0,)) for name in arrays.over_samples if _over_samples(arrays, name) is None
    ]
    if damaged:
        missing[np.unravel_index(int(np.argmin(missing)), missing.shape)] = True
    return damaged
