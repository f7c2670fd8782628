"""Both ends of the Hessian's spectrum at the points of a landscape, as observables of its tiles: a convexity map.

Li et al. 2018, "Visualizing the loss landscape of neural nets", section 6: where abs(λmin/λmax) is small the loss is
nearly convex there. The Hessian is that of the mean loss over the parameters of two dimensions or more, in eval mode.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from landscape.compute.algebra import Floats, dot
from landscape.compute.lanczos import RESOLVED, Krylov, lanczos
from landscape.core.devices import is_out_of_memory
from landscape.core.plan import Precision
from landscape.evaluation.derivatives import Differentiation, NoSecondDerivative, Products
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.layers import loss_factors
from landscape.evaluation.values import Values
from landscape.model.parameters import trainable_matrices
from landscape.surface.record_entries import (
    EIGENVALUES,
    UNDECIDED,
    YES,
    ZERO,
    ZERO_IN_FLOAT32,
    ConvexityRecord,
    products_in_float32,
)

# Residuals below a thousandth of the larger end are let be, as Lanczos takes ten times this for rounding: in a bulk of
# eigenvalues next to zero no number of steps resolves λmin to a share of itself. Its sign is asked for beside that.
FLOOR = 1e-4


class _NotFiniteError(Exception):
    """A product with the Hessian holds NaN or infinity."""


def with_eigenvalues(evaluator: Evaluator, points: Floats, values: Values, convexity: ConvexityRecord) -> Values:
    """The values of points, and with them λmax, λmin, their residuals ‖Hv − λv‖, and whether λmin is negative at each.

    They are NaN where the loss or a product is not finite. Standard errors over the samples are not computed: NaN.

    Args:
        points: coordinates [points, axes].
        values: the observables there.
    """
    start, nothing, names = time.perf_counter(), np.full(len(points), np.nan), convexity.observables
    table = np.full((len(points), len(names)), np.nan)
    for row, point, loss in zip(table, points.tolist(), values.mean["loss"], strict=True):
        if np.isfinite(loss):
            row[:] = _ends_at(evaluator, point, convexity)[: len(names)]
    found = {name: np.ascontiguousarray(table[:, column]) for column, name in enumerate(names)}
    seconds = values.seconds + time.perf_counter() - start
    errors = {name: nothing.copy() for name in names}
    return replace(values, mean={**values.mean, **found}, stderr={**values.stderr, **errors}, seconds=seconds)


def _ends_at(evaluator: Evaluator, point: Sequence[float], convexity: ConvexityRecord) -> tuple[float, ...]:
    """λmax, its residual, λmin, its residual, what no eigenvalue is below, and whether there is a negative one."""
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
    """Whether there is a negative eigenvalue, an answer in float32 only where xᵀHx in float64 agrees with it.

    The rounding of a product has a part that does not shrink with the eigenvalues: where the loss is nearly zero, its
    derivatives are differences of numbers that are not. So no share of λmax bounds it, and it is measured at x, the
    Ritz vector of θmin, at each point. "Yes" holds where xᵀHx, which no λmin is above, is itself below zero; "no" where
    the rounding has not moved it by more than what counts as zero in float32.
    """
    answer = krylov.negative(product.in_float32)
    if answer == UNDECIDED or not product.in_float32:
        return answer
    values, _, _ = krylov.ritz_values()
    scale, exact = np.abs(values).max(), product.curvature_in_float64(krylov.pair(-1).vector)
    agrees = exact < -ZERO * scale if answer == YES else abs(exact - values[0]) <= ZERO_IN_FLOAT32 * scale
    return answer if agrees else UNDECIDED


def _is_open(krylov: Krylov, convexity: ConvexityRecord, in_float32: bool) -> bool:
    """Whether more steps are worth it: for the sign of λmin, and for its size where it is negative."""
    if convexity.most is None:
        return False
    values, residuals, _ = krylov.ritz_values()
    unresolved = krylov.negative(in_float32) == YES and residuals[0] > RESOLVED * abs(values[0])
    return krylov.has_open_sign(in_float32) or (unresolved and krylov.steps < convexity.steps)


class _Product:
    """H·v at one point, block by block of the samples; by differences of gradients once autograd has refused."""

    def __init__(
        self, make: Callable[..., Differentiation], evaluator: Evaluator, how: Products,
        precision: Precision | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            make: the derivatives at the point, in the precision that it is given.
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
        """xᵀHx with a product in float64; NaN where the model or the device does not compute in it."""
        self._derivatives.forget_graphs()  # what is made here needs the room
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
            # Decided at each point anew: what is computed there must not depend on which points came before.
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
