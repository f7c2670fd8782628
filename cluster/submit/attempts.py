"""The attempts of a job on a cluster, which takes each name once."""

from __future__ import annotations

import re

from landscape.core.errors import LandscapeError

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


def next_attempt(base: str, known: dict[str, str]) -> int:
    """The first attempt that no job on the cluster has had.

    Args:
        known: submission id → status.

    Raises:
        LandscapeError: an earlier attempt has not ended.
    """
    numbers = [0]
    for each, status in known.items():
        found = re.fullmatch(rf"{re.escape(base)}-(\d+)", each)
        if found is None:
            continue
        if status not in ENDED:
            raise LandscapeError(
                f"submit: this job is on the cluster already, {status.lower()} as {each}; "
                f"see landscape logs {each}, or end it with landscape cancel {each}"
            )
        numbers.append(int(found[1]))
    return max(numbers) + 1
