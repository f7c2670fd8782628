"""Which options do nothing but with one optimiser or one schedule: given with another they are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from landscape.core.errors import JobError, shown

OF_OPTIMIZER: Mapping[str, Sequence[str]] = {
    "momentum": ("momentum", "thor"),
    **dict.fromkeys(
        ("damping", "frequency", "balance", "average", "first_order", "refresh", "growth", "clip"), ("thor",)
    ),
}
OF_SCHEDULE: Mapping[str, Sequence[str]] = {
    "final": ("cosine", "polynomial"), "milestones": ("steps",), "factor": ("steps",), "power": ("polynomial",),
}  # fmt: skip


def refuse_unused(given: Iterable[str], field: str, chosen: Any, takers: Mapping[str, Sequence[str]]) -> None:
    """Refuse options that do nothing with the optimiser or the schedule that was chosen.

    Args:
        given: the names of the options that were given.
        field: "optimizer" or "schedule".
        chosen: the name of the optimiser or schedule; of a schedule also a function, or None for a published one.
        takers: the optimisers or schedules that take each option; one that is not named here goes with all of them.

    Raises:
        JobError: names the first such option, and what takes it.
    """
    unused = next((name for name in given if name in takers and chosen not in takers[name]), None)
    if unused is not None:
        other = "the published one" if chosen is None else "a function" if callable(chosen) else shown(chosen)
        names = alternatives(takers[unused])
        raise JobError(
            f"{unused}: must go with {field} {names}, not with {other}, where it does nothing; leave it out, or "
            f"choose {field} {names}"
        )


def alternatives(names: Sequence[str]) -> str:
    """Names as a choice.

    Example:
        >>> alternatives(["momentum", "thor"])
        'momentum or thor'
    """
    return " or ".join(names)
