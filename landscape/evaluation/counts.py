"""How many values `observe` returns for each batch: one for each sample, or as many as it did at the first point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from landscape.core.errors import JobError
from landscape.problem.batches import Batch, batch_length
from landscape.problem.samples import Samples
from landscape.problem.supervised import Combination, Observe, check_observed, check_terms

Edge = tuple[int, int]


class Names(Protocol):
    """What keeps the names of the observables, in their order, once they were seen."""

    names: tuple[str, ...] | None


class Counts:
    """Of batches that are made of samples of any kind.

    Args:
        samples: knows how many values a batch must have, where that is known.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._edge: Edge = (0, 0)
        self._seen: dict[Edge, int] = {}

    def begin(self, edge: Edge) -> None:
        """To be called before a batch is given to `observe`: the batch from this sample to before that one."""
        self._edge = edge

    def expected(self, batch: Batch, values: Any) -> int | None:
        """How many values each observable of the batch must have; None where it is what `observe` returns.

        Args:
            values: what `observe` returned for the batch.

        Raises:
            JobError: `values` has another number of losses than before, or than the problem's `length` gives.
        """
        given = self._samples.count(*self._edge, batch)
        returned = _losses(values)
        seen = self._seen.get(self._edge)
        if given is not None and returned is not None and returned != given:
            raise JobError(
                f"length: gives {given} samples for a batch of which observe returns {returned} losses; they must agree"
            )
        if seen is not None and returned is not None and returned != seen:
            raise JobError(
                f"observe: must return as many values for a batch at every point, not {seen} losses and then {returned}"
            )
        if returned == 0:
            raise JobError("observe: must return a value for each sample of a batch, not none")
        return given if given is not None else returned

    def note(self, count: int) -> None:
        """Remember how many values the batch had."""
        self._seen[self._edge] = count

    @property
    def other_than_samples(self) -> str:
        """A batch whose values are not one for each sample, in words; empty where there is none."""
        for (start, stop), count in self._seen.items():
            if count != stop - start:
                return f"{count} values for the first {stop - start} samples" if start == 0 else f"{count} values"
        return ""


def _losses(values: Any) -> int | None:
    """The number of losses; None where what was returned is refused anyway."""
    loss = values.get("loss") if isinstance(values, Mapping) else None
    return len(loss) if isinstance(loss, Tensor) and loss.dim() == 1 else None


def checked_observables(
    values: Any, batch: Batch, observe: Observe, counts: Counts | None, names: Names
) -> dict[str, Tensor]:
    """What `observe` returned for a batch, checked, in the order that is always the same; its names are remembered.

    Args:
        counts: of batches that are made of samples of any kind; None where a batch has a value for each row.
        names: where the names of the first batch are kept.

    Raises:
        JobError: it is not one value per sample, or has other names than before.
    """
    if isinstance(observe, Combination):
        return check_terms(values, observe.factors)
    count = batch_length(batch) if counts is None else counts.expected(batch, values)
    observed = check_observed(values, count, names.names)
    names.names = tuple(observed)
    if counts is not None:
        counts.note(len(observed["loss"]))
    return observed
