"""What is computed at every point beside the observables: the Hessian's eigenvalues, and which layer breaks first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from landscape.compute.eigenpairs import bytes_of_bases, most_steps, refuse_large_bases
from landscape.compute.executor import EvaluationContext, WorkItem
from landscape.compute.hessian import dot
from landscape.compute.lanczos import RESOLVED, Krylov, lanczos
from landscape.compute.prepared import WATCHED_EVALUATIONS, PreparedJob, PreparedLandscape
from landscape.core.devices import device_here, is_out_of_memory
from landscape.core.errors import JobError, LandscapeError, message_of, quoted
from landscape.core.grid import Floats
from landscape.core.plan import Plan, Precision, default_plan
from landscape.evaluation.derivatives import RECALIBRATED, Differentiation, Products
from landscape.evaluation.dry_run import SAMPLES
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.layers import LayersSeen, layers_at, loss_factors
from landscape.evaluation.reduction import Values
from landscape.evaluation.twice_differentiable import NoSecondDerivative
from landscape.job.directions.file import PRODUCT_EVALUATIONS
from landscape.job.landscape_options import Convexity, Layers
from landscape.model.layer_statistics import ValueStatistics
from landscape.model.parameters import State, trainable_matrices
from landscape.problem.terms import Problem
from landscape.problem.user_code import in_folder, in_words
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_entries import (
    BREAKING,
    EIGENVALUES,
    RATIO,
    UNDECIDED,
    YES,
    ZERO,
    ZERO_IN_FLOAT32,
    ConvexityRecord,
    LayersRecord,
    products_in_float32,
)

# ----------------------------------------------------------------------------------------------------
# A convexity map: both ends of the Hessian's spectrum at the points of a landscape, as observables of its tiles.
#
# Li et al. 2018, "Visualizing the loss landscape of neural nets", section 6: where abs(λmin/λmax) is small the loss is
# nearly convex there. The Hessian is that of the mean loss over the parameters of two dimensions or more, in eval mode.


def convexity_of(
    prepared: PreparedJob, asked: Convexity | None, origin: State, plan: Plan, observables: tuple[str, ...],
    stored: LandscapeStore | None,
) -> ConvexityRecord | None:  # fmt: skip
    """How the eigenvalues of a convexity map are computed; None if the job asks for no map.

    Args:
        prepared: the job, without its landscapes.
        observables: the names that `observe` returns.
        stored: the landscape on disk, which knows how it was begun.

    Raises:
        JobError: the eigenvalues cannot be computed.
    """
    if asked is None:
        return None
    if plan.statistics.recalibrated:
        raise JobError(RECALIBRATED)
    taken = {*observables, *prepared.problem.derived} & {*EIGENVALUES, *RATIO}
    if taken:
        raise JobError(f"convexity: {quoted(min(taken))} is what observe returns already; give that another name")
    infos = [info for info in trainable_matrices(prepared.problem.model) if info.name in origin]
    size = sum(math.prod(info.shape) for info in infos)
    if not size:
        raise JobError(
            "convexity: the model must have a trainable parameter of two dimensions or more, as biases and norms are "
            "left out; it has none"
        )
    refuse_large_bases(size, asked.steps)
    if stored is not None and stored.record.convexity is not None:
        return replace(stored.record.convexity, steps=asked.steps, parameters=size)
    how = _second_derivatives(prepared, origin, plan) if prepared.looked else "autograd"
    most = most_steps(size, asked.steps)
    return ConvexityRecord(steps=asked.steps, parameters=size, second_derivatives=how, most=most)


def eigenvalues_of(asked: Convexity | None, stored: LandscapeStore | None) -> tuple[str, ...]:
    """The observables of a convexity map; of a stored one, those that it was begun with."""
    if asked is None:
        return ()
    begun = None if stored is None else stored.record.convexity
    return EIGENVALUES if begun is None else begun.observables


def _second_derivatives(prepared: PreparedJob, origin: State, plan: Plan) -> str:
    """How products with the Hessian can be computed here, tried on a few samples.

    Raises:
        JobError: they cannot be computed.
    """
    few, problem = prepared.samples.few(SAMPLES), prepared.problem
    here = torch.device("cpu") if prepared.job.device == "cpu" else device_here()
    with in_folder(prepared.folder):
        try:
            plan = replace(plan, batch_size=SAMPLES)
            names = [info.name for info in trainable_matrices(problem.model)]
            try:
                _try_product(Differentiation(problem.model, few, problem.observe, plan, here, origin, names), problem)
            except NoSecondDerivative:
                plan = replace(plan, precision="float64")
                found = Differentiation(problem.model, few, problem.observe, plan, here, origin, names)
                _try_product(found, problem, "differences")
                return "differences"
        except JobError:
            raise
        except Exception as error:
            raise JobError(
                f"convexity: the loss must have derivatives, and taking them {in_words(error)}; leave convexity out, "
                "or mend it"
            ) from error
    return "autograd"


def _try_product(derivatives: Differentiation, problem: Problem, how: Products = "autograd") -> None:
    factors = loss_factors([derivatives.totals(block) for block in range(derivatives.blocks)], problem.observe)
    derivatives.products(0, factors, [torch.ones(derivatives.size, dtype=torch.float64)], how)


def convexity_cost(landscape: PreparedLandscape, missing: int) -> dict[str, Any] | None:
    """The largest cost of a convexity map's eigenvalues, for `landscape plan`; None for other landscapes.

    Args:
        missing: the number of points that are left to compute.
    """
    record = landscape.record.convexity
    if record is None:
        return None
    differs = record.second_derivatives == "differences"
    return {
        "parameters": record.parameters,
        "second_derivatives": record.second_derivatives,
        "precision": "float64" if landscape.plan.precision == "float64" or differs else "float32",
        "products": record.products,
        "most_products": record.most_products,
        "evaluations": record.products * PRODUCT_EVALUATIONS,
        "all_products": missing * record.products,
        "all_evaluations": missing * record.products * PRODUCT_EVALUATIONS,
        "all_most_evaluations": missing * record.most_products * PRODUCT_EVALUATIONS,
        "bytes": bytes_of_bases(record.parameters, record.most_products),
    }


def convexity_text(cost: Mapping[str, Any]) -> list[str]:
    """That cost in words, a line each."""
    how = "double backward" if cost["second_derivatives"] == "autograd" else "differences of gradients"
    further = (
        [f"up to {cost['most_products']} at a point where the sign of the smallest eigenvalue is open after these"]
        if cost["most_products"] > cost["products"]
        else []
    )
    return [
        f"eigenvalues of the Hessian over {cost['parameters']} weights: at each point at most {cost['products']} "
        f"products, about {cost['evaluations']} forward passes' time beside the one of the loss",
        *further,
        f"{cost['all_products']} products in all, about {cost['all_evaluations']} forward passes' time; by {how} in "
        f"{cost['precision']}, whatever the engine; {cost['bytes'] / 1e6:.3g} MB of memory a worker",
    ]


# Residuals below a thousandth of the larger end are accepted (Lanczos treats ten times this number as rounding): in a
# bulk of eigenvalues near zero no number of steps resolves λmin relative to itself. Its sign is decided separately.
FLOOR = 1e-4


class _NotFiniteError(Exception):
    """A product with the Hessian holds NaN or infinity."""


def with_eigenvalues(evaluator: Evaluator, points: Floats, values: Values, convexity: ConvexityRecord) -> Values:
    """The values of points with the observables λmax, λmin, their residuals ‖Hv − λv‖, and whether λmin is negative.

    They are NaN if the loss or a product is not finite. Their standard errors are not computed: NaN.

    Args:
        points: coordinates [points, axes].
        values: the observables there.
    """
    start, nothing, names = time.perf_counter(), np.full(len(points), np.nan), convexity.observables
    table = np.full((len(points), len(names)), np.nan)
    for row, point, loss in zip(table, points.tolist(), values.mean["loss"], strict=True):
        if np.isfinite(loss):
            row[:] = _ends_at(evaluator, point, convexity)[: len(names)]
    arrays = {name: np.ascontiguousarray(table[:, column]) for column, name in enumerate(names)}
    seconds = values.seconds + time.perf_counter() - start
    errors = {name: nothing.copy() for name in names}
    return replace(values, mean={**values.mean, **arrays}, stderr={**values.stderr, **errors}, seconds=seconds)


def _ends_at(evaluator: Evaluator, point: Sequence[float], convexity: ConvexityRecord) -> tuple[float, ...]:
    """λmax, its residual, λmin, its residual, a lower bound of all eigenvalues, and whether there is a negative one."""
    names = [info.name for info in trainable_matrices(evaluator.model)]
    with torch.no_grad():
        weights = evaluator.weights.state_at(point)
    how: Products = "autograd" if convexity.second_derivatives == "autograd" else "differences"
    product = _Product(partial(Differentiation.beside, evaluator, weights, among=names), evaluator, how)
    try:
        krylov = lanczos(
            product, convexity.parameters, (1, -1), steps=convexity.steps, noise=lambda: FLOOR,
            is_open=lambda krylov: _is_open(krylov, convexity, product.in_float32), most=convexity.most or 0,
        )  # fmt: skip
    except _NotFiniteError:
        return (np.nan,) * len(EIGENVALUES)
    values, residuals, _ = krylov.ritz_values()
    ends = float(values[-1]), float(residuals[-1]), float(values[0]), float(residuals[0])
    return (*ends, krylov.lower_bound(), float(_sign(krylov, product)))


def _sign(krylov: Krylov, product: _Product) -> int:
    """Whether there is a negative eigenvalue; a float32 answer is checked against xᵀHx in float64.

    A part of a product's rounding does not shrink with the eigenvalues: if the loss is nearly zero, its derivatives are
    differences of larger numbers. So no share of λmax bounds the rounding, and it is measured at x, the Ritz vector of
    θmin, at each point. "Yes" holds if xᵀHx ≥ λmin is itself negative; "no" if rounding moved xᵀHx by no more than
    counts as zero in float32.
    """
    answer = krylov.negative(product.in_float32)
    if answer == UNDECIDED or not product.in_float32:
        return answer
    values, _, _ = krylov.ritz_values()
    scale, exact = np.abs(values).max(), product.curvature_in_float64(krylov.pair(-1).vector)
    agrees = exact < -ZERO * scale if answer == YES else abs(exact - values[0]) <= ZERO_IN_FLOAT32 * scale
    return answer if agrees else UNDECIDED


def _is_open(krylov: Krylov, convexity: ConvexityRecord, in_float32: bool) -> bool:
    """Whether more steps are needed: for the sign of λmin, or for its size if it is negative."""
    values, residuals, _ = krylov.ritz_values()
    unresolved = krylov.negative(in_float32) == YES and residuals[0] > RESOLVED * abs(values[0])
    return krylov.has_open_sign(in_float32) or (unresolved and krylov.steps < convexity.steps)


class _Product:
    """H·v at one point, block by block of the samples; by differences of gradients once autograd fails."""

    def __init__(
        self, make: Callable[..., Differentiation], evaluator: Evaluator, how: Products,
        precision: Precision | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            make: makes the derivatives at the point in a precision.
            precision: default: that of the evaluator's plan.
        """
        self._make, self._evaluator = make, evaluator
        self._precision = precision or evaluator.plan.precision
        self._use(how)

    def _use(self, how: Products) -> None:
        self._how = how
        self._derivatives = self._make(precision="float64" if how == "differences" else self._precision)
        totals = [self._derivatives.totals(block) for block in range(self._derivatives.blocks)]
        self._factors: Mapping[str, float] = loss_factors(totals, self._evaluator.observe)

    @property
    def in_float32(self) -> bool:
        """Whether products are computed in float32."""
        return products_in_float32(self._how, self._precision)

    def curvature_in_float64(self, vector: Floats) -> float:
        """xᵀHx with a product in float64; NaN if the model or the device does not support float64."""
        self._derivatives.forget_graphs()  # the new derivatives need the memory
        try:
            return dot(vector, _Product(self._make, self._evaluator, self._how, "float64")(vector))
        except _NotFiniteError:
            return math.nan
        except (RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            return math.nan

    def __call__(self, vector: Floats) -> Floats:
        self._evaluator.on_point()
        try:
            total = self._sum(vector)
        except NoSecondDerivative:
            if self._how == "differences":
                raise
            # Decided anew at each point: its values must not depend on earlier points.
            self._use("differences")
            total = self._sum(vector)
        if not np.isfinite(total).all():
            raise _NotFiniteError
        return total

    def _sum(self, vector: Floats) -> Floats:
        total, sent = np.zeros(len(vector)), torch.from_numpy(np.array(vector))
        for block in range(self._derivatives.blocks):
            (part,) = self._derivatives.products(block, self._factors, [sent], self._how)
            total += part.numpy()
        return total


# ----------------------------------------------------------------------------------------------------
# A map of broken layers: which layer breaks first at the points of a landscape, as observables of its tiles.


def layers_of(
    prepared: PreparedJob, asked: Layers | None, origin: State, observables: tuple[str, ...],
    stored: LandscapeStore | None,
) -> LayersRecord | None:  # fmt: skip
    """The layers that are watched at every point, as found at the origin; None if the job does not ask for them.

    Args:
        prepared: the job, without its landscapes.
        observables: the names that `observe` returns.
        stored: the landscape on disk, which knows its layers.

    Raises:
        JobError: the layers cannot be watched.
    """
    if asked is None:
        return None
    taken = {*observables, *prepared.problem.derived} & set(BREAKING)
    if taken:
        raise JobError(f"layers: {quoted(min(taken))} is what observe returns already; give that another name")
    if stored is not None and stored.record.layers is not None:
        return stored.record.layers
    if prepared.ranks > 1:
        raise JobError("layers: are watched in models that one process holds; leave layers out")
    if not prepared.looked:
        raise JobError(
            "layers: the network must be run where the job is prepared, to see which layers it has, and this machine "
            "has not the device for it; begin the landscape on one that has"
        )
    here = torch.device("cpu") if prepared.job.device == "cpu" else device_here()
    job, problem, few = prepared.job, prepared.problem, prepared.samples.few(SAMPLES)
    plan = default_plan(SAMPLES, here.type, job.precision, job.batch_norm, job.seed, None, None)
    try:
        with in_folder(prepared.folder):
            seen = layers_at(Evaluator(problem.model, few, problem.observe, plan, here, origin, ()), ())
    except LandscapeError as error:
        raise JobError(f"layers: {message_of(error)}; leave layers out, or mend it") from error
    names = [layer.name for layer in seen.layers]
    return LayersRecord(
        layers=tuple(names),
        weights=tuple(tensors.layer for tensors in seen.weights),
        rules=asked.rules,
        statistics=asked.statistics,
    )


def layers_text(landscape: PreparedLandscape) -> list[str]:
    """The cost of watching layers, in words for `landscape plan`; empty if none are watched."""
    record = landscape.record.layers
    if record is None:
        return []
    more = f", {len(record.statistics)} statistics of each stored" if record.statistics else ""
    return [
        f"{len(record.layers)} layers and operations watched at each point, about {WATCHED_EVALUATIONS} forward "
        f"passes' time beside the one of the loss{more}"
    ]


def layers_cost(landscape: PreparedLandscape, missing: int) -> dict[str, Any] | None:
    """The same as plain values; None if none are watched.

    Args:
        missing: the number of points that are left to compute.
    """
    record = landscape.record.layers
    if record is None:
        return None
    return {
        "layers": len(record.layers),
        "observables": len(record.observables),
        "evaluations": WATCHED_EVALUATIONS,
        "all_evaluations": missing * WATCHED_EVALUATIONS,
        "text": layers_text(landscape),
    }


def with_layers(evaluator: Evaluator, points: Floats, values: Values, record: LayersRecord) -> Values:
    """The values of points with the first layer that breaks, its rule, and statistics of layers as observables.

    `first_layer` and `first_rule` are places in the record's lists, counted from 1; 0 if nothing breaks. Their standard
    errors are NaN.

    Args:
        points: coordinates [points, axes].
        values: the observables there.
    """
    start, names = time.perf_counter(), record.observables
    table = np.array([_row(layers_at(evaluator, point), record) for point in points.tolist()], np.float64)
    table = table.reshape(len(points), len(names))
    arrays = {name: np.ascontiguousarray(table[:, column]) for column, name in enumerate(names)}
    errors = {name: np.full(len(points), np.nan) for name in names}
    seconds = values.seconds + time.perf_counter() - start
    return replace(values, mean={**values.mean, **arrays}, stderr={**values.stderr, **errors}, seconds=seconds)


def _row(seen: LayersSeen, record: LayersRecord) -> Sequence[float]:
    known = {layer.name: layer.statistics for layer in seen.layers}
    nothing = ValueStatistics()
    of_layers = [known.get(name, nothing) for name in record.layers]
    numbers = [_number(layer, statistic) for layer in of_layers for statistic in record.statistics]
    findings = seen.findings(record.rules)
    if not findings:
        return [0.0, 0.0, *numbers]
    first, names, rules = findings[0], record.names, list(record.rules)
    place = names.index(first.layer) if first.layer in names else len(names)
    return [place + 1.0, rules.index(first.rule) + 1.0, *numbers]


def _number(known: ValueStatistics, statistic: str) -> float:
    """A statistic by its name; non-finite values and zeros as shares."""
    shares = {"zeros": known.zeros, "not_finite": known.not_finite}
    if statistic in shares:
        return known.share(shares[statistic])
    values = {"min": known.low, "max": known.high, "mean": known.mean, "spread": known.spread}
    return values.get(statistic, known.magnitude)


@dataclass(frozen=True, eq=False)
class LayersAt(WorkItem[LayersSeen]):
    """Statistics of every layer's output at a point, of its weights, and of its gradients if asked for.

    Attributes:
        point: coordinates on the setting's axes.
    """

    point: tuple[float, ...]
    gradients: bool = False

    @property
    def label(self) -> str:
        """The name of the work item in messages."""
        return f"point {', '.join(f'{coordinate:.6g}' for coordinate in self.point)}"

    def answer(self, context: EvaluationContext) -> LayersSeen:
        """Watch the layers at the point."""
        return layers_at(context.evaluator, self.point, gradients=self.gradients)
