"""The chosen samples of rectangular data as tensors, in the order that they have in the data."""

from __future__ import annotations

from typing import Any

import torch

from landscape.problem.batches import map_tensors
from landscape.problem.selection import select_samples


def chosen_rows(*arguments: Any, **options: Any) -> Any:
    """One batch of all chosen samples; the arguments are those of `select_samples`."""
    chosen = select_samples(*arguments, **options)
    order = torch.from_numpy(chosen.indices).argsort()
    return map_tensors(lambda tensor: tensor[order], chosen.samples.rows)
