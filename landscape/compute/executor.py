"""Work items, the context in which a process computes them, and the executors that distribute them."""

from __future__ import annotations

import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from landscape.compute.plans import make_evaluator
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.errors import Interrupted, JobError, NotRetried
from landscape.core.grid import Floats
from landscape.core.plan import Plan
from landscape.core.progress import RetryRule
from landscape.evaluation.derivatives import Differentiation, Products
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.reduction import Values
from landscape.evaluation.twice_differentiable import NoSecondDerivative
from landscape.job.directions.base import DirectionTensors
from landscape.model.parameters import State
from landscape.problem.user_code import cause_of_failure, in_folder

Value = TypeVar("Value", covariant=True)
Answer = TypeVar("Answer", covariant=True)
Computed = TypeVar("Computed")

FIELD = re.compile(r"[a-z_]+: ")  # begins an error message that names a field


@dataclass(frozen=True, eq=False)
class EvaluationSetting:
    """The weights that work items are about, and the arithmetic of the answers; a process loads it once.

    Attributes:
        origin: θ₀.
        directions: the axes through it; empty if work items need only the origin, or bring whole sets of weights.
        plan: for values. Derivatives use its precision, batches and statistics, and run eagerly.
    """

    origin: State
    directions: tuple[DirectionTensors, ...]
    plan: Plan


class Shared(Protocol[Value]):
    """A large value that is sent to every process once, however many work items refer to it."""

    def get(self) -> Value:
        """The value, in the process that answers."""


@dataclass(frozen=True)
class SharedValue(Generic[Value]):
    """A shared value of an executor that computes in its own process."""

    value: Value

    def get(self) -> Value:
        """The value itself."""
        return self.value


@dataclass
class EvaluationContext:
    """What `WorkItem.answer` works with: the evaluator of a setting, and derivatives at its origin."""

    evaluator: Evaluator
    origin: State

    @cached_property
    def differentiation(self) -> Differentiation:
        """Derivatives of the mean loss at the origin; loads another copy of the model."""
        return Differentiation.beside(self.evaluator, self.origin)

    @cached_property
    def differentiation_in_double(self) -> Differentiation:
        """The same in float64, for differences of gradients; loads a third copy if the plan is not in float64."""
        if self.evaluator.plan.precision == "float64":
            return self.differentiation
        return Differentiation.beside(self.evaluator, self.origin, "float64")

    def derivatives(self, *, in_double: bool = False) -> Differentiation:
        """Derivatives at the origin, in the evaluator's batches."""
        derivatives = self.differentiation_in_double if in_double else self.differentiation
        derivatives.begin(self.evaluator)
        derivatives.use_batches(self.evaluator.batch_size)
        return derivatives


class WorkItem(ABC, Generic[Answer]):
    """A question about a problem. It and its answer travel between driver and worker: both are picklable.

    The answer depends on the work item and the setting alone, to the bit; not on other items or on the process.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """The name of the work item in messages."""

    @abstractmethod
    def answer(self, context: EvaluationContext) -> Answer:
        """Compute it."""

    def answer_from_unchanged(self, context: EvaluationContext) -> Answer:
        """Compute it; raises WeightsChanged if a file of weights was written to meanwhile."""
        answered = self.answer(context)
        context.evaluator.refuse_changed_files()
        return answered


class Executor(ABC):
    """Gets work items computed. Which process computes them, and in which order, changes no bit of the answers."""

    @abstractmethod
    def share(self, value: Any) -> Shared[Any]:
        """Make a value available to every process; work items hold what is returned."""

    @abstractmethod
    def ask(self, setting: EvaluationSetting, items: Sequence[WorkItem[Answer]]) -> list[Answer]:
        """The answers, in the order of the work items.

        Raises:
            JobError: user code raised at every try of an item; names the item and the exception.
            Interrupted: the job was told to stop.
        """

    @abstractmethod
    def ask_apart(self, setting: EvaluationSetting, item: WorkItem[Answer], times: int) -> list[Answer]:
        """`times` answers to one item, after loading the setting anew, by as many different processes as there are."""


@dataclass
class LocalExecutor(Executor):
    """Computes in this process, one item after another: the reference.

    Args:
        prepared: the job, whose problem and samples the work items are about.
        landscape: any landscape of the job; decides the device.
        stop: is called before each point; if it returns true, `Interrupted` is raised.
    """

    prepared: PreparedJob
    landscape: PreparedLandscape
    stop: Callable[[], bool] = lambda: False
    _context: EvaluationContext | None = field(default=None, init=False)
    _setting: EvaluationSetting | None = field(default=None, init=False)

    def share(self, value: Any) -> Shared[Any]:
        """The value, held as it is."""
        return SharedValue(value)

    def ask(self, setting: EvaluationSetting, items: Sequence[WorkItem[Answer]]) -> list[Answer]:
        """The answers, in the order of the work items."""
        return [self._answer(setting, item) for item in items]

    def ask_apart(self, setting: EvaluationSetting, item: WorkItem[Answer], times: int) -> list[Answer]:
        """The answers of this process, with the setting loaded anew each time."""
        answers = []
        for _ in range(times):
            self._context = self._setting = None
            answers.append(self._answer(setting, item))
        return answers

    def _answer(self, setting: EvaluationSetting, item: WorkItem[Answer]) -> Answer:
        with in_folder(self.prepared.folder):
            context = self._set_to(setting)

            def answer() -> Answer:
                self._on_point()
                return item.answer_from_unchanged(context)

            answered = try_computing(context.evaluator, answer)
        if isinstance(answered, GivenUp):
            raise unanswered_error(item.label, answered.cause) from answered.error
        return answered

    def _set_to(self, setting: EvaluationSetting) -> EvaluationContext:
        if self._context is None or self._setting is not setting:
            self._context = None  # first: the device may have room for only one model and set of samples
            set_to = replace(self.landscape, origin=setting.origin, directions=setting.directions, plan=setting.plan)
            evaluator = make_evaluator(self.prepared, set_to, self._on_point)
            self._context, self._setting = EvaluationContext(evaluator, setting.origin), setting
        return self._context

    def _on_point(self) -> None:
        if self.stop():
            raise Interrupted("interrupted; nothing of this is kept: the same command begins it anew")


@dataclass(frozen=True)
class GivenUp:
    """The result of a failed computation: the number of tries, and user code's last exception."""

    attempts: int
    error: Exception

    @property
    def cause(self) -> str:
        """The exception on one line."""
        return cause_of_failure(self.error)

    @property
    def traceback(self) -> str:
        """The traceback of the exception."""
        return "".join(traceback.format_exception(self.error))


def try_computing(evaluator: Evaluator, compute: Callable[[], Computed]) -> Computed | GivenUp:
    """Call `compute`; if user code raises, call it again as often as `RetryRule` says.

    Raises:
        Interrupted, NotRetried: these end the job.
    """
    rule, exceptions = RetryRule(), 0
    while True:
        try:
            return evaluator.within_memory(compute)
        except (Interrupted, NotRetried):
            raise
        except Exception as error:
            exceptions += 1
            if rule.after_exception(exceptions) == "quarantine":
                return GivenUp(exceptions, error)


# Returns an executor for a job, one landscape of it, and the approximate number of evaluations of all samples.
Executors = Callable[[PreparedJob, PreparedLandscape, int], AbstractContextManager[Executor]]


def local_executors(stop: Callable[[], bool] = lambda: False) -> Executors:
    """Executors that compute in this process: the reference."""
    return lambda prepared, landscape, evaluations: nullcontext(LocalExecutor(prepared, landscape, stop))


def setting_of(landscape: PreparedLandscape) -> EvaluationSetting:
    """The setting of a landscape: its origin, axes and plan."""
    return EvaluationSetting(landscape.origin, landscape.directions, landscape.plan)


def unanswered_error(label: str, cause: str) -> JobError:
    """The error of a work item that cannot be computed, since user code raises or this software refuses it.

    A cause that begins with a field's name is complete; to any other cause `label` is added.

    >>> str(unanswered_error("points", "JobError: batch_norm: must be eval"))
    'batch_norm: must be eval'
    >>> str(unanswered_error("points", "ValueError: no"))
    'points: ValueError: no'
    """
    words = cause.removeprefix(f"{JobError.__name__}: ")
    return JobError(words if words != cause and FIELD.match(words) else f"{label}: {words}")


# ----------------------------------------------------------------------------------------------------
# Derivatives of the loss at the setting's origin, each work item over one block of the samples or several.


@dataclass(frozen=True, eq=False)
class BlockGradient(WorkItem[Floats]):
    """A block's part of ∇L, float64 [P], see `Differentiation.gradient`."""

    block: int
    factors: Mapping[str, float]

    @property
    def label(self) -> str:
        return f"gradient over the samples of block {self.block}"

    def answer(self, context: EvaluationContext) -> Floats:
        """Differentiate once."""
        return context.derivatives().gradient(self.block, self.factors).numpy()


@dataclass(frozen=True, eq=False)
class UnusedParameters(WorkItem[set[str]]):
    """The names of the parameters that no loss of a block depends on, see `Differentiation.unused`."""

    block: int
    factors: Mapping[str, float]

    @property
    def label(self) -> str:
        return f"parameters without a gradient over the samples of block {self.block}"

    def answer(self, context: EvaluationContext) -> set[str]:
        """Differentiate once."""
        return context.derivatives().unused(self.block, self.factors)


@dataclass(frozen=True, eq=False)
class TotalsOfBlocks(WorkItem[list[dict[str, float]]]):
    """Σ wᵢ over each of several blocks, of the loss or of each of its terms."""

    blocks: Sequence[int]

    @property
    def label(self) -> str:
        return f"sums over the samples of {_name_blocks(self.blocks)}"

    def answer(self, context: EvaluationContext) -> list[dict[str, float]]:
        """Observe each block once."""
        derivatives = context.derivatives()
        return [derivatives.totals(block) for block in self.blocks]


@dataclass(frozen=True)
class SumOfProducts:
    """The answer to `ProductOfBlocks`.

    Attributes:
        total: float64 [k, P]; None if the model has no second derivative.
        refusal: why the model has none.
    """

    total: Floats | None
    refusal: str = ""


@dataclass(frozen=True, eq=False)
class ProductOfBlocks(WorkItem[SumOfProducts]):
    """The part of several blocks in H·V, added in the order of the blocks.

    The blocks that one answer adds decide the rounding of the whole: cut blocks by their number alone, never by the
    number of processes. A missing second derivative is an answer, not an error: the caller can then ask for
    differences of gradients, which are computed in float64.

    Attributes:
        vectors: V, float64 [k, P].
    """

    blocks: Sequence[int]
    factors: Mapping[str, float]
    vectors: Shared[Floats]
    how: Products = "autograd"

    @property
    def label(self) -> str:
        return f"Hessian product over the samples of {_name_blocks(self.blocks)}"

    def answer(self, context: EvaluationContext) -> SumOfProducts:
        """Differentiate twice, or take two gradients for each vector, block by block."""
        derivatives = context.derivatives(in_double=self.how == "differences")
        vectors = [torch.from_numpy(np.array(row)) for row in self.vectors.get()]
        total = np.zeros((len(vectors), derivatives.size))
        try:
            for block in self.blocks:
                for row, part in zip(total, derivatives.products(block, self.factors, vectors, self.how), strict=True):
                    row += part.numpy()
        except NoSecondDerivative as error:
            return SumOfProducts(None, str(error))
        return SumOfProducts(total)


@dataclass(frozen=True)
class CurvaturesOfSamples:
    """The answer to `CurvaturesAlong`.

    Attributes:
        found: vᵀ∇²ℓᵢv and wᵢ of all samples, of the loss or of each of its terms; None without such derivatives.
    """

    found: Mapping[str, tuple[Floats, Floats]] | None


@dataclass(frozen=True, eq=False)
class CurvaturesAlong(WorkItem[CurvaturesOfSamples]):
    """vᵀ∇²ℓᵢv of every sample, see `Differentiation.curvatures`."""

    direction: Shared[Mapping[str, torch.Tensor]]

    @property
    def label(self) -> str:
        return "curvature of each sample's loss along an eigenvector"

    def answer(self, context: EvaluationContext) -> CurvaturesOfSamples:
        """Differentiate three times, block by block."""
        derivatives, direction = context.derivatives(), self.direction.get()
        try:
            blocks = [derivatives.curvatures(block, direction) for block in range(derivatives.blocks)]
        except NoSecondDerivative:
            return CurvaturesOfSamples(None)

        def whole(name: str, k: int) -> Floats:
            return np.concatenate([block[name][k].numpy() for block in blocks if name in block])

        names = dict.fromkeys(name for block in blocks for name in block)  # a term may have samples in few blocks
        return CurvaturesOfSamples({name: (whole(name, 0), whole(name, 1)) for name in names})


def _name_blocks(blocks: Sequence[int]) -> str:
    return f"blocks {blocks[0]} to {blocks[-1]}" if len(blocks) > 1 else f"block {blocks[0]}"


# ----------------------------------------------------------------------------------------------------
# The observables at points of the setting's axes, and at whole sets of weights.


@dataclass(frozen=True, eq=False)
class AtPoints(WorkItem[Values]):
    """The observables at points of the plane, their standard errors, and those of the rise.

    Attributes:
        points: coordinates [points, axes].
        keep: whether the losses of the single samples are returned too.
    """

    points: Floats
    keep: bool = False

    @property
    def label(self) -> str:
        return f"{len(self.points)} points"

    def answer(self, context: EvaluationContext) -> Values:
        """Evaluate them, as the points of a tile are."""
        return replace(context.evaluator.evaluate(self.points, rise=True, keep=self.keep), seconds=0.0)


@dataclass(frozen=True, eq=False)
class AtWeights(WorkItem[Values]):
    """The observables at a whole set of weights."""

    weights: Shared[State]

    @property
    def label(self) -> str:
        return "weights"

    def answer(self, context: EvaluationContext) -> Values:
        """Evaluate them, as a snapshot of a path is."""
        return replace(context.evaluator.evaluate_states([self.weights.get()]), seconds=0.0)
