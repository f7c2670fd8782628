"""The interface of every kind of direction: its sources, its identity, its values, its label, how it is sent.

A job is read without torch, which takes seconds to import: a kind imports it only in functions that compute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

from landscape.core.validation import Frozen
from landscape.surface.record import parse_axis
from landscape.surface.record_parts import AxisRecord

if TYPE_CHECKING:
    from torch import Tensor, nn

    from landscape.core.grid import Floats
    from landscape.model.parameters import ParameterInfo, State

Range = tuple[float, float]


@dataclass(frozen=True)
class DirectionTensors:
    """One axis in weight space.

    Attributes:
        tensors: a float32 tensor per name; names that do not move are left out.
        attributes: the record of the axis.
    """

    tensors: Mapping[str, Tensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def record(self) -> AxisRecord:
        """The attributes that every kind has, as a typed value."""
        return parse_axis(self.attributes)[0]


class DirectionSpec(Frozen, ABC):
    """A direction as a job describes it. A subclass is a kind, and is listed in `kinds.KINDS`.

    Attributes:
        kind: the word by which a job names the kind.
        title: the name of the kind in messages; default: `kind`.
        default_range: the ends of the axis if the job leaves them out; None if they are fitted to the path, which
            needs a kind with `snapshots`.
        reaches_to: what the axis has to reach, in words, if this decides its ends and not the loss.
        is_costly: whether its label and attributes take long to make, so that those of a landscape on disk are reused.
        in_parts: whether any part of it can be made without the whole, so that a large one takes no memory.
        follows_samples: whether it is another direction with more samples.
    """

    kind: str

    title: ClassVar[str] = ""
    default_range: ClassVar[Range | None] = (-1.0, 1.0)
    reaches_to: ClassVar[str] = ""
    is_costly: ClassVar[bool] = False
    in_parts: ClassVar[bool] = False
    follows_samples: ClassVar[bool] = False

    @classmethod
    def word(cls) -> str:
        """The word by which a job names this kind."""
        return str(cls.model_fields["kind"].default)

    def on_axis(self, axis: int) -> Self:
        """The direction with the fields filled in that depend on its place among the axes, from 0."""
        return self

    def coordinates(self, size: int) -> Floats | None:
        """The coordinates if the job leaves the range out; None: `size` even points over the default range."""
        return None

    def places(self, context: Context) -> Floats | None:
        """Coordinates to which the axis is fitted if the job leaves the range out and there is no path."""
        return None

    def range_at(self, context: Context) -> Range | None:
        """The ends if the job leaves the range out and they follow from the origin; else None."""
        return None

    @property
    def weights(self) -> tuple[int | str, ...]:
        """The weights that it names: snapshots by `first`, `last` or number, `problem`, files."""
        return ()

    @property
    def files(self) -> tuple[str, ...]:
        """Other files that it names; like the files of `weights`, they are sent to a cluster with the job."""
        return ()

    @property
    def snapshots(self) -> tuple[int, ...] | Literal["all"] | None:
        """The snapshots that it is computed from, which are the landscape's path; None if it needs none."""
        return None

    def check(self, context: Context) -> None:
        """Refuse a direction that cannot be made, before anything else is read.

        Raises:
            JobError: the run lacks a source of the direction.
        """

    def identity(self, context: Context) -> dict[str, Any]:
        """The plain values that decide the direction; a landscape on disk with other ones is refused."""
        return self.model_dump(mode="json")

    @abstractmethod
    def make(self, context: Context) -> State:
        """The direction: a float32 tensor per name that moves, in the shape of the model's.

        Raises:
            JobError: it cannot be computed, or would be zero or not finite.
        """

    @abstractmethod
    def label(self, context: Context) -> str:
        """The name of the axis in figures."""

    def attributes(self, context: Context) -> dict[str, Any]:
        """The record of the axis beside specification, norm, label and digest."""
        return {}


# ----------------------------------------------------------------------------------------------------
# What a direction may use while it is computed.

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """Applies a function to many items: in this process, or in the workers of a cluster at once."""

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

    A *reference* names weights in a job: `problem`, `first`, `last`, the number of a snapshot, a snapshot of another
    run, or a file. Nothing is read before it is needed.
    """

    @property
    def origin(self) -> State:
        """The weights at which the axes cross."""

    @property
    def infos(self) -> Sequence[ParameterInfo]:
        """The description of each parameter, in the model's order."""

    @property
    def axes(self) -> Sequence[object]:
        """The specifications of all axes of the landscape, a `DirectionSpec` each."""

    @property
    def problem(self) -> ProblemLike:
        """The model, its data and its observables."""

    @property
    def samples(self) -> Any:
        """The samples over which every point is evaluated: one batch, as `problem.observe` takes it."""

    @property
    def workers(self) -> Workers:
        """Runs costly work; a job on Ray starts its session, or attaches to it, at the first call."""

    def spectrum(self, ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
        """Eigenpairs of the Hessian at the origin, over all samples, computed by workers if the job has any.

        Args:
            ranks: 1 the largest eigenvalue, 2 the second largest, -1 the smallest.
            steps: products with the Hessian at most.
            seed: of the first vector of the Lanczos method.

        Raises:
            JobError: the loss is flat at the origin or has no derivatives, or the vectors would take too much memory.
        """

    @property
    def unit(self) -> str:
        """The unit of the numbers of snapshots: `step` or `epoch`."""

    @property
    def paths(self) -> tuple[RunPath, ...]:
        """The runs whose paths the landscape draws, with their snapshots; none if its job names no `paths`."""

    def state(self, reference: int | str | RunSnapshot) -> State:
        """The weights of that name, checked to fit the model."""

    def digest(self, reference: int | str | RunSnapshot) -> str:
        """The digest of the weights of that name."""

    def name(self, reference: int | str | RunSnapshot) -> str:
        """The words for the weights of that name in a label, such as `epoch 3`."""

    def snapshots(self, selection: Sequence[int] | Literal["all"]) -> tuple[int, ...]:
        """The numbers of the selected snapshots, ascending; refused if one was not collected."""

    def tensors(self, path: str) -> dict[str, Tensor]:
        """The tensors of a file; a relative path starts at the folder of the job."""

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, computed once for all axes of the landscape that use the same key."""


# ----------------------------------------------------------------------------------------------------
# Options of several kinds: how a direction is scaled to the weights, and which parameters it does not move.

Normalise = Literal["filter", "layer", "model", "none"]  # `landscape.model.parameters.filter_scales` computes them
Ignored = Literal["bias", "norm"]
DEFAULT_IGNORE: tuple[Ignored, ...] = ("bias", "norm")  # of random directions, as in Li et al. 2018


def scaling_label(normalise: Normalise, ignore: Sequence[Ignored]) -> str:
    """The scaling of a direction in words, for its label.

    >>> scaling_label("filter", ("bias", "norm"))
    'filter-normalised, bias and norm ignored'
    """
    scaled = "not normalised" if normalise == "none" else f"{normalise}-normalised"
    return f"{scaled}, {' and '.join(ignore)} ignored" if ignore else scaled


# ----------------------------------------------------------------------------------------------------
# The paths of other runs that a landscape draws, as its directions see them.

NAMED = 3  # paths that a label lists at most


@dataclass(frozen=True)
class RunSnapshot:
    """A snapshot of a run: the run's absolute folder or URL, and the epoch or step."""

    run: str
    number: int


@dataclass(frozen=True)
class RunPath:
    """The snapshots of one run that a landscape draws as a path.

    Attributes:
        label: the name of the run in figures.
        run: its absolute folder, or its URL.
        named: the run as the job names it.
        unit: of the numbers, step or epoch.
        numbers: of the snapshots, ascending.
        own: whether the landscape lies in this run.
    """

    label: str
    run: str
    named: str
    unit: str
    numbers: tuple[int, ...]
    own: bool = False

    @property
    def snapshots(self) -> tuple[RunSnapshot, ...]:
        """The snapshots in the order of the path."""
        return tuple(RunSnapshot(self.run, number) for number in self.numbers)


def paths_in_words(paths: tuple[RunPath, ...]) -> str:
    """The words for these paths in a label.

    >>> paths_in_words((RunPath("sgd", "/runs/sgd", "sgd", "epoch", (0, 1, 2)), RunPath("b", "/b", "b", "step", (5,))))
    'the paths of sgd and b'
    """
    if len(paths) > NAMED:
        return f"{len(paths)} paths"
    *before, last = (path.label for path in paths)
    return f"the paths of {', '.join(before)} and {last}" if before else f"the path of {last}"


# ----------------------------------------------------------------------------------------------------
# Eigenpairs of the Hessian at an origin, from which directions are made.


@dataclass(frozen=True)
class Eigenpair:
    """An eigenvalue and its vector.

    Attributes:
        residual: ‖Hv − λv‖.
        stderr: the standard error of λ over the samples; None if no sample has a loss of its own.
        vector: of unit length, a float32 tensor per trainable parameter.
    """

    value: float
    residual: float
    stderr: float | None
    vector: Mapping[str, Tensor]

    @property
    def is_resolved(self) -> bool:
        """Whether the residual is smaller than the value; else the true value may have another sign or size."""
        return self.residual < abs(self.value)


@dataclass(frozen=True)
class Spectrum:
    """Eigenpairs of the Hessian of the mean loss.

    Attributes:
        pairs: by rank: 1 the largest eigenvalue, 2 the second largest, -1 the smallest.
        loss: L₀, at the origin.
        steps: how many products with the Hessian were taken.
        method: `autograd`, or `differences` if the model has no second derivative.
        foreseen: whether vectors and numbers are placeholders, because the job has not run yet.
    """

    pairs: Mapping[int, Eigenpair]
    loss: float
    steps: int
    method: str
    foreseen: bool = False
