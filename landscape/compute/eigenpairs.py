"""Eigenpairs for the axes of a landscape: their cost, and the Lanczos steps, kept until the axes are in the store."""

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
from landscape.evaluation.derivatives import RECALIBRATED, refuse_without_products
from landscape.evaluation.reduction import terms_of
from landscape.job.directions.base import DirectionTensors, Eigenpair, Spectrum
from landscape.job.directions.file import PRODUCT_EVALUATIONS, STEPS, half_width
from landscape.model.parameters import State, describe_parameters, norm
from landscape.store.runs import write_error
from landscape.surface.record import Record

log = logging.getLogger("landscape")


FURTHER = 4  # times the steps are taken at most while the sign of the smallest eigenvalue is open

BASES = "curvature"  # the folder of a run in which Lanczos steps are kept while eigenvectors are computed


# Computes eigenpairs of the Hessian, given a job with one landscape, whose axes are preliminary, and the ranks, the
# steps and the seed, see `landscape.job.directions.base.Context`.
Solver: TypeAlias = Callable[[PreparedJob, tuple[int, ...], int, int], Spectrum]


def stand_in_spectrum(prepared: PreparedJob, ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
    """Random unit vectors in place of eigenpairs, for a dry run."""
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
    """`Context.spectrum` of a landscape: checks the request, then calls the solver.

    Args:
        prepared: the job, without its landscapes.
        identity: of the landscape.
    """

    def spectrum(ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
        if plan.statistics.recalibrated:
            raise JobError(RECALIBRATED)
        refuse_without_products(prepared.problem.model, plan)
        infos = [info for info in describe_parameters(prepared.problem.model) if info.trainable and info.name in origin]
        refuse_large_bases(sum(math.prod(info.shape) for info in infos), steps)
        # An axis that moves all tensors that eigenvectors move, so that a point can be timed.
        axis = DirectionTensors({info.name: torch.ones(info.shape) for info in infos})
        line = Grid(("alpha",), (np.array([-1.0, 0.0, 1.0]),))
        landscape = PreparedLandscape(
            name, origin, (axis,), line, None, plan, identity, Record(), ("loss",), lambda number: origin
        )
        return solver(replace(prepared, landscapes=(landscape,)), ranks, steps, seed)

    return spectrum


def bytes_of_bases(size: int, steps: int = STEPS) -> int:
    """Bytes of the basis of m steps over P numbers, in memory and on disk: 8·P·(m + 1)."""
    return 8 * size * (min(steps, size) + 1)


def most_steps(size: int, steps: int) -> int:
    """The most steps over P numbers while the sign of the smallest eigenvalue is open."""
    return max(steps, min(FURTHER * steps, _steps_within_limit(size)))


def _steps_within_limit(size: int) -> int:
    return curvature_limit() // (8 * size) - 1


def refuse_large_bases(size: int, steps: int) -> None:
    """Raises JobError for a basis above the limit; the message says how many steps fit, and what to set."""
    needed, limit = bytes_of_bases(size, steps), curvature_limit()
    if needed <= limit:
        return
    fits = _steps_within_limit(size)
    fewer = f"take steps: {fits}, or " if fits >= LEAST_STEPS else ""
    raise JobError(
        f"steps: the vectors of the Lanczos method must take at most {limit} bytes, not {needed} ({min(steps, size)} "
        f"steps of {size} parameters); {fewer}set {CURVATURE_BYTES}={needed}"
    )


def remove_bases(run: str, landscape: str) -> None:
    """Remove a landscape's kept Lanczos steps, unless another process is adding some: that one removes them."""
    folder = open_folder(run)
    try:
        folder.delete_below(f"{BASES}/{landscape}")
        if not folder.folders(BASES):
            folder.delete_below(BASES)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


# ----------------------------------------------------------------------------------------------------
# Lanczos steps kept in the run's folder, so that a killed computation goes on after its last step.
#
# Steps for the axes of a landscape, and steps for measurements, lie in separate folders.
#
# `<run>/curvature/<landscape>/<key>/step-00007` holds α, β and the next basis vector as float64, and their CRC32. The
# file `method` says how products are computed, if not by second derivatives; `loss` holds the loss at the origin, to
# detect a changed problem.

SAME_LOSS = 1e-4  # relative: machines differ by less in float32; a changed problem differs by more


@dataclass(frozen=True)
class KeptSteps:
    """The steps of one computation.

    Args:
        run: where the run lies.
        landscape: for whose axes; its steps are removed once the axes are in the store.
        key: a digest of everything that decides the bits of the steps.
        size: P.
    """

    run: str
    landscape: str
    key: str
    size: int

    def known(self) -> list[Step]:
        """The kept steps up to the first missing or damaged one."""
        folder, steps = self._folder(), list[Step]()
        while (step := self._read(folder, len(steps))) is not None:
            steps.append(step)
        return steps

    @property
    def is_begun(self) -> bool:
        """Whether a step is kept."""
        return self._read(self._folder(), 0) is not None

    def keep(self, number: int, step: Step) -> None:
        """Keep one step; it is synced to disk on return.

        Raises:
            LandscapeError: the disk cannot be written.
        """
        data = np.concatenate([[step.alpha, step.beta], step.following]).astype("<f8").tobytes()
        self._write(f"step-{number:05d}", data + zlib.crc32(data).to_bytes(4, "little"))

    def keep_refusal(self, refusal: str) -> None:
        """Record why the model has no second derivative; later steps use differences of gradients."""
        self._write("method", refusal.encode())

    def refusal(self) -> str:
        """Why differences of gradients are used; empty if they are not."""
        return (self._folder().read(self._path("method")) or b"").decode()

    def keep_loss(self, loss: float) -> None:
        """Keep the loss at the origin."""
        self._write("loss", np.float64(loss).tobytes())

    def forget_of_another_loss(self, loss: float) -> None:
        """Forget these steps if the loss at the origin has changed: then the problem has."""
        data = self._folder().read(self._path("loss"))
        if data is None or len(data) != 8:
            return
        kept = float(np.frombuffer(data, np.float64)[0])
        if not math.isclose(kept, loss, rel_tol=SAME_LOSS, abs_tol=SAME_LOSS):
            log.warning(
                "the loss at the origin is %.6g, and was %.6g when steps towards eigenvectors were kept: they start "
                "again", loss, kept,
            )  # fmt: skip
            self._folder().delete_below(self._path("").rstrip("/"))

    @property
    def place(self) -> str:
        """The folder of the landscape's kept steps."""
        return f"{self.run}/{BASES}/{self.landscape}"

    def remove(self) -> None:
        """Remove the landscape's kept steps."""
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
        except OSError as error:  # such as a full disk
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
    """The Krylov space of an operator; continues the kept steps of an earlier call, to the same bits.

    Args:
        loss: at the origin; kept steps with another loss belong to another problem and are forgotten.
        product: H·v; default: the operator itself.
        on_step: is called after each new step with the number of steps so far.
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


STEPS_A_LINE = 10  # between two progress messages


# In lengths of the weights: a parabola that rises visibly only farther out is rounding, or an idle direction.
FLAT = 100.0

NOT_FINITE = (
    "directions: {} at the origin must be finite for eigenvectors, and holds NaN or infinity; take another origin"
)


def solver_of(executors: Executors) -> Solver:
    """The solver that asks an executor.

    Args:
        executors: returns an executor for a job, its landscape, and an approximate number of evaluations.
    """

    def solve(prepared: PreparedJob, ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
        stage("computing eigenvectors of the Hessian")
        try:
            with executors(prepared, prepared.landscapes[0], steps * PRODUCT_EVALUATIONS) as executor:
                return spectrum_of(executor, prepared, ranks, steps, seed)
        except LandscapeError:
            raise
        except OSError as error:  # such as a full disk
            raise write_error(prepared.run, error) from error

    return solve


def spectrum_of(executor: Executor, prepared: PreparedJob, ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
    """Eigenpairs at the origin of the job's one landscape; continues the kept steps of an earlier call.

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
        with run_lock(kept.place):  # another process with the same job would compute the same steps
            krylov = kept_lanczos(operator, kept, ranks, loss, seed=seed, steps=steps, product=product, on_step=tell)
        ritz_pairs = {rank: krylov.pair(rank) for rank in ranks}
        if flat := _explain_flatness(operator, ritz_pairs, loss):
            kept.remove()
            raise JobError(flat)
        pairs = {rank: _make_eigenpair(operator, pair, loss) for rank, pair in ritz_pairs.items()}
    except JobError as error:
        if isinstance(error, _NotFiniteHessian) or not kept.is_begun:
            kept.remove()  # also the lock, which a job refused at its first product would leave behind
        raise
    except Interrupted:
        raise Interrupted(
            f"run {quoted(prepared.run)} is interrupted; each step towards its eigenvectors is kept: the same command "
            "goes on"
        ) from None
    return Spectrum(pairs, loss, krylov.steps, operator.method)


class _NotFiniteHessian(JobError):
    """A Hessian product is not finite; its steps must not be kept."""


def _make_eigenpair(operator: HessianOperator, pair: Ritz, loss: float) -> Eigenpair:
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


def _explain_flatness(operator: HessianOperator, found: Mapping[int, Ritz], loss: float) -> str:
    """Why the loss is flat along an axis; empty if it is flat along none."""
    # Over parameters only: buffers may hold masks of -inf, and counts larger than any weight.
    weights = max(1.0, length(operator.layout.vector(operator.setting.origin)))
    for rank, pair in found.items():
        if (width := half_width(pair.value, loss)) > FLAT * weights:
            lengths = width / weights
            far = f"only {lengths:.2g} times the length of the weights away" if math.isfinite(lengths) else "nowhere"
            return (
                f"directions: eigenvalue {rank} of the Hessian at the origin is {pair.value:.2g}: along its vector the "
                f"loss is flat, and rises by {loss:.2g} {far}; take another rank, origin or kind of "
                "direction"
            )
    return ""


def _key(landscape: PreparedLandscape, seed: int) -> str:
    """The digest of everything that decides the bits of the steps; their number and the ranks do not."""
    identity = {name: landscape.identity[name] for name in ("origin", "samples", "seed", "precision", "batch_norm")}
    return digest({"identity": identity, "plan": landscape.plan.record(), "start": seed})
