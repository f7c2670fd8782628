"""Several axes together: the angles between them, and where a set of weights lies on the plane that they span."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.model.parameters import State, dot, norm

PARALLEL = 1e-7  # the least singular value of unit axes that still span a plane


def project(point: State, origin: State, directions: Sequence[State], names: Sequence[str]) -> tuple[Floats, float]:
    """Least-squares coordinates of θ on the plane θ₀ + Σ cₖ·dₖ, and its distance off that plane.

    c = argmin ‖(θ − θ₀) − Σ cₖ·dₖ‖ from the normal equations over the parameters `names`, in float64.

    Returns:
        The coordinates [axes], and the Euclidean distance in weight space.

    Raises:
        JobError: the axes are parallel, so that coordinates on them mean nothing.

    >>> import torch
    >>> axes = [{"w": torch.tensor([2.0, 0.0, 0.0])}, {"w": torch.tensor([0.0, 1.0, 0.0])}]
    >>> project({"w": torch.tensor([4.0, 1.0, 3.0])}, {"w": torch.zeros(3)}, axes, ["w"])
    (array([2., 1.]), 3.0)
    """
    offset = {name: point[name].double() - origin[name].double() for name in names}
    plane = [{name: direction[name] for name in names if name in direction} for direction in directions]
    matrix = gram_matrix(plane)
    if np.linalg.eigvalsh(cosines(plane))[0] < PARALLEL:
        raise JobError("directions: two axes are parallel, so they span no plane; name other components or snapshots")
    right = np.array([dot(direction, offset) for direction in plane])
    coordinates = np.linalg.solve(matrix, right)
    for coordinate, direction in zip(coordinates, plane, strict=True):
        for name, tensor in direction.items():
            offset[name] = offset[name] - float(coordinate) * tensor.double()
    return coordinates, norm(offset)


def gram_matrix(directions: Sequence[State]) -> Floats:
    """Inner products ⟨dⱼ, dₖ⟩ [axes, axes] in float64; a tensor that a direction lacks is zero."""

    def shared_product(first: State, second: State) -> float:
        shared = {name: tensor for name, tensor in first.items() if name in second}
        return dot(shared, second)

    return np.array([[shared_product(first, second) for second in directions] for first in directions], np.float64)


def cosines(directions: Sequence[State]) -> Floats:
    """The cosine between each two axes: ⟨dⱼ, dₖ⟩ / (‖dⱼ‖·‖dₖ‖), as [axes, axes]; 0 where one of them is zero.

    A filter-normalised direction is zero where all weights are.
    """
    matrix = gram_matrix(directions)
    lengths = np.sqrt(np.diag(matrix))
    products = np.outer(lengths, lengths)
    quotients = np.divide(matrix, products, out=np.zeros_like(matrix), where=products > 0)
    return np.asarray(np.clip(quotients, -1, 1), np.float64)
