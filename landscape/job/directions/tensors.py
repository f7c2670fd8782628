"""The mathematics of directions: principal components, random walks to compare them with, projection, scaling."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.model.parameters import ParameterInfo, State, norm

# Components whose variance is below this fraction of the largest are rounding errors, not directions.
RANK_TOLERANCE = 1e-10
MOST_NAMED = 5  # snapshots in an error
ROUNDING = 1e-14  # of the centring, relative to the weights: by so much do equal snapshots differ


@dataclass(frozen=True)
class PrincipalComponents:
    """PCA of the snapshots of one or several trajectories.

    Attributes:
        components: unit directions; the first explains most.
        explained_variance: the fraction of the variance that each explains.
        random_walk_variance: the fraction that each would explain of `walks`.
        walks: random walks to compare the trajectories with.
    """

    components: tuple[dict[str, Tensor], ...]
    explained_variance: tuple[float, ...]
    random_walk_variance: tuple[float, ...]
    walks: RandomWalks


@dataclass(frozen=True)
class RandomWalks:
    """The expected PCA of random walks; in infinitely many dimensions, PCA of a walk tends to this expectation.

    Each trajectory has a walk from its own first snapshot. The steps of the walk go in independent directions; their
    mean square length grows with the epochs (or steps) tᵢ between snapshots, and is on average that of the trajectory's
    steps. With t₁ = 0 and a mean step of 1, a walk has the Gram matrix σ²·T, Tᵢⱼ = min(tᵢ, tⱼ). The matrices of several
    walks are blocks, to which the products K of the first snapshots are added, and H centres them all:
    H·(K + ⊕ᵢ σᵢ²·Tᵢ)·H. For a single walk, neither its start nor the length of its steps matters.

    Attributes:
        values, vectors: the eigenpairs of that matrix, the largest first.
        lengths: snapshots of each walk.
    """

    values: Floats
    vectors: Floats
    lengths: tuple[int, ...]

    @classmethod
    def like(cls, gram: Floats, times: Sequence[Sequence[float]]) -> RandomWalks:
        """The walks for trajectories with snapshots at these times and this Gram matrix."""
        lengths = [len(walk) for walk in times]
        ends = np.cumsum(lengths)
        starts = np.repeat(ends - np.asarray(lengths), lengths)
        walks = gram[np.ix_(starts, starts)]
        for end, length, at in zip(ends, lengths, times, strict=True):
            own = slice(end - length, end)
            walks[own, own] += _mean_squared_step(gram[own, own]) * _covariance(at)
        centring = np.eye(len(gram)) - 1 / len(gram)
        values, vectors = np.linalg.eigh(centring @ walks @ centring)
        return cls(values[::-1].clip(min=0), vectors[:, ::-1], tuple(lengths))

    @property
    def explained_variance(self) -> Floats:
        """The fraction of the variance of all snapshots that each component explains."""
        return np.asarray(self.values / self.values.sum(), np.float64)

    def shown(self, components: Sequence[int]) -> list[float | None]:
        """For each walk, the share of its own variance on these components, numbered from 1; None without variance."""
        places = self.vectors * np.sqrt(self.values)
        shares, end = list[float | None](), 0
        for length in self.lengths:
            own = places[end : end + length] - places[end : end + length].mean(0)
            squares, end = (own**2).sum(0), end + length
            whole = float(squares.sum())
            shares.append(float(squares[[k - 1 for k in components]].sum()) / whole if whole > 0 else None)
        return shares


def _covariance(times: Sequence[float]) -> Floats:
    """min(tᵢ, tⱼ) of a walk with snapshots at these times, shifted to begin at 0 and scaled to a mean step of 1."""
    since = np.asarray(times, np.float64) - times[0]
    if len(since) > 1:
        since = since * (len(since) - 1) / since[-1]  # of equal steps exactly 0, 1, 2, …
    return np.asarray(np.minimum.outer(since, since), np.float64)


def _mean_squared_step(gram: Floats) -> float:
    """The mean of ‖θᵢ₊₁ − θᵢ‖² over the steps of a trajectory, from its Gram matrix; 0 for a single snapshot."""
    squares, products = np.diag(gram), np.diag(gram, 1)
    return float((squares[1:] + squares[:-1] - 2 * products).clip(min=0).mean()) if len(products) else 0.0


def principal_components(
    snapshots: Sequence[State],
    names: Sequence[str],
    count: int,
    lengths: Sequence[int] | None = None,
    called: Sequence[str] = (),
    times: Sequence[float] | None = None,
) -> PrincipalComponents:
    """The first `count` principal components of n ≥ 3 snapshots over the parameters `names`.

    Rows X = θᵢ − θ̄ are centred over the snapshots. With the Gram matrix G = X·Xᵀ (n×n, float64) and its
    eigenpairs (λₖ, uₖ), component k is vₖ = Xᵀuₖ/√λₖ with ‖vₖ‖ = 1, and it explains λₖ/Σλ of the variance.
    The sign is such that the first path ends no lower on the axis than it starts. Li et al. 2018, §7.

    Args:
        lengths: of several trajectories, one after another, how many snapshots each has.
        called: the name of each snapshot in errors; default: its place.
        times: the epoch or step of each snapshot, for the random walks; default: equal steps.

    Raises:
        JobError: a snapshot is not finite, or the snapshots span fewer than `count` directions.

    >>> path = [{"w": torch.tensor([float(step), 0.0])} for step in range(4)]
    >>> pca = principal_components(path, ["w"], 1)
    >>> pca.components[0]["w"].tolist(), pca.explained_variance
    ([1.0, 0.0], (1.0,))
    """
    norms = [norm({name: snapshot[name] for name in names}) for snapshot in snapshots]
    subject = "paths: their" if lengths else "trajectory: its"
    refuse_diverged(norms, called or [f"number {k}" for k in range(1, len(norms) + 1)], subject)
    gram = gram_of_centred(snapshots, names)
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1].clip(min=0), vectors[:, ::-1]
    least = max(RANK_TOLERANCE * values[0], (ROUNDING * max(norms)) ** 2)
    rank = int((values > least).sum())
    if rank < count:
        raise JobError(
            f"{subject} {len(snapshots)} snapshots span {rank} direction{'s' * (rank != 1)}, PCA onto {count} "
            "needs as many; list more or other snapshots"
        )
    weights = vectors[:, :count] / np.sqrt(values[:count])
    last = (lengths[0] if lengths and lengths[0] > 1 else len(snapshots)) - 1
    weights = weights * np.where(vectors[last, :count] >= vectors[0, :count], 1.0, -1.0)
    components = tuple(_unit_sum(snapshots, names, weights[:, k]) for k in range(count))
    ends = np.cumsum(lengths or [len(snapshots)])
    at = np.arange(len(snapshots)) if times is None else np.asarray(times)
    by_path = [part.tolist() for part in np.split(at, ends[:-1])]
    total, walks = float(values.sum()), RandomWalks.like(gram, by_path)
    explained = tuple(float(value) / total for value in values[:count])
    of_walks = walks.explained_variance if lengths else random_walk_variance(by_path[0])
    return PrincipalComponents(components, explained, tuple(of_walks[:count].tolist()), walks)


def refuse_diverged(lengths: Sequence[float], called: Sequence[str], subject: str) -> None:
    """Refuse snapshots that hold NaN or infinity.

    Args:
        lengths: a norm or a distance of each snapshot, which is not finite if a weight is not.
        called: the name of each snapshot in the error.
        subject: the field of the job and a possessive pronoun, which begin the error.

    Raises:
        JobError: names the snapshots.
    """
    diverged = [name for name, length in zip(called, lengths, strict=True) if not math.isfinite(length)]
    if diverged:
        rest = f" and {len(diverged) - MOST_NAMED} more" if len(diverged) > MOST_NAMED else ""
        names = ", ".join(diverged[:MOST_NAMED]) + rest
        raise JobError(
            f"{subject} weights must be finite; of the {len(called)} snapshots {names} "
            f"{'holds' if len(diverged) == 1 else 'hold'} NaN or infinity, as training diverged; list others"
        )


def gram_of_centred(snapshots: Sequence[State], names: Sequence[str]) -> Floats:
    """X·Xᵀ of the centred snapshots, one tensor at a time, so that no second copy of all of them exists."""
    gram = np.zeros((len(snapshots), len(snapshots)))
    for name in names:
        rows = torch.stack([snapshot[name].reshape(-1).double() for snapshot in snapshots])
        rows = rows - rows.mean(0)
        gram += (rows @ rows.T).numpy()
    return gram


def _unit_sum(snapshots: Sequence[State], names: Sequence[str], weights: Floats) -> dict[str, Tensor]:
    """Σᵢ wᵢ·(θᵢ − θ̄), normalised to unit length over all tensors and rounded to float32.

    Tensor by tensor, and twice, so that no float64 copy of all of them exists.
    """
    scale = torch.from_numpy(weights - weights.mean())

    def summed(name: str) -> Tensor:
        rows = torch.stack([snapshot[name].double() for snapshot in snapshots])
        total: Tensor = torch.tensordot(scale, rows, 1)
        return total

    length = math.sqrt(sum(float(summed(name).square().sum()) for name in names))
    found = {name: (summed(name) / length).float() for name in names}
    return {name: tensor for name, tensor in found.items() if bool(tensor.any())}


def random_walk_variance(times: Sequence[float]) -> Floats:
    """Expected explained variance of PCA on a random walk with snapshots at these times, in infinitely many dimensions.

    There the Gram matrix of the centred walk tends to H·T·H, Tᵢⱼ = min(tᵢ, tⱼ) the covariance of its snapshots and H
    the centring matrix; the fractions are its eigenvalues over their sum. For equal steps they tend to 6/(π²k²):
    60.8 %, 15.2 %, … (Antognini and Sohl-Dickstein 2018); with a gap between snapshots, the first one is larger.

    >>> random_walk_variance(range(1000))[:2].round(3).tolist()
    [0.608, 0.152]
    >>> random_walk_variance([0, 1, 2, 3, 9, 10, 11, 12])[:1].round(3).tolist()
    [0.774]
    """
    centring = np.eye(len(times)) - 1 / len(times)
    values = np.linalg.eigvalsh(centring @ _covariance(times) @ centring)[::-1].clip(min=0)
    return np.asarray(values / values.sum(), np.float64)


# ----------------------------------------------------------------------------------------------------
# Several axes together: the angles between them, and the projection of weights onto the plane that they span.

PARALLEL = 1e-7  # the least singular value of unit axes that span a plane


def project(point: State, origin: State, directions: Sequence[State], names: Sequence[str]) -> tuple[Floats, float]:
    """Least-squares coordinates of θ on the plane θ₀ + Σ cₖ·dₖ, and its distance off that plane.

    c = argmin ‖(θ − θ₀) − Σ cₖ·dₖ‖ from the normal equations over the parameters `names`, in float64.

    Returns:
        The coordinates [axes], and the Euclidean distance in weight space.

    Raises:
        JobError: the axes are parallel, so coordinates are not defined.

    >>> import torch
    >>> axes = [{"w": torch.tensor([2.0, 0.0, 0.0])}, {"w": torch.tensor([0.0, 1.0, 0.0])}]
    >>> project({"w": torch.tensor([4.0, 1.0, 3.0])}, {"w": torch.zeros(3)}, axes, ["w"])
    (array([2., 1.]), 3.0)
    """
    matrix = gram_matrix(directions, names)
    if np.linalg.eigvalsh(_cosines_in(matrix))[0] < PARALLEL:
        raise JobError("directions: two axes are parallel, so they span no plane; name other components or snapshots")
    right, squares = np.zeros(len(directions)), 0.0
    for name in names:
        offset = point[name].double() - origin[name].double()
        for k, direction in enumerate(directions):
            if name in direction:
                right[k] += float((direction[name].double() * offset).sum())
    coordinates = np.linalg.solve(matrix, right)
    for name in names:
        offset = point[name].double() - origin[name].double()
        for coordinate, direction in zip(coordinates, directions, strict=True):
            if name in direction:
                offset = offset - float(coordinate) * direction[name].double()
        squares += float(offset.square().sum())
    return np.asarray(coordinates, np.float64), math.sqrt(squares)


def gram_matrix(directions: Sequence[State], names: Collection[str] | None = None) -> Floats:
    """Inner products ⟨dⱼ, dₖ⟩ [axes, axes] in float64; a tensor missing from a direction is zero.

    Args:
        names: of the tensors that count; default: all.
    """
    gram = np.zeros((len(directions), len(directions)))
    for name in dict.fromkeys(name for direction in directions for name in direction):
        if names is not None and name not in names:
            continue
        tensors = [direction[name].double() if name in direction else None for direction in directions]
        for j, first in enumerate(tensors):
            for k, second in enumerate(tensors):
                if first is not None and second is not None:
                    gram[j, k] += float((first * second).sum())
    return gram


def cosines(directions: Sequence[State], names: Collection[str] | None = None) -> Floats:
    """The cosine between each two axes: ⟨dⱼ, dₖ⟩ / (‖dⱼ‖·‖dₖ‖), as [axes, axes]; 0 if one of them is zero.

    A filter-normalised direction is zero where all weights are.

    Args:
        names: of the tensors that count; default: all.
    """
    return _cosines_in(gram_matrix(directions, names))


def _cosines_in(matrix: Floats) -> Floats:
    lengths = np.sqrt(np.diag(matrix))
    products = np.outer(lengths, lengths)
    quotients = np.divide(matrix, products, out=np.zeros_like(matrix), where=products > 0)
    return np.asarray(np.clip(quotients, -1, 1), np.float64)


# ----------------------------------------------------------------------------------------------------
# Directions scaled to the weights: per filter, per tensor or as a whole (Li et al. 2018).


def refuse_immobile(moved: Sequence[ParameterInfo], infos: Sequence[ParameterInfo], ignore: Sequence[str]) -> None:
    """Refuse a direction along which no parameter would move.

    Raises:
        JobError: `moved` is empty; with the reason.
    """
    if moved:
        return
    frozen = sum(not info.trainable for info in infos)
    raise JobError(
        f"directions: no parameter moves: of {len(infos)} {frozen} are frozen and the rest falls under "
        f"ignore: [{', '.join(ignore)}]; unfreeze some (requires_grad) or ignore less"
    )
