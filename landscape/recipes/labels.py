"""The labels of a file of images, checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from landscape.core.errors import JobError, shown


def class_numbers(labels: np.ndarray, classes: int, place: str | Path) -> Tensor:
    """Labels as int64 [N].

    Args:
        place: where they were read, for the message.

    Raises:
        JobError: one of them is no whole number from 0 to `classes` − 1.
    """
    numeric = np.issubdtype(labels.dtype, np.integer) or np.issubdtype(labels.dtype, np.floating)
    wrong = labels[:0] if numeric else labels[:1]
    if numeric:
        wrong = labels[~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))]
    if len(wrong):
        raise JobError(
            f"data: {shown(str(place))} must hold labels that are whole numbers from 0 to {classes - 1}, "
            f"not {shown(wrong[0].item())}; leave out what is of other classes"
        )
    return torch.from_numpy(labels.astype(np.int64))
