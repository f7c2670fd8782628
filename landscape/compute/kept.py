"""Whether a landscape keeps the losses of single samples, and the refusal where it cannot."""

from __future__ import annotations

from landscape.core.devices import KEPT_BYTES, kept_limit
from landscape.core.errors import JobError, shown
from landscape.core.grid import Grid
from landscape.core.plan import Reduction
from landscape.evaluation.reduction import terms_of
from landscape.job.job import Job
from landscape.problem.supervised import Observe
from landscape.store.landscape import LandscapeStore
from landscape.surface.surface import SampleLosses

BYTES = SampleLosses.dtype.itemsize  # of one loss


def keeps_samples(
    job: Job, name: str, stored: LandscapeStore | None, extended: LandscapeStore | None, observe: Observe,
    reduction: Reduction, grid: Grid, num_samples: int,
) -> bool:  # fmt: skip
    """Whether the losses of single samples are stored: as the landscape on disk has it, else as the job says.

    Args:
        stored: the landscape of this name; None where there is none yet.
        extended: the one that it extends.

    Raises:
        JobError: they are to be kept, and cannot be.
    """
    if stored is not None:
        if job.keep_samples and not stored.record.keep_samples:
            why = "an earlier version began it" if not stored.record.moment_rows else "it was begun without"
            raise JobError(
                f"keep_samples: landscape {shown(name)} holds no losses of single samples, as {why}; leave "
                "keep_samples out, or give the landscape another name"
            )
        return stored.record.keep_samples
    if not (job.keep_samples if extended is None else extended.record.keep_samples):
        return False
    if reduction == "whole":
        raise JobError(
            "keep_samples: an earlier version began a landscape of this job, whose samples stand in another order; "
            "leave keep_samples out, or give the landscapes a run of their own"
        )
    if terms_of(observe) is not None:
        raise JobError(
            "keep_samples: the loss is a sum of terms, each over points of its own, and no sample has a loss; leave "
            "keep_samples out"
        )
    _refuse_too_many(name, grid, num_samples)
    return True


def bytes_of_losses(points: int, num_samples: int) -> int:
    """Bytes that the losses of so many samples take at so many points."""
    return BYTES * points * num_samples


def _refuse_too_many(name: str, grid: Grid, num_samples: int) -> None:
    needed, limit = bytes_of_losses(grid.points, num_samples), kept_limit()
    if needed > limit:
        fits = limit // (BYTES * grid.points)
        fewer = f"take num_samples: {fits}, fewer points" if fits > 1 else "take fewer samples or points"
        raise JobError(
            f"keep_samples: must take at most {limit} bytes, not the {needed} of landscape {shown(name)} "
            f"({grid.points} points x {num_samples} samples x {BYTES} bytes); {fewer}, or set {KEPT_BYTES}={needed}"
        )
