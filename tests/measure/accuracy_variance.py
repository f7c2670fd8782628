"""What would lower the error of a picture for fewer evaluations: each idea by itself, on one of two networks.

    python tests/measure/accuracy_variance.py FOLDER [lenet | resnet20] [--samples 1024]

(a) Control variates: the share of the variance of rises that is left after regression on every sample's slopes and
curvatures at the origin, against the rises at 8 and at 24 other points. (b) Strata: what is left within 64 strata by
the loss and by the slopes at the origin. (c) Values and slopes: points that interpolation needs with and without the
slopes along both axes, and what these cost by forward mode. (d) bfloat16: seconds against float32, and the share of
the variance in the difference of both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accuracy import NETWORKS, SHARED, first_of, job_of
from torch import nn

from landscape.compute.plans import make_evaluator
from landscape.compute.prepare import prepare
from landscape.surface.accuracy import blocks_with

STEP = 1 / 32  # of differences at the origin
NEAR = STEP * np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]])
RINGS = ((0.0, 0.25), (0.25, 0.5), (0.5, 1.0))  # of the largest coordinate
STRATA = 4  # per criterion
LENGTHS = np.geomspace(0.2, 4.0, 25)  # of the kernel; each way to interpolate takes the one that suits it best


def grid_of(size: int) -> np.ndarray:
    """The points [size², 2] of an even grid over [−1, 1]."""
    along = np.linspace(-1, 1, size)
    return np.stack(np.meshgrid(along, along, indexing="ij"), axis=-1).reshape(-1, 2)


def rises(
    name: str, folder: Path, data: Path, points: np.ndarray, samples: int, **job: object
) -> tuple[np.ndarray, float]:
    """The rises [points, samples], and the seconds that they took."""
    made = job_of(name, folder, data, accuracy="50%")
    prepared = prepare(made.replace(**job) if job else made)
    evaluator = make_evaluator(prepared, prepared.landscapes[0])
    blocks = range(blocks_with(samples, np.array(evaluator.block_ends)))
    evaluator.evaluate_blocks([(points[:1], blocks)])
    begun = time.perf_counter()
    (values,) = evaluator.evaluate_blocks([(points, blocks)])
    return values.samples.losses.astype(np.float64), time.perf_counter() - begun


def left_by(controls: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The share of the variance of each row of `values` that least squares on the rows of `controls` leaves."""
    centred, own = (rows - rows.mean(axis=1, keepdims=True) for rows in (controls, values))
    beta, *_ = np.linalg.lstsq(centred.T, own.T, rcond=1e-8)
    residual, count = own.T - centred.T @ beta, values.shape[1]
    return np.square(residual).sum(axis=0) / np.square(own).sum(axis=1) * (count - 1) / (count - 1 - len(controls))


def left_within(strata: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The share of the variance of each row of `values` that is within strata of the samples."""
    within = sum(np.square(part - part.mean(axis=1, keepdims=True)).sum(axis=1)
                 for part in (values[:, strata == k] for k in np.unique(strata)))  # fmt: skip
    return within / np.square(values - values.mean(axis=1, keepdims=True)).sum(axis=1)


def by_ring(points: np.ndarray, shares: np.ndarray) -> list[float]:
    """The mean share of the points of each ring."""
    far = np.abs(points).max(axis=1)
    return [round(float(shares[(far > low) & (far <= high)].mean()), 3) for low, high in RINGS]


def interpolated(
    points: np.ndarray, values: np.ndarray, slopes: np.ndarray | None, at: np.ndarray, length: float
) -> np.ndarray:
    """Values at other points by a Gaussian process, exact at the values and at the slopes [points, 2] if given."""

    def kernel(a: np.ndarray, b: np.ndarray, of_a: bool, of_b: bool) -> np.ndarray:
        apart = (a[:, None] - b[None]) / length
        base = np.exp(-0.5 * np.square(apart).sum(axis=-1))
        blocks = [[base]]
        if of_b:
            blocks[0] += [base * apart[..., k] / length for k in (0, 1)]
        if of_a:
            for k in (0, 1):
                row = [-base * apart[..., k] / length]
                if of_b:
                    row += [base * ((k == m) - apart[..., k] * apart[..., m]) / length**2 for m in (0, 1)]
                blocks.append(row)
        return np.block(blocks)

    with_slopes = slopes is not None
    known = np.concatenate([values - values.mean(), *([] if slopes is None else slopes.T)])
    gram = kernel(points, points, with_slopes, with_slopes)
    gram[np.diag_indices(len(gram))] += 1e-9 * gram.diagonal().mean()
    return values.mean() + kernel(at, points, False, with_slopes) @ np.linalg.solve(gram, known)


def best_error(
    points: np.ndarray, values: np.ndarray, slopes: np.ndarray | None, at: np.ndarray, truth: np.ndarray
) -> float:
    """The 95th percentile of the error, with the length that makes it least."""
    found = (np.percentile(np.abs(interpolated(points, values, slopes, at, length) - truth), 95) for length in LENGTHS)
    return float(min(found))


def cost_of_slopes(problem: object) -> float:
    """Seconds for the loss and its slopes along two directions by forward mode, over those for the loss."""
    from torch.func import functional_call, jvp, vmap

    model, inputs, targets = problem.model.eval(), *first_of(problem, 256)
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    rest = dict(model.named_buffers())
    tangents = {name: torch.randn(2, *tensor.shape) for name, tensor in weights.items()}

    def loss(moved: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(
            functional_call(model, {**moved, **rest}, (inputs,)), targets, reduction="none"
        )

    def both() -> object:
        return vmap(lambda tangent: jvp(loss, (weights,), (tangent,)))(tangents)

    def one_by_one() -> object:
        return [jvp(loss, (weights,), ({name: rows[k] for name, rows in tangents.items()},)) for k in (0, 1)]

    with torch.no_grad():
        plain = seconds_of(lambda: loss(weights))
        return min(seconds_of(both), seconds_of(one_by_one)) / plain


def seconds_of(call: Callable[[], object]) -> float:
    """The least of five times."""
    call()
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("network", choices=["lenet", "resnet20"])
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--data", type=Path, default=SHARED)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    at_points = partial(rises, options.network, options.folder, options.data, samples=options.samples)
    problem = NETWORKS[options.network](options.folder, options.data)

    points = grid_of(9)
    values, _ = at_points(points)
    moved = np.abs(points).max(axis=1) > 0
    right, left, up, down, corner, other = at_points(NEAR)[0]
    slopes = [(right - left) / (2 * STEP), (up - down) / (2 * STEP)]
    bends = [(right + left) / STEP**2, (up + down) / STEP**2, (corner + other - right - left - up - down) / STEP**2]
    print("(a) share of the variance left, within 0.25, to 0.5, to 1 of the origin", flush=True)
    left_over = left_by(np.stack([*slopes, *bends]), values[moved])
    print("  by slopes and curvatures at the origin:", by_ring(points[moved], left_over))
    for size in (3, 5):
        controls = np.array([(np.isclose(grid_of(size), point).all(axis=1)).any() for point in points]) & moved
        rest = moved & ~controls
        print(
            f"  by the rises at {controls.sum()} points:",
            by_ring(points[rest], left_by(values[controls], values[rest])),
        )

    with torch.no_grad():
        batch = tuple(first_of(problem, values.shape[1]))
        at_origin = problem.observe(problem.model.eval(), batch)["loss"].double().numpy()
    strata = np.zeros(len(at_origin), int)
    for criterion in (at_origin, *slopes):
        ranks = np.argsort(np.argsort(criterion, kind="stable"))
        strata = strata * STRATA + ranks * STRATA // len(ranks)
    print(
        f"(b) within {len(np.unique(strata))} strata:",
        by_ring(points[moved], left_within(strata, values[moved])),
        flush=True,
    )

    at = np.random.default_rng(1).uniform(-1, 1, (200, 2))
    truth = at_points(at)[0].mean(axis=1)
    relief = float(np.subtract(*np.percentile(truth, [95, 5])))
    print("(c) error of interpolation in per cent of the relief, points: values alone, with slopes")
    for size in (3, 4, 5, 6, 7, 8, 9):
        places = grid_of(size)
        means = at_points(places)[0].mean(axis=1)
        ends = [at_points(places + sign * STEP * np.eye(2)[k])[0].mean(axis=1) for k in (0, 1) for sign in (1, -1)]
        found = np.stack([(ends[0] - ends[1]) / (2 * STEP), (ends[2] - ends[3]) / (2 * STEP)], axis=1)
        errors = [100 * best_error(places, means, with_slopes, at, truth) / relief for with_slopes in (None, found)]
        print(f"  {size} × {size}: {errors[0]:.2f}, {errors[1]:.2f}", flush=True)
    print(f"  slopes along two axes by forward mode cost {cost_of_slopes(problem):.2f} values", flush=True)

    print("(d) bfloat16 over float32")
    few = points[moved][::4]
    exact, seconds = at_points(few)
    coarse, coarse_seconds = at_points(few, precision="bfloat16")
    shares = np.var(coarse - exact, axis=1) / np.var(exact, axis=1)
    print(json.dumps({"seconds": round(coarse_seconds / seconds, 2), "variance": by_ring(few, shares)}))


if __name__ == "__main__":
    main()
