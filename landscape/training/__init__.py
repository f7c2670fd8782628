"""A training as its function sees it: ranks, shares of batches, checkpoints, learning rates; no Ray.

training        `Training`, which the user's function receives
distributed     the order of an epoch, each rank's share of a batch, and what ranks tell one another
kept_files      what `keep` writes and `resume` reads back, whole and synced; what a run may hold before it is collected
collector       keeps the trajectory of a training
callbacks       the collector in the Trainer of Lightning or of Hugging Face
schedules       learning rates as functions of the epochs done
thor            the optimiser THOR
"""

from landscape.training.callbacks import LandscapeCallback
from landscape.training.training import Training

__all__ = ["LandscapeCallback", "Training"]
