"""Directions in weight space: random and normalised, towards other weights, PCA of a trajectory, from a file.

A direction is a tensor per name, in float32; names it does not move are left out. The functions that make
one are pure: model weights, infos, seeds and snapshots are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.errors import JobError
from landscape.parameters import (
    EPSILON,
    ParameterInfo,
    State,
    difference,
    dot,
    norm,
    refuse_mismatch,
    scale_to_filters,
)
from landscape.spec.job import DEFAULT_IGNORE, Ignored, Normalise

Floats = NDArray[np.float64]

# Components whose variance is below this fraction of the largest are rounding, not directions.
RANK_TOLERANCE = 1e-10
ROUNDING = 1e-14  # of the centring, relative to the weights: equal snapshots differ by as much
PARALLEL = 1e-7  # the least singular value of unit axes that still span a plane


@dataclass(frozen=True)
class DirectionTensors:
    """One axis in weight space: its tensors and what is to be recorded of it."""

    tensors: Mapping[str, Tensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def random_direction(
    origin: State,
    infos: Sequence[ParameterInfo],
    seed: int,
    normalise: Normalise = "filter",
    ignore: Sequence[Ignored] = DEFAULT_IGNORE,
) -> dict[str, Tensor]:
    """A Gaussian direction from `seed`, normalised to the weights.

    d ~ N(0, I) is drawn for every parameter in order, moved or not, so that what is ignored does not change
    the rest; then `normalise_direction` applies. Frozen parameters and buffers never move.
    """
    moved = [info for info in infos if info.trainable and info.role not in ignore]
    refuse_immobile(moved, infos, ignore)
    names = {info.name for info in moved}
    generator, found = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    for info in infos:
        drawn = torch.randn(info.shape, generator=generator, dtype=torch.float32)
        if info.name in names:
            # Tensor by tensor where that gives the same, so that a large model's float64 never exists all at once.
            alone = normalise != "model"
            found |= normalise_direction({info.name: drawn}, origin, [info], normalise) if alone else {info.name: drawn}
    return normalise_direction(found, origin, moved, "model") if normalise == "model" else found


def refuse_immobile(moved: Sequence[ParameterInfo], infos: Sequence[ParameterInfo], ignore: Sequence[str]) -> None:
    if moved:
        return
    frozen = sum(not info.trainable for info in infos)
    raise JobError(
        f"directions: no parameter moves: of {len(infos)} {frozen} are frozen and the rest falls under "
        f"ignore: [{', '.join(ignore)}]; unfreeze some (requires_grad) or ignore less"
    )


def normalise_direction(
    direction: State, origin: State, infos: Sequence[ParameterInfo], normalise: Normalise
) -> dict[str, Tensor]:
    """Scale a direction to the weights w of the origin (Li et al. 2018), in float64, rounded to float32 once.

    filter: d_f · ‖w_f‖/(‖d_f‖+ε) per output filter · layer: the same per tensor · model: the same over all
    moved tensors · none: as it is. ε = 1e-10, so zero weights give a zero direction and never NaN.
    """
    if normalise == "none":
        return {name: tensor.float() for name, tensor in direction.items()}
    moved = {info.name: info for info in infos if info.name in direction}
    weights = {name: origin[name] for name in moved}
    if normalise == "filter":
        scaled = {name: scale_to_filters(direction[name], weights[name], info) for name, info in moved.items()}
    elif normalise == "layer":
        scaled = {
            name: tensor.double() * _ratio({name: weights[name]}, {name: tensor}) for name, tensor in direction.items()
        }
    else:
        ratio = _ratio(weights, direction)
        scaled = {name: tensor.double() * ratio for name, tensor in direction.items()}
    return {name: tensor.float() for name, tensor in scaled.items()}


def _ratio(weights: State, direction: State) -> float:
    return norm(weights) / (norm(direction) + EPSILON)


def towards_direction(origin: State, target: State) -> dict[str, Tensor]:
    """d = θ_target − θ₀, buffers included, so that coordinate 1 is the target network as a whole.

    Integer buffers (counters) stay at the origin's. Frozen parameters move where the two differ: the far end
    would be no network that was ever trained otherwise.
    """
    # Infinity minus infinity is NaN: a mask that both have does not move.
    steps = difference(target, origin).items()
    moved = {name: step.masked_fill(target[name] == origin[name], 0.0).float() for name, step in steps}
    bad = [name for name, tensor in moved.items() if not bool(torch.isfinite(tensor).all())]
    if bad:
        raise JobError(f"directions: the target must be finite; {bad[0]} holds NaN or infinity")
    found = {name: tensor for name, tensor in moved.items() if bool(tensor.any())}
    if not found:
        raise JobError("directions: the target has the same weights as the origin; name another target or origin")
    return found


def supplied_direction(
    tensors: State,
    origin: State,
    infos: Sequence[ParameterInfo],
    what: str,
    normalise: Normalise = "none",
    ignore: Sequence[Ignored] = (),
) -> dict[str, Tensor]:
    """A direction from a file: one finite tensor per parameter, tied ones once, nothing missing or extra."""
    shapes = {info.name: info.shape for info in infos}
    refuse_mismatch(
        what,
        [name for name in shapes if name not in tensors],
        [name for name in tensors if name not in shapes],
        [
            f"{name} {tuple(tensors[name].shape)} where the model has {shape}"
            for name, shape in shapes.items()
            if name in tensors and tuple(tensors[name].shape) != shape
        ],
    )
    bad = [name for name in shapes if not bool(torch.isfinite(tensors[name]).all())]
    if bad:
        raise JobError(f"{what}: must be finite; {bad[0]} holds NaN or infinity")
    still = [name for name in shapes if not origin[name].is_floating_point()]
    odd = next((name for name in still if bool(tensors[name].any())), None)
    if odd is not None:
        raise JobError(
            f"{what}: must be zero for {odd}, which is {str(origin[odd].dtype).removeprefix('torch.')}: only real "
            "floating-point weights move"
        )
    moved = [info for info in infos if info.role not in ignore and info.name not in still]
    found = normalise_direction({info.name: tensors[info.name] for info in moved}, origin, moved, normalise)
    if not any(bool(tensor.any()) for tensor in found.values()):
        raise JobError(f"{what}: is zero for every parameter that moves; give a direction of some length")
    return found


@dataclass(frozen=True)
class PrincipalComponents:
    """PCA of a trajectory: unit `components`, the variance each explains, and that of a random walk."""

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
    """
    lengths = [norm({name: snapshot[name] for name in names}) for snapshot in snapshots]
    diverged = [str(k + 1) for k, length in enumerate(lengths) if not math.isfinite(length)]
    if diverged:
        raise JobError(
            f"trajectory: its weights must be finite; of the {len(snapshots)} snapshots number {', '.join(diverged)} "
            "holds NaN or infinity, as training diverged; list others"
        )
    values, vectors = np.linalg.eigh(_gram(snapshots, names))
    values, vectors = values[::-1].clip(min=0), vectors[:, ::-1]
    total = float(values.sum())
    least = max(RANK_TOLERANCE * values[0], (ROUNDING * max(lengths)) ** 2)
    rank = int((values > least).sum())
    if rank < count:
        raise JobError(
            f"trajectory: its {len(snapshots)} snapshots span {rank} direction{'s' * (rank != 1)}, PCA onto {count} "
            "needs as many; list more or other snapshots"
        )
    weights = vectors[:, :count] / np.sqrt(values[:count])
    weights = weights * np.where(vectors[-1, :count] >= vectors[0, :count], 1.0, -1.0)
    components = tuple(_weighted_sum(snapshots, names, weights[:, k]) for k in range(count))
    walk = random_walk_variance(len(snapshots))
    return PrincipalComponents(
        components, tuple(float(value) / total for value in values[:count]), tuple(walk[:count].tolist())
    )


def _gram(snapshots: Sequence[State], names: Sequence[str]) -> Floats:
    """X·Xᵀ of the centred snapshots, one tensor at a time, so that no second copy of all of them exists."""
    gram = np.zeros((len(snapshots), len(snapshots)))
    for name in names:
        rows = torch.stack([snapshot[name].reshape(-1).double() for snapshot in snapshots])
        rows = rows - rows.mean(0)
        gram += (rows @ rows.T).numpy()
    return gram


def _weighted_sum(snapshots: Sequence[State], names: Sequence[str], weights: Floats) -> dict[str, Tensor]:
    """Σᵢ wᵢ·(θᵢ − θ̄), normalised to unit length over all tensors and rounded to float32."""
    scale = torch.from_numpy(weights - weights.mean())
    found = {
        name: torch.tensordot(scale, torch.stack([snapshot[name].double() for snapshot in snapshots]), 1)
        for name in names
    }
    length = norm(found)
    return {name: (tensor / length).float() for name, tensor in found.items() if bool(tensor.any())}


def random_walk_variance(snapshots: int) -> Floats:
    """Expected explained variance of PCA on a random walk of as many snapshots, in infinitely many dimensions.

    There the Gram matrix of the centred walk tends to H·S·Sᵀ·H, S the lower triangle of ones (cumulated
    unit steps) and H the centring matrix; its eigenvalues over their sum are the fractions. They tend to
    6/(π²k²): 60.8 %, 15.2 %, … (Antognini and Sohl-Dickstein 2018).
    """
    steps = np.tril(np.ones((snapshots, snapshots)))
    steps[:, 0] = 0  # the walk starts somewhere: its first row is no step
    centring = np.eye(snapshots) - 1 / snapshots
    values = np.linalg.eigvalsh(centring @ steps @ steps.T @ centring)[::-1].clip(min=0)
    return np.asarray(values / values.sum(), np.float64)


def project(point: State, origin: State, directions: Sequence[State], names: Sequence[str]) -> tuple[Floats, float]:
    """Least-squares coordinates of θ on the plane θ₀ + Σ cₖ·dₖ, and its distance off that plane.

    c = argmin ‖(θ − θ₀) − Σ cₖ·dₖ‖ from the normal equations over the parameters `names`, in float64.

    Raises:
        JobError: the axes are parallel, so that coordinates on them mean nothing.
    """
    offset = {name: point[name].double() - origin[name].double() for name in names}
    plane = [{name: each[name] for name in names if name in each} for each in directions]
    matrix = gram_matrix(plane)
    if np.linalg.eigvalsh(cosines(plane))[0] < PARALLEL:
        raise JobError("directions: two axes are parallel, so they span no plane; name other components or snapshots")
    right = np.array([dot(each, offset) for each in plane])
    coordinates = np.linalg.solve(matrix, right)
    for coordinate, direction in zip(coordinates, plane, strict=True):
        for name, tensor in direction.items():
            offset[name] = offset[name] - float(coordinate) * tensor.double()
    return coordinates, norm(offset)


def gram_matrix(directions: Sequence[State]) -> Floats:
    """Inner products ⟨dⱼ, dₖ⟩ in float64; a tensor that a direction lacks is zero."""

    def inner(first: State, second: State) -> float:
        shared = {name: tensor for name, tensor in first.items() if name in second}
        return dot(shared, second)

    return np.array([[inner(first, second) for second in directions] for first in directions])


def cosines(directions: Sequence[State]) -> Floats:
    """The cosine between each two axes: ⟨dⱼ, dₖ⟩ / (‖dⱼ‖·‖dₖ‖)."""
    matrix = gram_matrix(directions)
    lengths = np.sqrt(np.diag(matrix))
    return np.asarray(np.clip(matrix / np.outer(lengths, lengths), -1, 1), np.float64)
