"""A training as its function sees it: ranks, shares of batches, checkpoints, learning rates; no Ray.

    training        `Training`, which the user's function receives
    shares          the order of an epoch, and which samples of a batch a rank computes
    checkpoints     what `keep` writes and `resume` reads back, whole and synced
    starting        in which runs a training may begin
    objects         the states of what is kept, loaded again
    contents        what a checkpoint can hold, and its digest
    generators      the states of the random generators of a rank
    ranks           what the ranks tell one another
    schedules       learning rates as functions of the epochs done

`landscape.collector` keeps the trajectory of such a training.
"""

from landscape.training.training import Training

__all__ = ["Training"]
