"""The modes of batch normalisation: which statistics the layers use while a landscape is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BatchNorm = Literal["eval", "batch", "recalibrate"]
RECALIBRATE = "batch_norm: recalibrate takes them anew at every point"  # the remedy for statistics of other weights


@dataclass(frozen=True)
class Statistics:
    """What one mode means for the layers, and for whatever relies on what they return.

    To add a mode: its name in `BatchNorm`, and its line in `STATISTICS`. What is done to the layers themselves is in
    `landscape/evaluation/loaded.py`.

    Args:
        of_each_batch: whether a layer uses the mean and variance of the batch that it is given.
        recalibrated: whether running statistics are computed anew at every point, in a pass over all samples.
    """

    of_each_batch: bool = False
    recalibrated: bool = False

    @property
    def fixed(self) -> bool:
        """Whether they are the running statistics of training, which depend neither on the point nor on the batch.

        A batch normalisation is then an affine map of its own: it can be folded into the layer before it, its outputs
        below the moved layers stay what they are, and the batch size changes no value beyond rounding.
        """
        return not self.of_each_batch and not self.recalibrated


STATISTICS: dict[BatchNorm, Statistics] = {
    "eval": Statistics(),
    "batch": Statistics(of_each_batch=True),
    "recalibrate": Statistics(recalibrated=True),
}
