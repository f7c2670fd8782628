"""Eigenpairs for the axes of a landscape, step by step kept until they are in the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from landscape.compute.algebra import Floats, length
from landscape.compute.curvature_kept import KeptSteps, kept_lanczos
from landscape.compute.eigen_stores import Solver
from landscape.compute.errors import sampled_curvature
from landscape.compute.executor import Calculator, Calculators, Setting, here
from landscape.compute.hessian import HessianOperator
from landscape.compute.lanczos import Ritz, least_steps
from landscape.compute.points import AtWeights
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.digests import digest
from landscape.core.errors import Interrupted, JobError, LandscapeError, shown, stage
from landscape.core.lock import run_lock
from landscape.evaluation.reduction import terms_of
from landscape.job.directions.base import Eigenpair, Spectrum
from landscape.job.directions.file import LEAST_RISE, PRODUCT_EVALUATIONS, half_width
from landscape.store.runs import write_error

STEPS_A_LINE = 10  # between two messages on how far it is
# A parabola that needs so many lengths of the weights to rise visibly is rounding, or a direction that does nothing.
FLAT = 100.0
NOT_FINITE = (
    "directions: {} at the origin must be finite for eigenvectors, and holds NaN or infinity; take another origin"
)


def solver_of(calculators: Calculators) -> Solver:
    """The solver that asks a calculator.

    Args:
        calculators: gives one for a job, its landscape, and about so many evaluations of all samples.
    """

    def solve(
        prepared: PreparedJob, landscape: PreparedLandscape, ranks: tuple[int, ...], steps: int, seed: int, /
    ) -> Spectrum:
        stage("computing eigenvectors of the Hessian")
        try:
            with calculators(prepared, landscape, steps * PRODUCT_EVALUATIONS) as calculator:
                return spectrum_of(calculator, prepared, landscape, ranks, steps, seed)
        except LandscapeError:
            raise
        except OSError as error:  # such as of a disk that is full
            raise write_error(prepared.run, error) from error

    return solve


def serial_solver(stop: Callable[[], bool] = lambda: False) -> Solver:
    """The solver that computes in this process: the reference."""
    return solver_of(here(stop))


def spectrum_of(
    calculator: Calculator,
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    ranks: tuple[int, ...],
    steps: int,
    seed: int,
) -> Spectrum:
    """Eigenpairs at the landscape's origin; what an earlier call has kept is gone on from, to the same bits.

    Raises:
        JobError: the loss is flat, or not finite, at the origin.
        LandscapeError: another process computes them.
    """
    setting = Setting(landscape.origin, (), landscape.plan)
    operator = HessianOperator(calculator, setting, prepared.problem, prepared.samples)
    if operator.size < least_steps(ranks):
        raise JobError(f"rank: the model has {operator.size} trainable parameters, and no more eigenvectors")
    kept = KeptSteps(prepared.run, landscape.name, _key(landscape, seed), operator.size)

    def product(vector: Floats) -> Floats:
        image = operator(vector)
        if not np.isfinite(image).all():
            raise _NotFiniteHessian(NOT_FINITE.format("the Hessian"))
        return image

    def tell(done: int) -> None:
        if done % STEPS_A_LINE == 0:
            stage(f"computing eigenvectors of the Hessian: {done} of at most {steps} steps")

    try:
        loss = _loss_at(calculator, setting)
        with run_lock(kept.place):  # another process that is given the same job would compute the same steps
            krylov = kept_lanczos(operator, kept, ranks, loss, seed=seed, steps=steps, product=product, on_step=tell)
        found = {rank: krylov.pair(rank) for rank in ranks}
        if flat := _flat(operator, found, loss):
            kept.remove()
            raise JobError(flat)
        pairs = {rank: _described(operator, pair, loss) for rank, pair in found.items()}
    except JobError as error:
        if isinstance(error, _NotFiniteHessian) or not kept.is_begun:
            kept.remove()  # else the lock of what was refused at its first product stays behind
        raise
    except Interrupted:
        raise Interrupted(
            f"run {shown(prepared.run)} is interrupted; each step towards its eigenvectors is kept: the same command "
            "goes on"
        ) from None
    return Spectrum(pairs, loss, krylov.steps, operator.method)


class _NotFiniteHessian(JobError):
    """Nothing of its eigenvectors is to be kept."""


def _described(operator: HessianOperator, pair: Ritz, loss: float) -> Eigenpair:
    vector, terms = operator.layout.tensors(pair.vector), terms_of(operator.problem.observe)
    sampled = sampled_curvature(operator.calculator, operator.setting, vector, pair.value, loss, terms)
    stderr = None if sampled is None or not math.isfinite(sampled.stderr) else sampled.stderr
    return Eigenpair(pair.value, pair.residual, stderr, vector)


def _loss_at(calculator: Calculator, setting: Setting) -> float:
    """L(θ₀).

    Raises:
        JobError: it is not finite.
    """
    (values,) = calculator.ask(setting, [AtWeights(calculator.share(setting.origin))])
    loss = float(values.mean["loss"][0])
    if not math.isfinite(loss):
        raise JobError(NOT_FINITE.format("the loss"))
    return loss


def _flat(operator: HessianOperator, found: Mapping[int, Ritz], loss: float) -> str:
    """Why an axis would show nothing, as the loss is flat along it; empty where none would."""
    # Of the parameters alone: among the buffers may be masks of -inf, and counts beyond all weights.
    weights = max(1.0, length(operator.layout.vector(operator.setting.origin)))
    for rank, pair in found.items():
        if (width := half_width(pair.value, loss)) > FLAT * weights:
            lengths = width / weights
            far = f"only {lengths:.2g} times the length of the weights away" if math.isfinite(lengths) else "nowhere"
            return (
                f"directions: eigenvalue {rank} of the Hessian at the origin is {pair.value:.2g}: along its vector the "
                f"loss is flat, and rises by {max(loss, LEAST_RISE):.2g} {far}; take another rank, origin or kind of "
                "direction"
            )
    return ""


def _key(landscape: PreparedLandscape, seed: int) -> str:
    """The digest of what decides the bits of the steps; how many steps, and to which ends, does not."""
    identity = {name: landscape.identity[name] for name in ("origin", "samples", "seed", "precision", "batch_norm")}
    return digest({"identity": identity, "plan": landscape.plan.record(), "start": seed})
