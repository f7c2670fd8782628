"""What `Problem.terms` observes: the losses of several terms, each at points of its own, with derivatives of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, shown
from landscape.problem.batches import Batch, batch_length, map_tensors, tensors_of
from landscape.problem.observables import check_term_weights
from landscape.problem.points import PointData
from landscape.problem.reading import as_rows
from landscape.problem.supervised import mean_per_sample

Residual = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Terms:
    """`observe` for batches {term: points}; `Problem.terms` describes the arguments.

    Args:
        functions: `function(model, points)` → Tensor[n, …] of every term.
    """

    functions: Mapping[str, Residual]

    def __call__(self, model: nn.Module, batch: Mapping[str, Batch]) -> dict[str, Tensor]:
        """The losses [n] of every term of which the batch has points."""
        return {name: self._losses(name, model, points) for name, points in batch.items()}

    def _losses(self, name: str, model: nn.Module, points: Batch) -> Tensor:
        """The losses of one term; its graph is freed before the next one is made, unless the caller takes gradients."""
        wanted = torch.is_grad_enabled()
        with torch.enable_grad():
            losses = self.functions[name](model, map_tensors(_differentiable, points))
        count = tensors_of(points)[0].shape[0]  # not by a set of lengths: they are symbols while it is exported
        if not isinstance(losses, Tensor) or not losses.dim() or losses.shape[0] != count:
            returned = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise JobError(
                f"terms: the function of {shown(name)} must return a loss per point, shape ({count},), not {returned}; "
                "do not average over the points"
            )
        return mean_per_sample(losses if wanted else losses.detach())


def _differentiable(points: Tensor) -> Tensor:
    """The same numbers as a leaf that derivatives are taken with respect to; whole numbers stay what they are."""
    return points.detach().requires_grad_(points.is_floating_point())


def parse_terms(terms: Any) -> tuple[PointData, Terms, dict[str, float]]:
    """The points, the functions and the weights of `Problem.terms`.

    Raises:
        JobError: a term is not (points, function, weight), has no points, or a name or weight that cannot be.
    """
    if not isinstance(terms, Mapping):
        raise JobError(f"terms: must be a dict {{name: (points, function, weight)}}, not {type(terms).__name__}")
    for name, term in terms.items():
        if not isinstance(term, (tuple, list)) or len(term) not in (2, 3):
            what = f"{len(term)} values" if isinstance(term, (tuple, list)) else type(term).__name__
            raise JobError(f"terms: {shown(name)} must be (points, function, weight), not {what}")
        if not callable(term[1]):
            raise JobError(
                f"terms: the function of {shown(name)} must be function(model, points) -> Tensor[n], not "
                f"{shown(term[1])}; give (points, function, weight) in this order"
            )
    given = {name: term[2] if len(term) == 3 else 1.0 for name, term in terms.items()}
    check_term_weights(given)
    weights = {name: float(weight) for name, weight in given.items()}
    points = PointData({name: _points(name, term[0]) for name, term in terms.items()})
    return points, Terms({name: term[1] for name, term in terms.items()}), weights


def _points(name: str, given: Any) -> Batch:
    """The points of a term as tensors on the CPU that share their first dimension.

    Raises:
        JobError: they do not, or there is none.
    """
    try:
        points = as_rows(given)
        count = batch_length(points)
    except JobError as error:
        raise JobError(f"terms: the points of {shown(name)}: {str(error).removeprefix('data: ')}") from None
    if not count:
        raise JobError(
            f"terms: {shown(name)} must have at least one point, not 0; leave out the term, or give it points"
        )
    return points
