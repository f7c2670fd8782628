"""The density of the spectrum by stochastic Lanczos quadrature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from landscape.compute.algebra import Floats
from landscape.compute.lanczos import lanczos
from landscape.job.directions.file import STEPS

RUNS = 10


@dataclass(frozen=True)
class Density:
    """Nodes θ and weights of several quadratures: φ(t) ≈ mean over runs of Σₖ wₖ·δ(t − θₖ), with Σₖ wₖ = 1.

    Attributes:
        nodes, weights: float64 [runs, steps].
    """

    nodes: Floats
    weights: Floats

    def moment(self, power: int) -> Floats:
        """Σ wₖ·θₖ^power of each run, [runs]: each is an unbiased estimate of tr(H^power)/P."""
        return np.asarray((self.weights * self.nodes**power).sum(1), np.float64)

    def smooth(self, places: Floats, width: float) -> Floats:
        """φ at some places, each node a normal density of that standard deviation: a matter of the drawing."""
        distance = (places[:, None] - self.nodes.reshape(1, -1)) / width
        height = np.exp(-0.5 * distance**2) / (width * np.sqrt(2 * np.pi))
        return np.asarray((height * self.weights.reshape(1, -1)).sum(1) / len(self.nodes), np.float64)

    def share(self, low: float, high: float) -> float:
        """The share of the eigenvalues between two values."""
        inside = (self.nodes >= low) & (self.nodes <= high)
        return float((self.weights * inside).sum() / len(self.nodes))


def density(
    product: Callable[[Floats], Floats], size: int, runs: int = RUNS, steps: int = STEPS, seed: int = 0
) -> Density:
    """Nodes and weights of `runs` Lanczos quadratures of `steps` steps from random unit vectors.

    T = YΘYᵀ of each run; θₖ are the nodes, y₁ₖ² the weights (Ubaru, Chen, Saad 2017; Ghorbani et al. 2019).
    """
    steps = min(steps, size)
    nodes, weights = np.zeros((runs, steps)), np.zeros((runs, steps))
    for k in range(runs):
        # Signs instead of Gaussians: unbiased for the trace of every power of H, of unit length after one division.
        start: Floats = np.random.default_rng([seed, k, 2]).integers(0, 2, size).astype(np.float64) * 2 - 1
        krylov = lanczos(product, size, (), seed=seed, start=start, steps=steps)
        values, _, vectors = krylov.ritz_values()
        nodes[k], weights[k] = values, vectors[0] ** 2
    return Density(nodes, weights)
