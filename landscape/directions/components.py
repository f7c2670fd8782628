"""Principal components of a trajectory, and what a random walk of the same length would show."""

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
ROUNDING = 1e-14  # of the centring, relative to the weights: equal snapshots differ by as much


@dataclass(frozen=True)
class PrincipalComponents:
    """PCA of a trajectory.

    Attributes:
        components: unit directions, the first explaining most.
        explained_variance: the fraction of the variance that each explains.
        random_walk_variance: the fraction that each would explain of a random walk of as many snapshots.
    """

    components: tuple[dict[str, Tensor], ...]
    explained_variance: tuple[float, ...]
    random_walk_variance: tuple[float, ...]


def principal_components(snapshots: Sequence[State], names: Sequence[str], count: int) -> PrincipalComponents:
    """The first `count` principal components of n ≥ 3 snapshots over the parameters `names`.

    Rows X = θᵢ − θ̄ are centred over the snapshots. With the Gram matrix G = X·Xᵀ (n×n, float64) and its
    eigenpairs (λₖ, uₖ), component k is vₖ = Xᵀuₖ/√λₖ with ‖vₖ‖ = 1, and it explains λₖ/Σλ of the variance.
    The sign is such that the path ends no lower on the axis than it starts. Li et al. 2018, §7.

    Raises:
        JobError: a snapshot is not finite, or they span fewer than `count` directions.

    >>> path = [{"w": torch.tensor([float(step), 0.0])} for step in range(4)]
    >>> pca = principal_components(path, ["w"], 1)
    >>> pca.components[0]["w"].tolist(), pca.explained_variance
    ([1.0, 0.0], (1.0,))
    """
    lengths = [norm({name: snapshot[name] for name in names}) for snapshot in snapshots]
    diverged = [str(k + 1) for k, length in enumerate(lengths) if not math.isfinite(length)]
    if diverged:
        raise JobError(
            f"trajectory: its weights must be finite; of the {len(snapshots)} snapshots number {', '.join(diverged)} "
            "holds NaN or infinity, as training diverged; list others"
        )
    values, vectors = np.linalg.eigh(_gram_of_centred(snapshots, names))
    values, vectors = values[::-1].clip(min=0), vectors[:, ::-1]
    least = max(RANK_TOLERANCE * values[0], (ROUNDING * max(lengths)) ** 2)
    rank = int((values > least).sum())
    if rank < count:
        raise JobError(
            f"trajectory: its {len(snapshots)} snapshots span {rank} direction{'s' * (rank != 1)}, PCA onto {count} "
            "needs as many; list more or other snapshots"
        )
    weights = vectors[:, :count] / np.sqrt(values[:count])
    weights = weights * np.where(vectors[-1, :count] >= vectors[0, :count], 1.0, -1.0)
    components = tuple(_unit_sum(snapshots, names, weights[:, k]) for k in range(count))
    total, walk = float(values.sum()), random_walk_variance(len(snapshots))
    explained = tuple(float(value) / total for value in values[:count])
    return PrincipalComponents(components, explained, tuple(walk[:count].tolist()))


def _gram_of_centred(snapshots: Sequence[State], names: Sequence[str]) -> Floats:
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
    steps = np.tril(np.ones((snapshots, snapshots)))
    steps[:, 0] = 0  # the walk starts somewhere: its first row is no step
    centring = np.eye(snapshots) - 1 / snapshots
    values = np.linalg.eigvalsh(centring @ steps @ steps.T @ centring)[::-1].clip(min=0)
    return np.asarray(values / values.sum(), np.float64)
