"""The losses of single samples, gathered from point to point."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.core.validation import WEIGHT
from landscape.evaluation.values import Floats, Pieces, SampleValues
from landscape.problem.supervised import OtherWeights

AT_ONCE = 1 << 20  # losses that are brought to the host at once


class SampleKeeper:
    """Keeps the losses of point after point in float32, and the weights of the samples, which all points share.

    Args:
        origin: the observables at the origin, of every batch; None where they are not known.
        name: of the loss, or of one of its terms, whose samples may be used up before the last batch.
    """

    def __init__(self, origin: Pieces | None, name: str = "loss") -> None:
        self._origin, self._name = origin, name
        self._losses: list[NDArray[np.float32]] = []
        self._pending: list[tuple[Tensor, Tensor | None]] = []  # of points, on the device
        self._size = 0
        self._weights: Floats | None = None

    def add(self, pieces: Pieces) -> None:
        """Take the observables of the next point.

        Raises:
            OtherWeights: the samples weigh otherwise than at the points before.
        """
        losses = self._of(pieces)
        weights = torch.cat([piece[WEIGHT] for piece in pieces]).double() if WEIGHT in pieces[0] else None
        self._pending.append((losses, weights))
        self._size += len(losses)
        if self._size >= AT_ONCE:
            self._take()

    def _take(self) -> None:
        """Bring what is pending to the host."""
        pending, self._pending, self._size = self._pending, [], 0
        if not pending:
            return
        self._losses.append(torch.stack([losses for losses, _ in pending]).cpu().numpy())
        given = [weights for _, weights in pending if weights is not None]
        table = torch.stack(given).cpu().numpy() if given else np.ones((1, len(pending[0][0])))
        self._weights = table[0] if self._weights is None else self._weights
        if not (table == self._weights).all():
            raise OtherWeights(
                "observe: 'weight' must be the same at every point where keep_samples is set; return weights that "
                "depend on the data alone, or leave keep_samples out"
            )

    def values(self, places: NDArray[np.int64]) -> SampleValues | None:
        """The losses of the points, put in their places; None of no points."""
        self._take()
        if self._weights is None:
            return None
        losses = np.concatenate(self._losses)[places]
        origin = np.full(losses.shape[1], np.nan, np.float32)
        if self._origin is not None:
            origin = self._of(self._origin).cpu().numpy()
        return SampleValues(losses, origin, self._weights)

    def _of(self, pieces: Pieces) -> Tensor:
        return torch.cat([piece[self._name] for piece in pieces if self._name in piece]).float()
