"""The collector's options, checked before anything is written."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from landscape.core.errors import JobError
from landscape.core.validation import check_whole, explain
from landscape.job.job import COLLECTED_SIZE, DEFAULT_SAMPLES, CollectLandscape


def checked_options(
    intervals: Any,
    landscape_size: Any = COLLECTED_SIZE,
    unit: Any = "step",
    create_landscape: Any = None,
    num_samples: Any = DEFAULT_SAMPLES,
) -> CollectLandscape:
    """The options that say what to collect and which landscapes it stands for, as a frozen value.

    Raises:
        JobError: one of them is not usable; names it.
    """
    given = {
        "landscape_size": landscape_size,
        "unit": unit,
        "num_samples": num_samples,
        "intervals": intervals,
        "create_landscape": {} if create_landscape is None else create_landscape,
    }
    try:
        return CollectLandscape.model_validate(given)
    except ValidationError as error:
        raise JobError(explain(error, CollectLandscape)) from None


def check_starts(start_step: int, start_epoch: int | None) -> None:
    """Refuse a start that is no whole number, or negative.

    Raises:
        JobError: says which one.
    """
    for name, value in (("start_step", start_step), ("start_epoch", start_epoch or 0)):
        check_whole(name, value, 0)
