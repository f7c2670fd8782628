"""The Hessian of the mean loss at a setting's origin as a linear operator, its blocks computed by an executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from landscape.compute.executor import EvaluationSetting, Executor, ProductOfBlocks, SumOfProducts, TotalsOfBlocks
from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.core.statistics import ConfidenceInterval, interval_of
from landscape.evaluation.derivatives import Products
from landscape.evaluation.feed import batching_of
from landscape.evaluation.layers import loss_factors
from landscape.model.parameters import ParameterInfo, State, describe_parameters, filter_unview, filter_view
from landscape.problem.batches import Samples
from landscape.problem.supervised import Supervised
from landscape.problem.terms import Problem
from landscape.surface.record_entries import products_in_float32

# ----------------------------------------------------------------------------------------------------
# Sums over long vectors in a fixed order, whatever the number of threads.
#
# A BLAS splits long sums among its threads, so the number of cores changes the rounding. `einsum` without optimisation
# is one plain loop.


def dot(first: Floats, second: Floats) -> float:
    """⟨a, b⟩."""
    return float(np.einsum("i,i->", first, second))


def length(vector: Floats) -> float:
    """‖a‖."""
    return float(np.sqrt(dot(vector, vector)))


def coefficients(rows: Floats, vector: Floats) -> Floats:
    """⟨row, vector⟩ for each row of [k, P]."""
    return np.asarray(np.einsum("ij,j->i", rows, vector), np.float64)


def combination(weights: Floats, rows: Floats) -> Floats:
    """Σ wᵢ·rowᵢ, added in the order of the rows."""
    total = np.zeros(rows.shape[1])
    for weight, row in zip(weights, rows, strict=True):
        total += weight * row
    return total


def orthogonal_part(rows: Floats, vector: Floats) -> Floats:
    """The part of a vector orthogonal to orthonormal rows; projected twice, because of rounding.

    Giraud et al. 2005, "The loss of orthogonality in the Gram-Schmidt orthogonalization process".
    """
    for _ in range(2):
        vector = vector - combination(coefficients(rows, vector), rows)
    return vector


# The most stretches that the blocks are cut into: each is one worker's task, and costs a message of P numbers.
MOST_STRETCHES = 32


@dataclass(frozen=True)
class ParameterLayout:
    """The places of the trainable parameters in a vector of all of them, in the model's order."""

    infos: tuple[ParameterInfo, ...]

    @property
    def size(self) -> int:
        """P, the length of a vector."""
        return sum(int(np.prod(info.shape, dtype=np.int64)) for info in self.infos)

    def tensors(self, vector: Floats, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """A vector [P] as a tensor per parameter."""
        found, start = dict[str, Tensor](), 0
        for info in self.infos:
            end = start + int(np.prod(info.shape, dtype=np.int64))
            found[info.name] = torch.from_numpy(np.array(vector[start:end])).reshape(info.shape).to(dtype)
            start = end
        return found

    def vector(self, tensors: State) -> Floats:
        """The inverse; a parameter that `tensors` lacks is zero."""
        parts = [
            tensors[info.name].detach().double().reshape(-1).cpu().numpy()
            if info.name in tensors
            else np.zeros(int(np.prod(info.shape, dtype=np.int64)))
            for info in self.infos
        ]
        return np.concatenate(parts)


def layout_of(problem: Problem, origin: State) -> ParameterLayout:
    """The layout of a problem's trainable parameters."""
    return ParameterLayout(
        tuple(info for info in describe_parameters(problem.model) if info.trainable and info.name in origin)
    )


class NoProducts(JobError):
    """The loss has no second derivatives here, and differences of its gradients cannot be taken either."""


class HessianOperator:
    """H = ∇²L at θ₀ by its products with vectors.

    The samples lie in the blocks of the plan. Each stretch of blocks is one work item, and the parts are added in
    order; the stretches follow from the number of blocks alone. So any number of workers gives the same bits.

    Args:
        executor: computes the products.
        setting: θ₀ and the plan.
        blocks: the blocks of samples that the mean loss is over; default: all.
        method: `autograd` falls back to `differences` if the model has no second derivative; `gauss-newton` gives
            products with JᵀH_ℓJ in place of H, with J the derivative of the outputs and H_ℓ the criterion's Hessian;
            JᵀH_ℓJ has no negative eigenvalue if the criterion is convex.

    Attributes:
        method: the method in use, after a fallback.
        refusal: the reason of the fallback; empty without one.
        products: how many products with a vector were computed.
    """

    def __init__(
        self,
        executor: Executor,
        setting: EvaluationSetting,
        problem: Problem,
        samples: Samples,
        blocks: Sequence[int] | None = None,
        method: Products = "autograd",
    ) -> None:
        self.executor, self.setting, self.method = executor, setting, method
        self.problem, self.samples = problem, samples
        self.layout = layout_of(problem, setting.origin)
        if not self.layout.infos:
            raise JobError("model: no parameter requires gradients, so the loss has no derivatives; train some")
        self.blocks = tuple(range(block_count(setting, samples)) if blocks is None else blocks)
        if method == "gauss-newton" and not isinstance(problem.observe, Supervised):
            raise JobError(
                "method: gauss-newton needs a model's outputs apart from their criterion, as Problem.supervised has "
                "them; take autograd, or make the problem so"
            )
        self.refusal, self.products = "", 0
        self._factors: Mapping[str, float] | None = None

    @property
    def size(self) -> int:
        """P, the length of a vector."""
        return self.layout.size

    @property
    def in_float32(self) -> bool:
        """Whether products are computed in float32."""
        return products_in_float32(self.method, self.setting.plan.precision)

    @property
    def noise(self) -> float:
        """The approximate error of a product, relative to the largest eigenvalue."""
        if self.method == "differences":
            return math.sqrt(np.finfo(np.float64).eps)
        return float(np.finfo(np.float64 if self.setting.plan.precision == "float64" else np.float32).eps)

    def on(self, blocks: Sequence[int]) -> HessianOperator:
        """The operator of the mean loss over these blocks only."""
        return HessianOperator(self.executor, self.setting, self.problem, self.samples, blocks, self.method)

    def __call__(self, vectors: Floats) -> Floats:
        """H·v for one vector [P], or for each row of [k, P], in float64."""
        rows = np.atleast_2d(np.ascontiguousarray(vectors, np.float64))
        shared, factors = self.executor.share(rows), self._known_factors()
        answers = self._parts(
            [ProductOfBlocks(stretch, factors, shared, self.method) for stretch in stretches_of(self.blocks)]
        )
        refused = [answer.refusal for answer in answers if answer.total is None]
        if refused:
            if self.method != "autograd":
                raise JobError(f"method: {self.method} needs second derivatives, and {refused[0]}; take differences")
            self.method, self.refusal = "differences", refused[0]
            return self(vectors)
        self.products += len(rows)
        total = np.zeros_like(rows)
        for answer in answers:
            assert answer.total is not None
            total += answer.total
        return total.reshape(np.shape(vectors))

    def _parts(self, items: Sequence[ProductOfBlocks]) -> list[SumOfProducts]:
        try:
            return self.executor.ask(self.setting, items)
        except JobError as error:
            if self.method != "differences":
                raise
            why = f", as there are no second derivatives ({self.refusal})" if self.refusal else ""
            raise NoProducts(
                f"{error}; differences of gradients are taken in float64{why}: have the model compute in it"
            ) from error

    def _known_factors(self) -> Mapping[str, float]:
        if self._factors is None:
            stretches = stretches_of(self.blocks)
            answers = self.executor.ask(self.setting, [TotalsOfBlocks(stretch) for stretch in stretches])
            self._factors = loss_factors([total for answer in answers for total in answer], self.problem.observe)
        return self._factors


def block_count(setting: EvaluationSetting, samples: Samples) -> int:
    """The number of blocks that the plan makes of the samples."""
    return len(batching_of(samples.length, setting.plan, setting.plan.batch_size, samples.cuts).blocks)


def stretches_of(blocks: Sequence[int]) -> list[Sequence[int]]:
    """Cut the blocks into at most `MOST_STRETCHES` stretches of nearly equal length, by their number alone.

    >>> [len(stretch) for stretch in stretches_of(range(70))][:5]
    [3, 3, 3, 3, 3]
    """
    length = -(-len(blocks) // MOST_STRETCHES)
    return [blocks[start : start + length] for start in range(0, len(blocks), length)]


# ----------------------------------------------------------------------------------------------------
# The trace of the Hessian, plain and weighted by the norms of filters, with confidence intervals.

PROBES = 16
AT_ONCE = 4  # probes per product: they share a gradient, and each needs the memory of a vector

ProductFunction = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Trace:
    """An estimate of tr H.

    Attributes:
        value: the unbiased estimate with its interval over the probes.
        deflated: the exact part of it, Σ qᵀHq over the rows of the deflating space.
        probes: the estimate of each probe; seed and size determine the probe vectors, whatever the weights.
    """

    value: ConfidenceInterval
    deflated: float
    probes: tuple[float, ...] = ()


def trace(
    products: ProductFunction,
    size: int,
    deflated: Floats | None = None,
    part: float = 0.0,
    probes: int = PROBES,
    seed: int = 0,
) -> Trace:
    """tr H by deflated Hutchinson: tr(QHQᵀ) + mean over probes of gᵀ(I − QᵀQ)H(I − QᵀQ)g, g = ±1 at random.

    Unbiased for any orthonormal Q, since E ggᵀ = I. The variance comes from the complement of Q, so a Q that holds the
    eigenvectors of outliers removes most of it (Hutch++, Meyer et al. 2021, with a better subspace, and an error bar
    from the probes).

    Args:
        products: H·v for each row of [k, P].
        deflated: Q, orthonormal rows [m, P], such as the basis of a Lanczos run.
        part: tr(QHQᵀ), which for a Lanczos basis is Σα.
    """
    basis = np.empty((0, size)) if deflated is None else deflated
    values: list[float] = []
    generator = np.random.default_rng([seed, size])
    while len(values) < probes:
        count = min(AT_ONCE, probes - len(values))
        rows = np.stack([orthogonal_part(basis, _signs(generator, size)) for _ in range(count)])
        values += [dot(row, image) for row, image in zip(rows, products(rows), strict=True)]
    rest = interval_of(values)
    whole = ConfidenceInterval(rest.mean + part, rest.low + part, rest.high + part, rest.stderr)
    return Trace(whole, part, tuple(value + part for value in values))


def filter_weighted_trace(
    products: ProductFunction,
    layout: ParameterLayout,
    origin: State,
    ignore: Sequence[str] = (),
    probes: int = PROBES,
    seed: int = 0,
) -> ConfidenceInterval:
    """Σ_f (‖w_f‖²/n_f)·tr H_ff over the filters f, each of n_f numbers w_f: E[dᵀHd] of filter-normalised directions d.

    A filter-normalised Gaussian has d_f = ‖w_f‖·u_f with u_f uniform on the sphere, and filters are independent; so
    this is the mean curvature at the centre of random planes. Here d_f = ‖w_f‖/√n_f·(±1), with the same mean and no
    variance from the lengths.

    Args:
        ignore: roles of parameters that do not move, as in the directions to compare with.
    """
    scales = np.concatenate([_scales(origin, layout, k, ignore) for k in range(len(layout.infos))])
    values: list[float] = []
    generator = np.random.default_rng([seed, layout.size, 1])
    while len(values) < probes:
        count = min(AT_ONCE, probes - len(values))
        rows = np.stack([scales * _signs(generator, layout.size) for _ in range(count)])
        values += [dot(row, image) for row, image in zip(rows, products(rows), strict=True)]
    return interval_of(values)


def _scales(origin: State, layout: ParameterLayout, k: int, ignore: Sequence[str]) -> Floats:
    """‖w_f‖/√n_f at each number of a parameter."""
    info = layout.infos[k]
    if info.role in ignore:
        return np.zeros(int(np.prod(info.shape, dtype=np.int64)))
    rows = filter_view(origin[info.name].double(), info)
    norms = rows.norm(dim=1, keepdim=True) / max(1, rows.shape[1]) ** 0.5
    spread: torch.Tensor = filter_unview(norms.expand_as(rows).contiguous(), info)
    return np.asarray(spread.reshape(-1).cpu().numpy(), np.float64)


def rayleigh(products: ProductFunction, vector: Floats) -> float:
    """vᵀHv / vᵀv."""
    return dot(vector, products(vector)) / dot(vector, vector)


def projected(products: ProductFunction, rows: Floats) -> Floats:
    """row·H·row for each row of [k, P]."""
    return np.array([dot(row, image) for row, image in zip(rows, products(rows), strict=True)])


def _signs(generator: np.random.Generator, size: int) -> Floats:
    return generator.integers(0, 2, size).astype(np.float64) * 2 - 1
