"""The trace of the Hessian, as a whole and weighted by the norms of filters, each with an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from landscape.compute.algebra import Floats, dot, without
from landscape.compute.hessian import Layout
from landscape.core.statistics import Interval, interval_of
from landscape.model.parameters import State, filter_unview, filter_view

PROBES = 16
AT_ONCE = 4  # probes per product: they share a gradient, and each takes the memory of a vector

Products = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Trace:
    """An estimate of tr H.

    Attributes:
        value: the unbiased estimate with its interval over the probes.
        deflated: the part of it that is exact, Σ qᵀHq over the rows of the deflating space.
        probes: the estimate of each probe; probes of one seed and size are the same vectors for any weights.
    """

    value: Interval
    deflated: float
    probes: tuple[float, ...] = ()


def trace(
    products: Products,
    size: int,
    deflated: Floats | None = None,
    part: float = 0.0,
    probes: int = PROBES,
    seed: int = 0,
) -> Trace:
    """tr H by deflated Hutchinson: tr(QHQᵀ) + mean over probes of gᵀ(I − QᵀQ)H(I − QᵀQ)g, g = ±1 at random.

    Unbiased for any orthonormal Q, since E ggᵀ = I; its variance is that of what Q leaves, so a Q that holds the
    eigenvectors of the outliers takes the largest part away (Hutch++, Meyer et al. 2021, with a better subspace, and
    an error bar from the probes).

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
        rows = np.stack([without(basis, _signs(generator, size)) for _ in range(count)])
        values += [dot(row, image) for row, image in zip(rows, products(rows), strict=True)]
    rest = interval_of(values)
    whole = Interval(rest.mean + part, rest.low + part, rest.high + part, rest.stderr)
    return Trace(whole, part, tuple(value + part for value in values))


def filter_weighted_trace(
    products: Products,
    layout: Layout,
    origin: State,
    ignore: Sequence[str] = (),
    probes: int = PROBES,
    seed: int = 0,
) -> Interval:
    """Σ_f (‖w_f‖²/n_f)·tr H_ff over the filters f, each of n_f numbers w_f: E[dᵀHd] of filter-normalised directions d.

    A filter-normalised Gaussian has d_f = ‖w_f‖·u_f with u_f uniform on the sphere, and filters are independent; so
    this is the mean curvature at the centre of random planes. Here d_f = ‖w_f‖/√n_f·(±1), which has the same mean and
    no variance from the lengths.

    Args:
        ignore: the roles of parameters that stay still, as of the directions that it is compared with.
    """
    scales = np.concatenate([_scales(origin, layout, k, ignore) for k in range(len(layout.infos))])
    values: list[float] = []
    generator = np.random.default_rng([seed, layout.size, 1])
    while len(values) < probes:
        count = min(AT_ONCE, probes - len(values))
        rows = np.stack([scales * _signs(generator, layout.size) for _ in range(count)])
        values += [dot(row, image) for row, image in zip(rows, products(rows), strict=True)]
    return interval_of(values)


def _scales(origin: State, layout: Layout, k: int, ignore: Sequence[str]) -> Floats:
    """‖w_f‖/√n_f at each number of a parameter."""
    info = layout.infos[k]
    if info.role in ignore:
        return np.zeros(int(np.prod(info.shape, dtype=np.int64)))
    rows = filter_view(origin[info.name].double(), info)
    norms = rows.norm(dim=1, keepdim=True) / max(1, rows.shape[1]) ** 0.5
    spread: torch.Tensor = filter_unview(norms.expand_as(rows).contiguous(), info)
    return np.asarray(spread.reshape(-1).cpu().numpy(), np.float64)


def rayleigh(products: Products, vector: Floats) -> float:
    """vᵀHv / vᵀv."""
    return dot(vector, products(vector)) / dot(vector, vector)


def projected(products: Products, rows: Floats) -> Floats:
    """row·H·row for each row of [k, P]."""
    return np.array([dot(row, image) for row, image in zip(rows, products(rows), strict=True)])


def _signs(generator: np.random.Generator, size: int) -> Floats:
    return generator.integers(0, 2, size).astype(np.float64) * 2 - 1
