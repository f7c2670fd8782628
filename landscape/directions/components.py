"""Principal components of one or several trajectories, and what random walks of the same lengths would show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from landscape.errors import JobError
from landscape.grid import Floats
from landscape.parameters import State, norm

# Components whose variance is below this fraction of the largest are rounding, not directions.
RANK_TOLERANCE = 1e-10
MOST_NAMED = 5  # of many snapshots, in an error
ROUNDING = 1e-14  # of the centring, relative to the weights: equal snapshots differ by as much


@dataclass(frozen=True)
class PrincipalComponents:
    """PCA of the snapshots of one or several trajectories.

    Attributes:
        components: unit directions, the first explaining most.
        explained_variance: the fraction of the variance that each explains.
        random_walk_variance: the fraction that each would explain of random walks as `RandomWalks` has them.
        walks: these, for what the components would show of each of them.
    """

    components: tuple[dict[str, Tensor], ...]
    explained_variance: tuple[float, ...]
    random_walk_variance: tuple[float, ...]
    walks: RandomWalks


@dataclass(frozen=True)
class RandomWalks:
    """What PCA shows of random walks in infinitely many dimensions: the expectation, which the values tend to there.

    Of each trajectory a walk from its own first snapshot, with as many steps, in independent directions, of the root
    mean square length of its steps. A walk has the Gram matrix σ²·S·Sᵀ, S the lower triangle of ones (cumulated unit
    steps); those of several walks stand in blocks, to which the products of the first snapshots are added, and H
    centres them all: H·(K + ⊕ᵢ σᵢ²·Sᵢ·Sᵢᵀ)·H. Of a single walk neither its start nor the length of its steps count.

    Attributes:
        values, vectors: the eigenpairs of that matrix, the largest first.
        lengths: snapshots of each walk.
    """

    values: Floats
    vectors: Floats
    lengths: tuple[int, ...]

    @classmethod
    def like(cls, gram: Floats, lengths: Sequence[int]) -> RandomWalks:
        """The walks that stand for trajectories of so many snapshots each, of which the Gram matrix is known."""
        ends = np.cumsum(lengths)
        starts = np.repeat(ends - np.asarray(lengths), lengths)
        walks = gram[np.ix_(starts, starts)]
        for end, length in zip(ends, lengths, strict=True):
            own = slice(end - length, end)
            walks[own, own] += _mean_squared_step(gram[own, own]) * _cumulated(length)
        centring = np.eye(len(gram)) - 1 / len(gram)
        values, vectors = np.linalg.eigh(centring @ walks @ centring)
        return cls(values[::-1].clip(min=0), vectors[:, ::-1], tuple(lengths))

    @property
    def explained_variance(self) -> Floats:
        """The fraction of the variance of all snapshots that each component explains."""
        return np.asarray(self.values / self.values.sum(), np.float64)

    def shown(self, components: Sequence[int]) -> list[float | None]:
        """Of each walk the share of its own variance that lies on these components, from 1; None where it has none."""
        places = self.vectors * np.sqrt(self.values)
        shares, end = list[float | None](), 0
        for length in self.lengths:
            own = places[end : end + length] - places[end : end + length].mean(0)
            squares, end = (own**2).sum(0), end + length
            whole = float(squares.sum())
            shares.append(float(squares[[k - 1 for k in components]].sum()) / whole if whole > 0 else None)
        return shares


def _cumulated(length: int) -> Floats:
    """S·Sᵀ of a walk of so many snapshots, the first of which is no step."""
    steps = np.tril(np.ones((length, length)))
    steps[:, 0] = 0
    return np.asarray(steps @ steps.T, np.float64)


def _mean_squared_step(gram: Floats) -> float:
    """The mean of ‖θᵢ₊₁ − θᵢ‖² over the steps of a trajectory, by the products of its snapshots; 0 of a single one."""
    squares, beside = np.diag(gram), np.diag(gram, 1)
    return float((squares[1:] + squares[:-1] - 2 * beside).clip(min=0).mean()) if len(beside) else 0.0


def principal_components(
    snapshots: Sequence[State],
    names: Sequence[str],
    count: int,
    lengths: Sequence[int] | None = None,
    called: Sequence[str] = (),
) -> PrincipalComponents:
    """The first `count` principal components of n ≥ 3 snapshots over the parameters `names`.

    Rows X = θᵢ − θ̄ are centred over the snapshots. With the Gram matrix G = X·Xᵀ (n×n, float64) and its
    eigenpairs (λₖ, uₖ), component k is vₖ = Xᵀuₖ/√λₖ with ‖vₖ‖ = 1, and it explains λₖ/Σλ of the variance.
    The sign is such that the first path ends no lower on the axis than it starts. Li et al. 2018, §7.

    Args:
        lengths: where the snapshots are of several trajectories, one after another: how many each has.
        called: what an error calls each snapshot; default: its place.

    Raises:
        JobError: a snapshot is not finite, or they span fewer than `count` directions.

    >>> path = [{"w": torch.tensor([float(step), 0.0])} for step in range(4)]
    >>> pca = principal_components(path, ["w"], 1)
    >>> pca.components[0]["w"].tolist(), pca.explained_variance
    ([1.0, 0.0], (1.0,))
    """
    norms = [norm({name: snapshot[name] for name in names}) for snapshot in snapshots]
    what = "paths: their" if lengths else "trajectory: its"
    refuse_diverged(norms, called or [f"number {k}" for k in range(1, len(norms) + 1)], what)
    gram = gram_of_centred(snapshots, names)
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1].clip(min=0), vectors[:, ::-1]
    least = max(RANK_TOLERANCE * values[0], (ROUNDING * max(norms)) ** 2)
    rank = int((values > least).sum())
    if rank < count:
        raise JobError(
            f"{what} {len(snapshots)} snapshots span {rank} direction{'s' * (rank != 1)}, PCA onto {count} "
            "needs as many; list more or other snapshots"
        )
    weights = vectors[:, :count] / np.sqrt(values[:count])
    last = (lengths[0] if lengths and lengths[0] > 1 else len(snapshots)) - 1
    weights = weights * np.where(vectors[last, :count] >= vectors[0, :count], 1.0, -1.0)
    components = tuple(_unit_sum(snapshots, names, weights[:, k]) for k in range(count))
    total, walks = float(values.sum()), RandomWalks.like(gram, lengths or [len(snapshots)])
    explained = tuple(float(value) / total for value in values[:count])
    of_walks = walks.explained_variance if lengths else random_walk_variance(len(snapshots))
    return PrincipalComponents(components, explained, tuple(of_walks[:count].tolist()), walks)


def refuse_diverged(lengths: Sequence[float], called: Sequence[str], what: str) -> None:
    """Refuse snapshots that hold NaN or infinity.

    Args:
        lengths: of each snapshot a norm or a distance, which is not finite where a weight is not.
        called: what the error calls each.
        what: whose weights they are, as the beginning of the error.

    Raises:
        JobError: names them.
    """
    diverged = [name for name, length in zip(called, lengths, strict=True) if not math.isfinite(length)]
    if diverged:
        more = f" and {len(diverged) - MOST_NAMED} more" if len(diverged) > MOST_NAMED else ""
        raise JobError(
            f"{what} weights must be finite; of the {len(called)} snapshots {', '.join(diverged[:MOST_NAMED])}{more} "
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
    """Σᵢ wᵢ·(θᵢ − θ̄), normalised to unit length over all tensors and rounded to float32."""
    scale = torch.from_numpy(weights - weights.mean())
    sums = {
        name: torch.tensordot(scale, torch.stack([snapshot[name].double() for snapshot in snapshots]), 1)
        for name in names
    }
    length = norm(sums)
    return {name: (tensor / length).float() for name, tensor in sums.items() if bool(tensor.any())}


def random_walk_variance(snapshots: int) -> Floats:
    """Expected explained variance of PCA on a random walk of as many snapshots, in infinitely many dimensions.

    There the Gram matrix of the centred walk tends to H·S·Sᵀ·H, S the lower triangle of ones (cumulated
    unit steps) and H the centring matrix; its eigenvalues over their sum are the fractions. They tend to
    6/(π²k²): 60.8 %, 15.2 %, … (Antognini and Sohl-Dickstein 2018).

    >>> random_walk_variance(1000)[:2].round(3).tolist()
    [0.608, 0.152]
    """
    centring = np.eye(snapshots) - 1 / snapshots
    values = np.linalg.eigvalsh(centring @ _cumulated(snapshots) @ centring)[::-1].clip(min=0)
    return np.asarray(values / values.sum(), np.float64)
