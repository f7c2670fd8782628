"""The evaluations that the checks make beside the grid, by an executor; nothing is judged here."""

from __future__ import annotations

from collections.abc import Sequence
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
from landscape.job.directions.computed import hold_if_small
from landscape.job.directions.file import STEPS
from landscape.job.directions.random import RandomDirection
from landscape.model.parameters import State, describe_parameters
from landscape.problem.selection import samples_in

# Costs in forward passes: a gradient takes one and a backward pass of twice its time; a Hessian product takes the time
# of 2.5 gradients.
GRADIENT, PRODUCT = 3, 8
FEW = 32  # samples on which losses and derivatives are compared

Points = Sequence[Sequence[float]]


@dataclass(frozen=True, eq=False)
class PlainLoss(WorkItem[tuple[float, str]]):
    """The mean loss at θ₀ + Σ cₖ·dₖ by plain torch, and the type in which it was computed.

    Attributes:
        point: c, one number for each direction; empty for θ₀.
        directions: the tensors of each direction.
        double: compute in float64 if the model and `observe` can, else in float32.
        batch_norm: which statistics the batch norm layers use.
        batches: how many of the plan's batches, from the first; None for all.
    """

    point: tuple[float, ...]
    directions: Shared[Sequence[State]]
    double: bool
    batch_norm: BatchNorm
    batches: int | None = None

    @property
    def label(self) -> str:
        """The name of the item in messages."""
        return f"plain evaluation at ({', '.join(f'{coordinate:.4g}' for coordinate in self.point)})"

    def answer(self, station: EvaluationContext) -> tuple[float, str]:
        """Evaluate in float64 if asked to, and again in float32 if that fails."""
        weights = dict(weights_at(station.origin, self.directions.get() if self.point else (), self.point))
        round_weights(weights, station)
        if self.double:
            try:
                return self._loss(station.evaluator, weights, "float64"), "float64"
            except (RuntimeError, TypeError, ValueError, DrawnError):
                pass  # If float32 fails too, the cause is not the type, and its error is raised.
        return self._loss(station.evaluator, weights, "float32"), "float32"

    def _loss(self, evaluator: Evaluator, weights: State, precision: Precision) -> float:
        plan = replace(in_float32(evaluator.plan), precision=precision)
        return loss_of(
            evaluator, weights.items, plan, self.batch_norm, fresh=bool(self.point), batches=self.batches,
            draws=precision != "float64",  # random numbers differ between types
        )  # fmt: skip


def round_weights(weights: dict[str, Tensor], station: EvaluationContext) -> None:
    """Round weights as the plan says, in its precision; in another one some would round to another step."""
    plan, model = station.evaluator.plan, station.evaluator.model
    rounding = WeightRounding.of(model, plan.quantise).at_origin(station.origin)
    for name in rounding.infos:
        # Always a copy: a tensor that no direction moves is the origin's own.
        weights[name] = weights[name].to(torch.float64 if plan.precision == "float64" else torch.float32, copy=True)
        rounding.round_in_place(name, weights[name])


@dataclass
class ExtraEvaluations:
    """Evaluations of a landscape beside its grid, and their cost.

    All are eager, since the engine is among what is checked, and starting it may take longer than all evaluations.

    Attributes:
        stored: the directions in the store; None if the store keeps only the seed of one.
        count: the cost so far, in evaluations of all samples.
        all_have_a_slope: whether each trainable parameter has a gradient over the first few samples; False if unknown.
    """

    prepared: PreparedJob
    landscape: PreparedLandscape
    executor: Executor
    stored: Sequence[State] | None
    count: int = 0
    all_have_a_slope: bool = field(default=False, init=False)

    # -- settings -------------------------------------------------------------------------------------------

    @cached_property
    def own(self) -> EvaluationSetting:
        """The origin, directions and arithmetic of the landscape."""
        return EvaluationSetting(
            self.landscape.origin, self.landscape.directions, replace(self.landscape.plan, engine=Engine())
        )

    @cached_property
    def few(self) -> EvaluationSetting:
        """The setting `own` in float64, in batches of a few samples, of which only the first is used."""
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
        """The setting `own` with the other batch norm statistics: taken anew at each point, or those of training."""
        mode: BatchNorm = "recalibrate" if self.own.plan.batch_norm == "eval" else "eval"
        return replace(self.own, plan=replace(self.own.plan, batch_norm=mode))

    @cached_property
    def _axes(self) -> Shared[Sequence[State]]:
        drawn = [direction.tensors for direction in self.landscape.directions]
        return self.executor.share(self.stored or drawn)

    # -- values ---------------------------------------------------------------------------------------------

    def losses(self, setting: EvaluationSetting, points: Points) -> Floats:
        """The mean losses [points] at coordinates on the setting's axes."""
        return self.rises(setting, points)[0]

    def rises(self, setting: EvaluationSetting, points: Points, at_once: int = 1) -> tuple[Floats, Floats]:
        """The mean losses [points], and the standard errors [points] of their rise over the origin.

        Args:
            points: coordinates on the setting's axes.
            at_once: points per work item.
        """
        table = np.array(points, np.float64)
        items = [AtPoints(table[start : start + at_once]) for start in range(0, len(table), at_once)]
        passes = 2 if setting.plan.statistics.recalibrated else 1
        self.count += passes * (len(table) + 1)  # the rise needs the origin too
        answers = self.executor.ask(setting, items)
        errors = [
            np.full(len(answer.mean["loss"]), np.nan) if answer.rise_stderr is None else answer.rise_stderr
            for answer in answers
        ]
        return np.concatenate([answer.mean["loss"] for answer in answers]), np.concatenate(errors)

    def losses_by_statistics(self, points: Points) -> Pairs:
        """The mean losses at points with the landscape's batch norm statistics, and with the other ones."""
        settings = (self.own, self.other_statistics)
        self.count += sum(2 if setting.plan.statistics.recalibrated else 1 for setting in settings) * (len(points) + 1)
        return evaluated(self.executor, settings, np.array(points, np.float64), self.prepared.problem.observe)

    def own_loss(self) -> float:
        """The loss at the origin by the model's own forward pass in eval mode."""
        self.count += 1
        double = self.own.plan.precision == "float64"
        (answer,) = self.executor.ask(self.own, [PlainLoss((), self._axes, double, "eval")])
        return answer[0]

    def plain_losses(self, points: Points, double: int) -> tuple[Floats, str]:
        """The losses at points by plain evaluation along the stored axes, and the types of the arithmetic, in words.

        Args:
            double: how many points, from the first, are computed in float64.
        """
        plan = self.own.plan
        self.count += len(points) * (2 if plan.statistics.recalibrated else 1)
        items = [PlainLoss(tuple(point), self._axes, k < double, plan.batch_norm) for k, point in enumerate(points)]
        answers = self.executor.ask(self.own, items)
        types = {precision for _, precision in answers}
        return np.array([loss for loss, _ in answers]), " and ".join(sorted(types))

    def repeat(self, point: Sequence[float]) -> tuple[list[float], int]:
        """Evaluate one point several times, in two processes if there are two; its losses, and how many processes."""
        item = AtPoints(np.array([point], np.float64))
        apart = self.executor.ask_apart(self.own, item, 2)
        answers = [*apart, *self.executor.ask(self.own, [item])]
        self.count += 2 * len(answers)
        processes = 1 if isinstance(self.executor, LocalExecutor) else len(apart)
        return [float(answer.mean["loss"][0]) for answer in answers], processes

    # -- lines ----------------------------------------------------------------------------------------------

    def line_losses(self, spec: RandomDirection, seeds: Sequence[int], at: Sequence[float]) -> tuple[Floats, Floats]:
        """Losses and standard errors of their rise [lines, places] along random directions of other seeds."""
        infos = describe_parameters(self.prepared.problem.model)
        drawn = [spec.model_copy(update={"seed": seed}).draw(self.landscape.origin, infos) for seed in seeds]
        setting = replace(self.own, directions=tuple(map(DirectionTensors, hold_if_small(drawn))))
        lines = range(len(seeds))
        points = [[place if k == line else 0.0 for k in lines] for line in lines for place in at]
        losses, errors = self.rises(setting, points, at_once=len(at))
        return losses.reshape(len(seeds), -1), errors.reshape(len(seeds), -1)

    # -- derivatives ----------------------------------------------------------------------------------------

    def trainable_names(self) -> list[str]:
        """The names of the trainable parameters, to which all that the axes move belongs.

        Raises:
            JobError: an axis moves something without a derivative, so that derivatives say nothing of the grid.
        """
        names = [info.name for info in describe_parameters(self.prepared.problem.model) if info.trainable]
        if any(not set(direction.tensors) <= set(names) for direction in self.landscape.directions):
            raise JobError("an axis moves what has no derivative, such as a buffer")
        return names

    def losses_of_few(self, points: Points) -> list[float]:
        """The mean losses of the first few samples at points, in float64.

        Raises:
            JobError: the model does not compute in float64.
        """
        mode = self.few.plan.batch_norm
        shared = self.executor.share([direction.tensors for direction in self.landscape.directions])
        answers = self.executor.ask(self.few, [PlainLoss(tuple(point), shared, True, mode, 1) for point in points])
        if any(precision != "float64" for _, precision in answers):
            raise JobError("the model or observe does not compute in float64, or draws random numbers")
        return [loss for loss, _ in answers]

    @property
    def samples_of_few(self) -> tuple[int, int]:
        """How many samples the first few are, and how many the landscape has."""
        samples, plan = self.prepared.samples, self.few.plan
        start, stop = batching_of(samples.length, plan, plan.batch_size, samples.cuts).edges[0]
        return stop - start, samples.length

    @cached_property
    def samples_of_problem(self) -> int | None:
        """How many samples the problem has; None if only reading its data would tell."""
        return samples_in(self.prepared.problem.data)

    @property
    def share_of_few(self) -> float:
        """The first few samples as a share of all samples of the landscape."""
        few, all_of_them = self.samples_of_few
        return few / all_of_them

    def hessian_of_axes(self) -> Floats:
        """dᵢᵀHdⱼ of all pairs of axes over all samples [axes, axes].

        Raises:
            JobError: the model has no derivatives, or an axis moves what has none.
        """
        self.trainable_names()  # raises if an axis moves something without a derivative
        operator = self.hessian(self.own)
        vectors = np.stack([operator.layout.vector(direction.tensors) for direction in self.landscape.directions])
        self.count += 1 + PRODUCT * len(vectors)
        return np.asarray(np.einsum("kp,lp->kl", vectors, operator(vectors)), np.float64)

    def unused_parameters(self) -> set[str]:
        """The names of the trainable parameters on which the loss of no sample depends at the origin.

        Nothing is evaluated if each is already known to have a gradient.

        Raises:
            JobError: the model has no derivatives.
        """
        if self.all_have_a_slope:
            return set()
        samples, plan = self.prepared.samples, self.own.plan
        blocks = range(len(batching_of(samples.length, plan, plan.batch_size, samples.cuts).blocks))
        totals = self.executor.ask(self.own, [TotalsOfBlocks([0])])
        factors = loss_factors(totals[0], self.prepared.problem.observe)
        unused = self.executor.ask(self.own, [UnusedParameters(block, factors) for block in blocks])
        self.count += GRADIENT
        return set.intersection(*unused)

    def spectrum_ends(self) -> tuple[float, float, float, int]:
        """λmax and λmin of the Hessian at the origin, a lower bound of its eigenvalues, and the number of products.

        Raises:
            JobError: the model has no derivatives, or the basis does not fit in memory.
        """
        operator = self.hessian(self.own)
        needed = bytes_of_bases(operator.size, STEPS)
        if needed > host_limit():
            raise JobError(f"the basis of Lanczos would take {needed / 2**30:.1f} GiB, more than is free")
        krylov = lanczos(operator, operator.size, (1, -1), noise=lambda: operator.noise)
        self.count += 1 + PRODUCT * operator.products
        return krylov.pair(1).value, krylov.pair(-1).value, krylov.lower_bound(), operator.products

    def hessian(self, setting: EvaluationSetting) -> HessianOperator:
        """The Hessian of the setting's mean loss over the landscape's samples."""
        return HessianOperator(self.executor, setting, self.prepared.problem, self.prepared.samples)
