"""What a direction may ask for while it is made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.directions.base import DirectionSpec
    from landscape.parameters import ParameterInfo, State
    from landscape.problem.batches import Batch
    from landscape.problem.problem import Problem

T = TypeVar("T")

# Applies a function to each item on the workers of a cluster, and returns the results in the order of the items.
Workers = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


class Context(Protocol):
    """The landscape that a direction is made for: its origin, its problem, and the weights of its run.

    A *reference* is what a job names weights by: `problem`, `first`, `last`, the number of a snapshot, or a file.
    Nothing is read before it is asked for.
    """

    @property
    def origin(self) -> State:
        """The weights at which the axes cross."""

    @property
    def infos(self) -> Sequence[ParameterInfo]:
        """What each parameter of the model is, in the model's order."""

    @property
    def axes(self) -> Sequence[DirectionSpec]:
        """The specifications of all axes of the landscape, the one that asks included."""

    @property
    def problem(self) -> Problem:
        """The model, its data and what is observed of it."""

    @property
    def samples(self) -> Batch:
        """The samples of the problem over which every point is evaluated."""

    @property
    def workers(self) -> Workers | None:
        """Where costly work may run; None where there is this process alone."""

    @property
    def unit(self) -> str:
        """What the numbers of the snapshots count: `step` or `epoch`."""

    def state(self, reference: int | str) -> State:
        """The weights of that name, checked to fit the model."""

    def digest(self, reference: int | str) -> str:
        """The digest of the weights of that name."""

    def name(self, reference: int | str) -> str:
        """What a label calls the weights of that name, such as `epoch 3`."""

    def snapshots(self, selection: Sequence[int] | Literal["all"]) -> tuple[int, ...]:
        """The numbers of the selected snapshots, ascending; refused where one was not collected."""

    def tensors(self, path: str) -> dict[str, Tensor]:
        """The tensors of a file; a relative path starts at the folder of the job."""

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, computed once for all axes of the landscape that ask under the same key."""
