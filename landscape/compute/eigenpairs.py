"""Eigenpairs for the axes of a landscape: what they cost, and their steps, each kept until all are in the store."""

from __future__ import annotations

import errno
import logging
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from landscape.compute.executor import AtWeights, EvaluationSetting, Executor, Executors
from landscape.compute.hessian import HessianOperator, length
from landscape.compute.lanczos import Krylov, Product, Ritz, Step, lanczos, least_steps, sampled_curvature
from landscape.compute.landscape_context import SolveHere
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.devices import CURVATURE_BYTES, curvature_limit
from landscape.core.errors import Interrupted, JobError, LandscapeError, quoted
from landscape.core.files import Folder
from landscape.core.folders import open_folder
from landscape.core.grid import Floats, Grid
from landscape.core.lock import run_lock
from landscape.core.plan import Plan
from landscape.core.progress import stage
from landscape.core.text import digest
from landscape.core.validation import LEAST_STEPS
from landscape.evaluation.derivatives import RECALIBRATED
from landscape.evaluation.reduction import terms_of
from landscape.job.directions.base import DirectionTensors, Eigenpair, Spectrum
from landscape.job.directions.file import LEAST_RISE, PRODUCT_EVALUATIONS, STEPS, half_width
from landscape.model.parameters import State, describe_parameters, norm
from landscape.store.runs import write_error
from landscape.surface.record import Record

log = logging.getLogger("landscape")


FURTHER = 4  # times the steps are taken at most where the sign of the smallest eigenvalue stays open

BASES = "curvature"  # the folder of a run in which Lanczos steps are kept while eigenvectors are computed


# Computes eigenpairs of the Hessian, given a job with one landscape alone, whose axes are others than it will have, and
# the ranks, the steps and the seed, see `landscape.job.directions.base.Context`.
Solver: TypeAlias = Callable[[PreparedJob, tuple[int, ...], int, int], Spectrum]


def stand_in_spectrum(prepared: PreparedJob, ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
    """Stand-ins for eigenpairs, where a job is looked at and nothing is to be computed: random unit vectors."""
    (stand_in,) = prepared.landscapes[0].directions
    pairs = {}
    for rank in ranks:
        generator = torch.Generator().manual_seed(10 + rank)
        drawn = {
            name: torch.randn(tensor.shape, generator=generator) for name, tensor in sorted(stand_in.tensors.items())
        }
        length = norm(drawn)
        vector = {name: tensor / length for name, tensor in drawn.items()}
        pairs[rank] = Eigenpair(math.nan, math.nan, None, vector)
    return Spectrum(pairs, math.nan, 0, "autograd", foreseen=True)


def solving_for(
    solver: Solver, prepared: PreparedJob, name: str, origin: State, plan: Plan, identity: Mapping[str, Any]
) -> SolveHere:
    """`Context.spectrum` of a landscape: refuses what cannot be, then asks the solver.

    Args:
        prepared: the job, without its landscapes.
        identity: of the landscape.
    """

    def spectrum(ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
        if plan.statistics.recalibrated:
            raise JobError(RECALIBRATED)
        infos = [info for info in describe_parameters(prepared.problem.model) if info.trainable and info.name in origin]
        refuse_large_bases(sum(math.prod(info.shape) for info in infos), steps)
        # An axis that moves all that eigenvectors move, so that a point can be timed.
        axis = DirectionTensors({info.name: torch.ones(info.shape) for info in infos})
        line = Grid(("alpha",), (np.array([-1.0, 0.0, 1.0]),))
        landscape = PreparedLandscape(
            name, origin, (axis,), line, None, plan, identity, Record(), ("loss",), lambda number: origin
        )
        return solver(replace(prepared, landscapes=(landscape,)), ranks, steps, seed)

    return spectrum


def bytes_of_bases(size: int, steps: int = STEPS) -> int:
    """Bytes of the basis of so many steps over P numbers, in memory and on disk alike: 8·P·(m + 1)."""
    return 8 * size * (min(steps, size) + 1)


def most_steps(size: int, steps: int) -> int:
    """How many steps over P numbers are taken at most while the sign of the smallest eigenvalue is open."""
    return max(steps, min(FURTHER * steps, _within_limit(size)))


def _within_limit(size: int) -> int:
    return curvature_limit() // (8 * size) - 1


def refuse_large_bases(size: int, steps: int) -> None:
    """Refuse bases that take more than the limit.

    Raises:
        JobError: says how many steps would fit, and what to set.
    """
    needed, limit = bytes_of_bases(size, steps), curvature_limit()
    if needed <= limit:
        return
    fits = _within_limit(size)
    fewer = f"take steps: {fits}, or " if fits >= LEAST_STEPS else ""
    raise JobError(
        f"steps: the vectors of the Lanczos method must take at most {limit} bytes, not {needed} ({min(steps, size)} "
        f"steps of {size} parameters); {fewer}set {CURVATURE_BYTES}={needed}"
    )


def remove_bases(run: str, landscape: str) -> None:
    """Remove the Lanczos steps that were kept for a landscape; where another process adds to them, it removes them."""
    folder = open_folder(run)
    try:
        folder.delete_below(f"{BASES}/{landscape}")
        if not folder.folders(BASES):
            folder.delete_below(BASES)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


# ----------------------------------------------------------------------------------------------------
# Lanczos steps kept in the run's folder, so that a computation that was killed goes on with its last step.
#
# Those of the axes of a landscape, and of what is measured, lie apart.
#
# `<run>/curvature/<landscape>/<key>/step-00007` holds α, β and the next basis vector as float64, and their CRC32;
# `method` beside them how products are computed, where it is not by second derivatives; `loss` the loss at the origin,
# by which a problem that was changed meanwhile is known.

SAME_LOSS = 1e-4  # what machines may differ by in float32, and no change of a problem that matters


@dataclass(frozen=True)
class KeptSteps:
    """The steps of one computation.

    Args:
        run: where the run lies.
        landscape: for whose axes; all that is kept for it goes once these are in the store.
        key: a digest of all that decides the bits of the steps.
        size: P.
    """

    run: str
    landscape: str
    key: str
    size: int

    def known(self) -> list[Step]:
        """The steps from the first to the last that is whole."""
        folder, steps = self._folder(), list[Step]()
        while (step := self._read(folder, len(steps))) is not None:
            steps.append(step)
        return steps

    @property
    def is_begun(self) -> bool:
        """Whether a step is kept."""
        return self._read(self._folder(), 0) is not None

    def keep(self, number: int, step: Step) -> None:
        """Keep one step; it is whole on disk when this returns.

        Raises:
            LandscapeError: the disk takes nothing.
        """
        data = np.concatenate([[step.alpha, step.beta], step.following]).astype("<f8").tobytes()
        self._write(f"step-{number:05d}", data + zlib.crc32(data).to_bytes(4, "little"))

    def keep_refusal(self, refusal: str) -> None:
        """Keep why the model has no second derivative, from which on differences of gradients are taken."""
        self._write("method", refusal.encode())

    def refusal(self) -> str:
        """Why differences are taken; empty where they are not."""
        return (self._folder().read(self._path("method")) or b"").decode()

    def keep_loss(self, loss: float) -> None:
        """Keep the loss at the origin."""
        self._write("loss", np.float64(loss).tobytes())

    def forget_of_another_loss(self, loss: float) -> None:
        """Forget these steps where the loss at the origin is another one now: so is the problem."""
        data = self._folder().read(self._path("loss"))
        if data is None or len(data) != 8:
            return
        kept = float(np.frombuffer(data, np.float64)[0])
        if not math.isclose(kept, loss, rel_tol=SAME_LOSS, abs_tol=SAME_LOSS):
            log.warning(
                "the loss at the origin is %.6g, and was %.6g when steps towards eigenvectors were kept: they begin "
                "anew", loss, kept,
            )  # fmt: skip
            self._folder().delete_below(self._path("").rstrip("/"))

    @property
    def place(self) -> str:
        """The folder of all that is kept for the landscape."""
        return f"{self.run}/{BASES}/{self.landscape}"

    def remove(self) -> None:
        """Forget all that is kept for the landscape."""
        remove_bases(self.run, self.landscape)

    def _read(self, folder: Folder, number: int) -> Step | None:
        data = folder.read(self._path(f"step-{number:05d}"))
        if data is None or len(data) != 8 * (self.size + 2) + 4:
            return None
        if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return None
        numbers: Floats = np.frombuffer(data[:-4], "<f8").astype(np.float64)
        return Step(float(numbers[0]), float(numbers[1]), numbers[2:])

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._folder().write(self._path(name), data)
        except OSError as error:  # such as of a disk that is full
            raise write_error(self.run, error) from error

    def _folder(self) -> Folder:
        return open_folder(self.run)

    def _path(self, name: str) -> str:
        return f"{BASES}/{self.landscape}/{self.key[:16]}/{name}"


def kept_lanczos(
    operator: HessianOperator,
    kept: KeptSteps,
    ranks: Sequence[int],
    loss: float,
    *,
    seed: int = 0,
    steps: int = STEPS,
    product: Product | None = None,
    on_step: Callable[[int], None] = lambda done: None,
    is_open: Callable[[Krylov], bool] = lambda krylov: False,
    most: int = 0,
) -> Krylov:
    """The Krylov space of an operator, gone on with from the steps that an earlier call has kept, to the same bits.

    Args:
        loss: at the origin, by which a problem is known again: the steps of another one are not gone on from.
        product: H·v; default: the operator itself.
        on_step: is told how many steps are done after each new one.
        is_open, most: as for `lanczos`.
    """
    kept.forget_of_another_loss(loss)
    if refusal := kept.refusal():
        operator.method, operator.refusal = "differences", refusal

    def keep(number: int, step: Step) -> None:
        if number == 0:
            kept.keep_loss(loss)
        if operator.refusal and not kept.refusal():
            kept.keep_refusal(operator.refusal)
        kept.keep(number, step)
        on_step(number + 1)

    return lanczos(
        product or operator, operator.size, ranks, seed=seed, steps=steps, noise=lambda: operator.noise,
        known=kept.known(), keep=keep, is_open=is_open, most=most,
    )  # fmt: skip


STEPS_A_LINE = 10  # between two messages on how far it is


# A parabola that needs so many lengths of the weights to rise visibly is rounding, or a direction that does nothing.
FLAT = 100.0

NOT_FINITE = (
    "directions: {} at the origin must be finite for eigenvectors, and holds NaN or infinity; take another origin"
)


def solver_of(executors: Executors) -> Solver:
    """The solver that asks an executor.

    Args:
        executors: gives one for a job, its landscape, and about so many evaluations of all samples.
    """

    def solve(prepared: PreparedJob, ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
        stage("computing eigenvectors of the Hessian")
        try:
            with executors(prepared, prepared.landscapes[0], steps * PRODUCT_EVALUATIONS) as executor:
                return spectrum_of(executor, prepared, ranks, steps, seed)
        except LandscapeError:
            raise
        except OSError as error:  # such as of a disk that is full
            raise write_error(prepared.run, error) from error

    return solve


def spectrum_of(executor: Executor, prepared: PreparedJob, ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
    """Eigenpairs at the origin of the job's one landscape; goes on from the steps that an earlier call has kept.

    Raises:
        JobError: the loss is flat, or not finite, at the origin.
        LandscapeError: another process computes them.
    """
    (landscape,) = prepared.landscapes
    setting = EvaluationSetting(landscape.origin, (), landscape.plan)
    operator = HessianOperator(executor, setting, prepared.problem, prepared.samples)
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
        loss = _loss_at(executor, setting)
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
            f"run {quoted(prepared.run)} is interrupted; each step towards its eigenvectors is kept: the same command "
            "goes on"
        ) from None
    return Spectrum(pairs, loss, krylov.steps, operator.method)


class _NotFiniteHessian(JobError):
    """Nothing of its eigenvectors is to be kept."""


def _described(operator: HessianOperator, pair: Ritz, loss: float) -> Eigenpair:
    vector, terms = operator.layout.tensors(pair.vector), terms_of(operator.problem.observe)
    sampled = sampled_curvature(operator.executor, operator.setting, vector, pair.value, loss, terms)
    stderr = None if sampled is None or not math.isfinite(sampled.stderr) else sampled.stderr
    return Eigenpair(pair.value, pair.residual, stderr, vector)


def _loss_at(executor: Executor, setting: EvaluationSetting) -> float:
    """L(θ₀).

    Raises:
        JobError: it is not finite.
    """
    (values,) = executor.ask(setting, [AtWeights(executor.share(setting.origin))])
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
