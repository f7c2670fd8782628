"""The chosen samples of rectangular data as tensors, in the order that they have in the data."""

from __future__ import annotations

from typing import Any

from landscape.problem.selection import select_samples


def chosen_rows(*arguments: Any, ascending: bool = True, **options: Any) -> Any:
    """One batch of all chosen samples; the arguments are those of `select_samples`."""
    return select_samples(*arguments, ascending=ascending, **options).samples.rows
