"""What the checks have evaluated beside the grid, by an executor; nothing is judged here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from landscape.analysis.paired import Pairs, evaluated
from landscape.compute.eigenpairs import bytes_of_bases
from landscape.compute.executor import (
    AtPoints,
    EvaluationContext,
    EvaluationSetting,
    Executor,
    LocalExecutor,
    Shared,
    TotalsOfBlocks,
    UnusedParameters,
    WorkItem,
)
from landscape.compute.hessian import HessianOperator
from landscape.compute.lanczos import lanczos
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.devices import host_limit
from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.core.plan import BatchNorm, Engine, Precision, in_float32
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import batching_of
from landscape.evaluation.layers import loss_factors
from landscape.evaluation.model_rounding import WeightRounding
from landscape.evaluation.reference_loss import DrawnError, loss_of, weights_at
from landscape.job.directions.base import DirectionTensors
from landscape.job.directions.file import STEPS
from landscape.job.directions.random import RandomDirection
from landscape.model.parameters import State, describe_parameters
from landscape.problem.selection import samples_in

# A gradient takes a forward pass and a backward one of about twice its time; a Hessian product takes 2.5 gradients.
GRADIENT, PRODUCT = 3, 8
FEW = 32  # samples whose losses and derivatives are compared
BYTES_OF_LINES = 2 << 30  # of directions that a process holds at once beside its own

Points = Sequence[Sequence[float]]


@dataclass(frozen=True, eq=False)
class PlainLoss(WorkItem[tuple[float, str]]):
    """The mean loss at θ₀ + Σ cₖ·dₖ by plain torch, and the type that it was computed in.

    Attributes:
        point: c, one number for each direction; empty for θ₀.
        directions: the tensors of each direction.
        double: compute in float64 where the model and `observe` can, else in float32.
        batch_norm: which statistics the layers use.
        batches: how many of the plan's batches, from the first; None for all.
    """

    point: tuple[float, ...]
    directions: Shared[Sequence[State]]
    double: bool
    batch_norm: BatchNorm
    batches: int | None = None

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"plain evaluation at ({', '.join(f'{each:.4g}' for each in self.point)})"

    def answer(self, station: EvaluationContext) -> tuple[float, str]:
        """Evaluate once; twice where float64 is found not to do."""
        weights = dict(weights_at(station.origin, self.directions.get() if self.point else (), self.point))
        round_weights(weights, station)
        if self.double:
            try:
                return self._loss(station.evaluator, weights, "float64"), "float64"
            except (RuntimeError, TypeError, ValueError, DrawnError):
                pass  # float32 says whether it is the type that does not do
        return self._loss(station.evaluator, weights, "float32"), "float32"

    def _loss(self, evaluator: Evaluator, weights: State, precision: Precision) -> float:
        plan = replace(in_float32(evaluator.plan), precision=precision)
        return loss_of(
            evaluator, weights.items, plan, self.batch_norm, fresh=bool(self.point), batches=self.batches,
            draws=precision != "float64",  # they are others in another type
        )  # fmt: skip


def round_weights(weights: dict[str, Tensor], station: EvaluationContext) -> None:
    """Round weights as the plan says, in its precision: in another one some lie on the other side of a step."""
    plan, model = station.evaluator.plan, station.evaluator.model
    rounding = WeightRounding.of(model, plan.quantise).at_origin(station.origin)
    for name in rounding.infos:
        # A copy in any case, as what no direction names is the origin's own tensor.
        weights[name] = weights[name].to(torch.float64 if plan.precision == "float64" else torch.float32, copy=True)
        rounding.round_in_place(name, weights[name])


@dataclass
class ExtraEvaluations:
    """What the checks evaluate of a landscape beside its values, and what that costs.

    Everything is evaluated eagerly: the engine is what is checked, and starting it again may take longer than all of
    this.

    Attributes:
        stored: the axes as they stand in the store; None where one is kept as its seed alone.
        count: how many evaluations were asked for, each of all samples.
    """

    prepared: PreparedJob
    landscape: PreparedLandscape
    executor: Executor
    stored: Sequence[State] | None
    count: int = 0
    all_have_a_slope: bool = field(default=False, init=False)  # over the first few samples, where that is known

    # -- settings -------------------------------------------------------------------------------------------

    @cached_property
    def own(self) -> EvaluationSetting:
        """The landscape's axes and arithmetic."""
        return EvaluationSetting(
            self.landscape.origin, self.landscape.directions, replace(self.landscape.plan, engine=Engine())
        )

    @cached_property
    def few(self) -> EvaluationSetting:
        """The same in float64, in batches of a few samples, the first of which stands for all."""
        plan = self.own.plan
        return replace(
            self.own,
            plan=replace(
                plan, precision="float64", bfloat16_weights=False,
                batch_size=min(FEW, plan.batch_size),
            ),
        )  # fmt: skip

    @cached_property
    def other_statistics(self) -> EvaluationSetting:
        """The same with statistics of batch norm that are taken anew at each point, or with those of training."""
        mode: BatchNorm = "recalibrate" if self.own.plan.batch_norm == "eval" else "eval"
        return replace(self.own, plan=replace(self.own.plan, batch_norm=mode))

    @cached_property
    def _axes(self) -> Shared[Sequence[State]]:
        made = [each.tensors for each in self.landscape.directions]
        return self.executor.share(self.stored or made)

    # -- values ---------------------------------------------------------------------------------------------

    def losses(self, setting: EvaluationSetting, points: Points) -> Floats:
        """The mean loss at points of the setting's axes."""
        return self.rises(setting, points)[0]

    def rises(self, setting: EvaluationSetting, points: Points, at_once: int = 1) -> tuple[Floats, Floats]:
        """The mean loss at points of the setting's axes, and the standard error of its rise over the origin.

        Args:
            at_once: how many points make a question.
        """
        table = np.array(points, np.float64)
        parts = [AtPoints(table[start : start + at_once]) for start in range(0, len(table), at_once)]
        passes = 2 if setting.plan.statistics.recalibrated else 1
        self.count += passes * (len(table) + 1)  # and the origin, over which the rise is
        answers = self.executor.ask(setting, parts)
        errors = [
            np.full(len(each.mean["loss"]), np.nan) if each.rise_stderr is None else each.rise_stderr
            for each in answers
        ]
        return np.concatenate([each.mean["loss"] for each in answers]), np.concatenate(errors)

    def by_statistics(self, points: Points) -> Pairs:
        """The mean losses at points with the landscape's statistics of batch norm, and with the other ones."""
        settings = (self.own, self.other_statistics)
        self.count += sum(2 if each.plan.statistics.recalibrated else 1 for each in settings) * (len(points) + 1)
        return evaluated(self.executor, settings, np.array(points, np.float64), self.prepared.problem.observe)

    def own_loss(self) -> float:
        """The loss at the origin by the model's own forward pass, as it is used: in eval mode."""
        self.count += 1
        double = self.own.plan.precision == "float64"
        (answer,) = self.executor.ask(self.own, [PlainLoss((), self._axes, double, "eval")])
        return answer[0]

    def plain_losses(self, points: Points, double: int) -> tuple[Floats, str]:
        """The losses at points by plain evaluation along the stored axes, and the types of it.

        Args:
            double: how many of them, from the first, are computed in float64.
        """
        plan = self.own.plan
        self.count += len(points) * (2 if plan.statistics.recalibrated else 1)
        questions = [
            PlainLoss(tuple(point), self._axes, place < double, plan.batch_norm) for place, point in enumerate(points)
        ]
        answers = self.executor.ask(self.own, questions)
        kinds = {kind for _, kind in answers}
        return np.array([loss for loss, _ in answers]), " and ".join(sorted(kinds))

    def repeated(self, point: Sequence[float]) -> tuple[list[float], int]:
        """The loss of one point three times, by two processes where there are two, and how many there were."""
        question = AtPoints(np.array([point], np.float64))
        apart = self.executor.ask_apart(self.own, question, 2)
        answers = [*apart, *self.executor.ask(self.own, [question])]
        self.count += 2 * len(answers)
        processes = 1 if isinstance(self.executor, LocalExecutor) else len(apart)
        return [float(answer.mean["loss"][0]) for answer in answers], processes

    # -- lines ----------------------------------------------------------------------------------------------

    def line_losses(self, spec: RandomDirection, seeds: Sequence[int], at: Sequence[float]) -> tuple[Floats, Floats]:
        """Losses and errors of the rise [lines, points] along random directions of other seeds, at these places."""
        parts = [self._lines(spec, group, at) for group in self._groups(seeds)]
        return np.concatenate([losses for losses, _ in parts]), np.concatenate([errors for _, errors in parts])

    def _lines(self, spec: RandomDirection, seeds: Sequence[int], at: Sequence[float]) -> tuple[Floats, Floats]:
        infos = describe_parameters(self.prepared.problem.model)
        drawn = [spec.model_copy(update={"seed": seed}).draw(self.landscape.origin, infos) for seed in seeds]
        setting = replace(self.own, directions=tuple(DirectionTensors(each) for each in drawn))
        points = [[each if k == line else 0.0 for k in range(len(seeds))] for line in range(len(seeds)) for each in at]
        losses, errors = self.rises(setting, points, at_once=len(at))
        return losses.reshape(len(seeds), -1), errors.reshape(len(seeds), -1)

    def _groups(self, seeds: Sequence[int]) -> Iterator[Sequence[int]]:
        numbers = sum(each.numel() for each in self.landscape.origin.values())
        size = max(1, BYTES_OF_LINES // (4 * numbers))
        for start in range(0, len(seeds), size):
            yield seeds[start : start + size]

    # -- derivatives ----------------------------------------------------------------------------------------

    def moved_with_derivatives(self) -> list[str]:
        """The names of what has derivatives, which is all that the axes move.

        Raises:
            JobError: an axis moves something else: the grid's differences are then not those of derivatives.
        """
        names = [info.name for info in describe_parameters(self.prepared.problem.model) if info.trainable]
        if any(not set(each.tensors) <= set(names) for each in self.landscape.directions):
            raise JobError("an axis moves what has no derivative, such as a buffer")
        return names

    def losses_of_few(self, points: Points) -> list[float]:
        """The losses of the first few samples in float64.

        Raises:
            JobError: the model does not compute in float64.
        """
        mode = self.few.plan.batch_norm
        shared = self.executor.share([each.tensors for each in self.landscape.directions])
        answers = self.executor.ask(self.few, [PlainLoss(tuple(each), shared, True, mode, 1) for each in points])
        if any(kind != "float64" for _, kind in answers):
            raise JobError("the model or observe does not compute in float64, or draws random numbers")
        return [loss for loss, _ in answers]

    @property
    def samples_of_few(self) -> tuple[int, int]:
        """How many the first few samples are, and how many all of them."""
        samples, plan = self.prepared.samples, self.few.plan
        start, stop = batching_of(samples.length, plan, plan.batch_size, samples.cuts).edges[0]
        return stop - start, samples.length

    @cached_property
    def samples_of_problem(self) -> int | None:
        """How many samples the problem has; None where its data would have to be read to tell."""
        return samples_in(self.prepared.problem.data)

    @property
    def share_of_few(self) -> float:
        few, all_of_them = self.samples_of_few
        return few / all_of_them

    def hessian_of_axes(self) -> Floats:
        """dᵢᵀHdⱼ of all pairs of axes over all samples [axes, axes].

        Raises:
            JobError: the model has no derivatives, or an axis moves what has none.
        """
        self.moved_with_derivatives()
        operator = self.hessian(self.own)
        vectors = np.stack([operator.layout.vector(each.tensors) for each in self.landscape.directions])
        self.count += 1 + PRODUCT * len(vectors)
        return np.asarray(np.einsum("kp,lp->kl", vectors, operator(vectors)), np.float64)

    def unused_parameters(self) -> set[str]:
        """The names of the trainable parameters that the loss of no sample depends on at the origin.

        Without a question where each was seen to have a slope.

        Raises:
            JobError: the model has no derivatives.
        """
        if self.all_have_a_slope:
            return set()
        samples, plan = self.prepared.samples, self.own.plan
        blocks = range(len(batching_of(samples.length, plan, plan.batch_size, samples.cuts).blocks))
        totals = self.executor.ask(self.own, [TotalsOfBlocks([0])])
        factors = loss_factors(totals[0], self.prepared.problem.observe)
        found = self.executor.ask(self.own, [UnusedParameters(block, factors) for block in blocks])
        self.count += GRADIENT
        return set.intersection(*found)

    def spectrum_ends(self) -> tuple[float, float, float, int]:
        """λmax and λmin of the Hessian at the origin, what no eigenvalue is below, and how many products they took.

        Raises:
            JobError: the model has no derivatives, or the basis would not fit the memory.
        """
        operator = self.hessian(self.own)
        needed = bytes_of_bases(operator.size, STEPS)
        if needed > host_limit():
            raise JobError(f"the basis of Lanczos would take {needed / 2**30:.1f} GiB, more than is free")
        found = lanczos(operator, operator.size, (1, -1), noise=lambda: operator.noise)
        self.count += 1 + PRODUCT * operator.products
        return found.pair(1).value, found.pair(-1).value, found.lower_bound(), operator.products

    def hessian(self, setting: EvaluationSetting) -> HessianOperator:
        return HessianOperator(self.executor, setting, self.prepared.problem, self.prepared.samples)
