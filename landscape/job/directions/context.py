"""What a direction may ask for while it is made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from landscape.job.directions.paths import RunPath, RunSnapshot
    from landscape.job.directions.spectrum import Spectrum
    from landscape.model.parameters import ParameterInfo, State

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """What applies a function to many items: this process, or the workers of a cluster at the same time."""

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
        """The result of `function` for each item, in the order of the items.

        Function, items and results may travel to other machines, so they must be picklable.
        """


def in_this_process(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
    """The result of `function` for each item, computed here one after another."""
    return [function(item) for item in items]


class ProblemLike(Protocol):
    """What a direction may use of the `landscape.Problem` of its job."""

    @property
    def model(self) -> nn.Module:
        """The network; only copies of it may be changed."""

    @property
    def observe(self) -> Callable[[nn.Module, Any], Mapping[str, Tensor]]:
        """`observe(model, samples)`: a tensor per observable, with one value per sample; `loss` is one of them."""


class Context(Protocol):
    """The landscape that a direction is made for: its origin, its problem, and the weights of its run.

    A *reference* is what a job names weights by: `problem`, `first`, `last`, the number of a snapshot, a snapshot of
    another run, or a file. Nothing is read before it is asked for.
    """

    @property
    def origin(self) -> State:
        """The weights at which the axes cross."""

    @property
    def infos(self) -> Sequence[ParameterInfo]:
        """What each parameter of the model is, in the model's order."""

    @property
    def axes(self) -> Sequence[object]:
        """The specifications of all axes of the landscape, a `DirectionSpec` each, the one that asks included."""

    @property
    def problem(self) -> ProblemLike:
        """The model, its data and what is observed of it."""

    @property
    def samples(self) -> Any:
        """The samples over which every point is evaluated: one batch, as `problem.observe` takes it."""

    @property
    def workers(self) -> Workers:
        """Where costly work may run. A job on Ray starts its session, or attaches to it, with the first call."""

    def spectrum(self, ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
        """Eigenpairs of the Hessian at the origin, over all samples: computed by workers where the job has any.

        Args:
            ranks: which: 1 the largest eigenvalue, 2 the second largest, -1 the smallest.
            steps: products with the Hessian at most.
            seed: of the vector that the Lanczos method starts from.

        Raises:
            JobError: the loss is flat at the origin or has no derivatives, or the vectors would take too much memory.
        """

    @property
    def unit(self) -> str:
        """What the numbers of the snapshots count: `step` or `epoch`."""

    @property
    def paths(self) -> tuple[RunPath, ...]:
        """The runs whose paths the landscape draws, with their snapshots; none where its job names no `paths`."""

    def state(self, reference: int | str | RunSnapshot) -> State:
        """The weights of that name, checked to fit the model."""

    def digest(self, reference: int | str | RunSnapshot) -> str:
        """The digest of the weights of that name."""

    def name(self, reference: int | str | RunSnapshot) -> str:
        """What a label calls the weights of that name, such as `epoch 3`."""

    def snapshots(self, selection: Sequence[int] | Literal["all"]) -> tuple[int, ...]:
        """The numbers of the selected snapshots, ascending; refused where one was not collected."""

    def tensors(self, path: str) -> dict[str, Tensor]:
        """The tensors of a file; a relative path starts at the folder of the job."""

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, computed once for all axes of the landscape that ask under the same key."""
