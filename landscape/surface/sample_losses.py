"""The losses of single samples over a landscape, read from where they are stored as far as they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import LandscapeError, shown
from landscape.core.grid import Index, overlap, tile_at

# Arrays of the store: the losses over the grid and the samples, and what is known of the samples alone.
LOSS_SAMPLES, ORIGIN_SAMPLES, SAMPLE_WEIGHTS = "loss_samples", "origin_loss_samples", "sample_weights"
OVER_SAMPLES = (ORIGIN_SAMPLES, SAMPLE_WEIGHTS)

ReadChunk = Callable[[Index], NDArray[np.float32] | None]


class SampleLosses:
    """The loss of every sample at every point: float32, the dimensions of the grid and then the samples.

    It is indexed as a numpy array is, by whole numbers and slices of step 1, and reads the chunks that hold what is
    asked for. NaN where not computed.

    >>> stored = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    >>> losses = SampleLosses("bowl", (2, 2, 3), (1, 2, 3), lambda index: stored[index[:1]][None], {})
    >>> losses.shape, losses[1, 0]
    ((2, 2, 3), array([6., 7., 8.], dtype=float32))
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self, name: str, shape: Index, chunks: Index, read: ReadChunk,
        over_samples: Mapping[str, Callable[[], NDArray[Any] | None]],
    ) -> None:  # fmt: skip
        """
        Args:
            name: of the landscape.
            shape: the points of the grid, the last axis first, then the samples.
            chunks: of the same dimensions; one over the samples.
            read: returns a chunk by its index, cut off at the array's end; None where it is absent or damaged.
            over_samples: what reads the arrays over the samples, by their names; None where they cannot be read.
        """
        self.name, self.shape, self._chunks = name, shape, chunks
        self._read, self._over_samples = read, over_samples

    def __repr__(self) -> str:
        points = " x ".join(map(str, self.shape[:-1]))
        return f"SampleLosses({shown(self.name)}, {points} points, {self.shape[-1]} samples)"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all losses in memory."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def weights(self) -> NDArray[np.float64]:
        """How much each sample counts [samples]; 1 where the problem's `observe` returns no weight.

        Raises:
            LandscapeError: they are not written yet, or damaged.
        """
        return self._over(SAMPLE_WEIGHTS)

    @property
    def origin(self) -> NDArray[np.float32]:
        """The loss of each sample at the origin, float32 [samples]; NaN where it is not known.

        Raises:
            LandscapeError: they are not written yet, or damaged.
        """
        return self._over(ORIGIN_SAMPLES)

    def _over(self, name: str) -> NDArray[Any]:
        values = self._over_samples[name]()
        if values is None:
            raise LandscapeError(
                f"landscape {shown(self.name)}: {name} is not written yet, or damaged; run its job, which writes it"
            )
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[...], dtype)

    def __getitem__(self, window: Any) -> NDArray[np.float32]:
        starts, stops, single = self._bounds(window if isinstance(window, tuple) else (window,))
        values = np.full([max(0, b - a) for a, b in zip(starts, stops, strict=True)], np.nan, np.float32)
        if values.size:
            ranges = [range(a // n, -(-b // n)) for a, b, n in zip(starts, stops, self._chunks, strict=True)]
            for index in itertools.product(*ranges):
                self._fill(values, index, starts, stops)
        return values.reshape([size for size, one in zip(values.shape, single, strict=True) if not one])

    def slabs(self, most: int = 1 << 24) -> Iterator[slice]:
        """Windows of the first dimension that make up the whole grid, each with at most `most` losses if it can be."""
        height, row = self._chunks[0], int(np.prod(self.shape[1:], dtype=np.int64))
        step = max(1, most // max(1, row * height)) * height
        return (slice(start, min(start + step, len(self))) for start in range(0, len(self), step))

    def _fill(self, values: NDArray[np.float32], index: Index, starts: Sequence[int], stops: Sequence[int]) -> None:
        """Put what a chunk has of a window into the values of the window."""
        chunk = self._read(index)
        if chunk is None:
            return
        in_window, in_chunk = overlap(starts, stops, tile_at(index, self.shape, self._chunks))
        values[in_window] = chunk[in_chunk]

    def _bounds(self, window: tuple[Any, ...]) -> tuple[list[int], list[int], list[bool]]:
        """Where a window begins and ends in each dimension, and in which of them it is a single place."""
        if Ellipsis in window:
            place = window.index(Ellipsis)
            rest = (slice(None),) * (len(self.shape) - len(window) + 1)
            window = (*window[:place], *rest, *window[place + 1 :])
        if len(window) > len(self.shape):
            raise IndexError(f"loss_samples: has {len(self.shape)} dimensions, not {len(window)}")
        window = (*window, *(slice(None),) * (len(self.shape) - len(window)))
        starts, stops, single = [], [], []
        for part, size in zip(window, self.shape, strict=True):
            start, stop, one = _bounds_of(part, size)
            starts.append(start)
            stops.append(stop)
            single.append(one)
        return starts, stops, single


def _bounds_of(part: Any, size: int) -> tuple[int, int, bool]:
    """Where a part of a window begins and ends, and whether it is a single place."""
    if isinstance(part, slice):
        start, stop, step = part.indices(size)
        if step != 1:
            raise IndexError(f"loss_samples: a slice must have step 1, not {step}; index the array that is read")
        return start, max(start, stop), False
    if isinstance(part, (bool, np.bool_)) or not isinstance(part, (int, np.integer)):
        raise IndexError(
            f"loss_samples: must be indexed by whole numbers and slices, not {shown(part)}; index what is read"
        )
    place = int(part) + size if part < 0 else int(part)
    if not 0 <= place < size:
        raise IndexError(f"loss_samples: {part} is out of bounds for a dimension of {size}")
    return place, place + 1, True


def paired_stderr(differences: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard error of the weighted mean m of differences d [..., samples] → [...]; NaN of one sample.

    √(Σw²(d - m)²) / Σw · √(n / (n - 1)): that of a mean of one quantity, as the pairs are what is drawn.
    """
    count = differences.shape[-1]
    if count < 2:
        return np.full(differences.shape[:-1], np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = (weights * differences).sum(-1, keepdims=True) / weights.sum()
        spread = (np.square(weights * (differences - mean))).sum(-1)
        return np.asarray(np.sqrt(spread * (count / (count - 1.0))) / weights.sum(), np.float64)


def stored_stderr(first: SampleLosses, second: SampleLosses) -> NDArray[np.float64]:
    """The paired error at every point of a grid, from the losses that both landscapes keep; NaN where not computed."""
    slabs = first.slabs()
    return np.concatenate(
        [paired_stderr(second[slab].astype(np.float64) - first[slab], first.weights) for slab in slabs]
    )
