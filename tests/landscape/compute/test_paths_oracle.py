"""Paths of two and three runs beside plain numpy in float64: components by SVD, places, distances, losses, planes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import (
    conv_problem,
    flat,
    make_job,
    quadratic_loss,
    quadratic_problem,
    quadratic_samples,
    wandering,
    write_trajectory,
)

from landscape import run
from landscape.compute.prepare import prepare
from landscape.store.format import PathPlan

NAMES = ["matrix", "vector", "scalar"]
LENGTHS = {2: {"a": 6, "b": 3}, 3: {"a": 6, "b": 3, "c": 9}}
CLOSE = 1e-6  # of the longest path: axes are stored in float32


def trained(folder: Path, problem: Any, names: list[str], lengths: dict[str, int]) -> dict[str, np.ndarray]:
    """Runs of several lengths from one start, which is their snapshot 0; their weights as float64 rows."""
    start = {name: tensor.detach().clone() for name, tensor in problem.model.state_dict().items()}
    rows = {}
    for seed, (name, count) in enumerate(lengths.items()):
        states = {0: start, **wandering(problem.model, count, 0.1 * (seed + 1), seed=seed)}
        if "curvature" in start:  # a buffer of the problem, which no training moves
            states = {number: {**state, "curvature": start["curvature"]} for number, state in states.items()}
        write_trajectory(folder / name, states, "step" if seed % 2 else "epoch")
        rows[name] = np.stack([flat(state, names) for state in states.values()])
    return rows


def components(rows: dict[str, np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first right singular vectors of all centred rows, and the share of the variance that each explains."""
    union = np.concatenate(list(rows.values()))
    _, singular, axes = np.linalg.svd(union - union.mean(0), full_matrices=False)
    first = next(iter(rows.values()))
    signs = np.where(axes[:count] @ (first[-1] - first[0]) >= 0, 1, -1)
    return axes[:count] * signs[:, None], (singular**2 / (singular**2).sum())[:count]


def path_on(folder: Path, spec: dict[str, Any], problem: Any) -> tuple[Any, PathPlan]:
    """A landscape as it is prepared, and its path."""
    (folder / "run").mkdir(exist_ok=True)
    prepared = prepare(make_job(folder / "run", lambda: problem, [spec]).in_folder(folder / "run")).landscapes[0]
    assert prepared.path is not None
    return prepared, prepared.path


@pytest.mark.parametrize(("runs", "axes"), [(2, 1), (2, 2), (3, 2), (3, 3)])
def test_places_and_distances_on_the_components_of_several_runs_are_those_of_an_svd(tmp_path, runs, axes):
    rows = trained(tmp_path, quadratic_problem(), NAMES, LENGTHS[runs])
    spec = {"name": "pca", "paths": [f"../{name}" for name in rows], "axes": axes, "size": 4}
    prepared, path = path_on(tmp_path, spec, quadratic_problem())
    directions, shares = components(rows, axes)
    offsets = np.concatenate(list(rows.values())) - rows["a"][-1]
    places = offsets @ directions.T
    scale = np.linalg.norm(offsets, axis=1).max()
    np.testing.assert_allclose(path.coordinates, places, atol=CLOSE * scale)
    np.testing.assert_allclose(path.distance, np.linalg.norm(offsets - places @ directions, axis=1), atol=CLOSE * scale)
    assert path.run == tuple(k for k, part in enumerate(rows.values()) for _ in part)
    for k, axis in enumerate(prepared.directions):
        assert axis.attributes["explained_variance"] == pytest.approx(shares[k], rel=1e-9)
    for record, part in zip(path.runs, rows.values(), strict=True):
        away = part - part.mean(0)
        assert record.shown == pytest.approx(((away @ directions.T) ** 2).sum() / (away**2).sum(), rel=CLOSE)


def test_losses_of_a_grid_that_is_not_square_and_of_three_paths_are_those_of_the_closed_form(tmp_path):
    rows, problem = trained(tmp_path, quadratic_problem(), NAMES, LENGTHS[3]), quadratic_problem()
    spec = {"name": "pca", "paths": ["../a", "../b", "../c"], "size": [5, 3]}
    (tmp_path / "run").mkdir()
    surface = run(make_job(tmp_path / "run", lambda: problem, [spec]).in_folder(tmp_path / "run"))["pca"]
    samples, curvature = quadratic_samples().double().numpy(), problem.model.curvature.double().numpy()
    directions, _ = components(rows, 2)
    origin = rows["a"][-1]

    def loss_at(alpha: float, beta: float) -> float:
        return quadratic_loss(origin + alpha * directions[0] + beta * directions[1], samples, curvature)

    assert surface.loss.shape == (3, 5)
    expected = [[loss_at(alpha, beta) for alpha in surface.alpha] for beta in surface.beta]
    np.testing.assert_allclose(surface.loss, expected, rtol=1e-5)
    for path, part in zip(surface.paths, rows.values(), strict=True):
        np.testing.assert_allclose(path.loss, [quadratic_loss(row, samples, curvature) for row in part], rtol=1e-5)
        below = [loss_at(*((row - origin) @ directions.T)) for row in part]
        np.testing.assert_allclose(path.projected_loss, below, rtol=1e-5)


@pytest.mark.parametrize("make", [quadratic_problem, conv_problem])
def test_the_ends_of_three_runs_lie_on_their_plane_in_their_true_triangle(tmp_path, make):
    """With batch norm, too, whose running statistics move along and count in no length."""
    problem = make()
    names = [name for name, _ in problem.model.named_parameters()]
    rows = trained(tmp_path, problem, names, LENGTHS[3])
    spec = {"name": "ends", "plane": ["../a@last", "../b@last", "../c@last"], "paths": ["../a", "../b", "../c"]}
    _, path = path_on(tmp_path, spec, problem)
    ends = np.stack([part[-1] for part in rows.values()])
    last = np.cumsum([len(part) for part in rows.values()]) - 1
    sides = [(0, 1), (1, 2), (2, 0)]
    lengths = np.array([np.linalg.norm(ends[i] - ends[j]) for i, j in sides])
    assert path.distance[last].max() <= CLOSE * lengths.min()
    found = [np.linalg.norm(path.coordinates[last[i]] - path.coordinates[last[j]]) for i, j in sides]
    np.testing.assert_allclose(found, lengths, rtol=CLOSE)
    basis, _ = np.linalg.qr((ends[1:] - ends[0]).T)
    offsets = np.concatenate(list(rows.values())) - ends[0]
    far = np.linalg.norm(offsets - offsets @ basis @ basis.T, axis=1)
    np.testing.assert_allclose(path.distance[: len(far)], far, atol=CLOSE * lengths.max())
