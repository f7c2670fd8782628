"""The loss of guessing: what a classifier scores that knows how frequent each class is, and nothing else."""

from __future__ import annotations

from typing import Any

import torch

from landscape.problem.samples import Samples
from landscape.problem.supervised import Supervised

# Samples of each class, on average. The entropy of n labels of K classes is about (K − 1)/2n below that of all labels
# (Miller 1955), with so many by a tenth; of 64 samples of 1,000 classes it is 4.1, and guessing loses 6.9.
LEAST_PER_CLASS = 5


def guessing_of(observe: Any, samples: Samples) -> float | None:
    """The loss of the best constant guess; None where it is not known, as of what is no classification."""
    rows = samples.rows
    if not isinstance(observe, Supervised) or not observe.classifies or not isinstance(rows, (tuple, list)):
        return None
    labels = rows[1]
    return loss_of_guessing(labels) if isinstance(labels, torch.Tensor) and not labels.is_floating_point() else None


def loss_of_guessing(labels: torch.Tensor) -> float | None:
    """The entropy of labels, those below 0 left out; None of a single class, and of few samples for their classes."""
    known = labels[labels >= 0].long()
    if known.numel() and int(known.max()) < known.numel():  # counted without sorting, in no more memory than they take
        counts = torch.bincount(known)
    else:
        counts = torch.unique(known, return_counts=True)[1]
    counts = counts[counts > 0].double()
    if len(counts) < 2 or counts.sum() < LEAST_PER_CLASS * len(counts):
        return None
    shares = counts / counts.sum()
    return float(-(shares * shares.log()).sum())
