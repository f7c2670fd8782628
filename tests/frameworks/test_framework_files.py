"""Files that other software itself wrote here: each value of a landscape is that of its function at its coordinates."""

from __future__ import annotations

import copy
from pathlib import Path

import landscaper
import loss_landscapes
import numpy as np
import pytest
import torch
from loss_landscapes.metrics import Metric
from pyhessian import hessian
from torch import nn

from landscape import Surface, import_surface, open_run

pytestmark = pytest.mark.frameworks

CENTER = torch.tensor([3.0, 4.0, 12.0])  # of length 13
FIRST, SECOND = torch.tensor([1.0, 2.0, 2.0]) / 3, torch.tensor([2.0, 1.0, -2.0]) / 3


def model(at: torch.Tensor = CENTER) -> nn.Module:
    """Three weights, the places of a loss of two of them."""
    network = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        network.weight.copy_(at[None])
    return network


def moved(weights: torch.Tensor) -> tuple[float, float]:
    """How far weights lie from the center along both directions."""
    return float((weights.flatten() - CENTER) @ FIRST), float((weights.flatten() - CENTER) @ SECOND)


def bowl(x: float, y: float) -> float:
    return x**2 + 3 * y**2 + x * y


class Bowl(Metric):
    """The loss, and the weights at which it was asked for, in the order of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.visited: list[torch.Tensor] = []

    def __call__(self, wrapper) -> float:
        self.visited.append(wrapper.modules[0].weight.detach().flatten().clone())
        return bowl(*moved(self.visited[-1]))


def evaluated(surface: Surface) -> dict[tuple[float, ...], float]:
    """The loss at each point that was computed, by its coordinates, alpha first."""
    axes = [axis.coordinates for axis in reversed(surface.axes)]
    places = np.stack(np.meshgrid(*axes, indexing="ij")[::-1], -1)
    known = surface.status == 1
    return {tuple(place): loss for place, loss in zip(places[known], surface.loss[known], strict=True)}


@pytest.mark.parametrize("steps", [5, 6])
def test_planar_interpolation_has_each_value_at_its_two_fractions(steps, tmp_path):
    ends = model(CENTER + 2 * FIRST), model(CENTER + 5 * SECOND)
    np.save(tmp_path / "plane.npy", loss_landscapes.planar_interpolation(model(), *ends, Bowl(), steps, True))
    import_surface(tmp_path / "plane.npy", tmp_path / "run", made_by="planar_interpolation")
    found = evaluated(open_run(tmp_path / "run")["plane"])
    assert len(found) == steps**2
    for (first, second), loss in found.items():
        assert loss == pytest.approx(bowl(2 * first, 5 * second), abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"distance": 3.0}])
def test_random_plane_has_each_value_where_its_weights_were(options, tmp_path):
    torch.manual_seed(0)
    metric = Bowl()
    plane = loss_landscapes.random_plane(model(), metric, steps=6, deepcopy_model=True, **options)
    np.savez(tmp_path / "plane.npz", plane)
    import_surface(tmp_path / "plane.npz", tmp_path / "run", made_by="random_plane", **options)
    surface = open_run(tmp_path / "run")["plane"]
    # Which directions were drawn is known of the places alone: these two points are one step of each from the first.
    start, second, first = metric.visited[0], metric.visited[1], metric.visited[11]
    step = 1 / (6 * options.get("distance", 1.0))
    directions = torch.stack([first - start + second - start, second - start]) / step
    assert directions[1].norm() == pytest.approx(13, rel=1e-4), "of the length of the weights"
    found = evaluated(surface)
    assert len(found) == 36
    for place, loss in found.items():
        weights = CENTER + torch.tensor(place, dtype=torch.float32) @ directions
        assert loss == pytest.approx(bowl(*moved(weights)), rel=1e-4, abs=1e-3)
    assert surface.origin_loss == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("made_by", ["linear_interpolation", "random_line"])
def test_a_line_begins_one_step_from_its_start(made_by, tmp_path):
    torch.manual_seed(0)
    metric = Bowl()
    ends = [model(CENTER + 2 * FIRST)] if made_by == "linear_interpolation" else []
    line = getattr(loss_landscapes, made_by)(model(), *ends, metric, steps=8, deepcopy_model=True)
    np.save(tmp_path / "line.npy", line)
    import_surface(tmp_path / "line.npy", tmp_path / "run", made_by=made_by)
    surface = open_run(tmp_path / "run")["line"]
    lengths = [float((weights - CENTER).norm()) for weights in metric.visited]
    assert surface.alpha * (2 if ends else 13) == pytest.approx(lengths, rel=1e-4)
    assert (surface.loss == line).all()


@pytest.mark.parametrize(("steps", "dimensions"), [(4, 2), (5, 2), (3, 3)])
def test_landscaper_has_its_first_direction_along_alpha(steps, dimensions, tmp_path):
    directions = [[direction[None].clone()] for direction in (FIRST, SECOND, torch.linalg.cross(FIRST, SECOND))]

    def loss(network: nn.Module, _: object) -> float:
        return bowl(*moved(network.weight.detach())) - 100 * float(network.weight.detach().norm())

    made = landscaper.LossLandscape.compute(
        model(), None, directions, loss, steps=steps, distance=0.5, dim=dimensions, device="cpu"
    )
    made.save(str(tmp_path / "saved.npz"))
    import_surface(tmp_path / "saved.npz", tmp_path / "run")
    reported = open_run(tmp_path / "run")["saved"]
    for axis in reported.axes:
        assert axis.coordinates == pytest.approx(np.linspace(-0.5, 0.5, steps))
    import_surface(tmp_path / "saved.npz", tmp_path / "run", "visited", made_by="landscaper")
    surface = open_run(tmp_path / "run")["visited"]
    found = evaluated(surface)
    noisy = max(found.values())  # Landscaper adds noise to the largest value
    for place, value in found.items():
        offsets = 13 * torch.tensor(place, dtype=torch.float32)
        weights = CENTER + sum(offset * way[0][0] for offset, way in zip(offsets, directions, strict=False))
        if value != noisy:
            assert value == pytest.approx(loss(model(weights), None), rel=1e-4, abs=1e-2)


def test_a_script_with_pyhessian_has_the_curvature_that_it_found(tmp_path: Path):
    """As in its tutorial: the loss along the first eigenvector, whose second derivative is the first eigenvalue."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(64, 3), torch.randn(64, 1)
    network, criterion = nn.Linear(3, 1), nn.MSELoss()
    computed = hessian(network, criterion, data=(inputs, targets), cuda=False)
    eigenvalues, eigenvectors = computed.eigenvalues(maxIter=500, tol=1e-7)
    lams, loss_list = np.linspace(-0.5, 0.5, 21).astype(np.float32), []
    perturbed = copy.deepcopy(network)
    for lam in lams:
        for there, here, direction in zip(perturbed.parameters(), network.parameters(), eigenvectors[0], strict=True):
            there.data = here.data + float(lam) * direction
        loss_list.append(criterion(perturbed(inputs), targets).item())
    np.savez(tmp_path / "top.npz", lams=lams, loss_list=loss_list)
    import_surface(tmp_path / "top.npz", tmp_path / "run")
    surface = open_run(tmp_path / "run")["top"]
    assert surface.loss.tolist() == loss_list
    half_curvature, _, at_origin = np.polyfit(surface.alpha, surface.loss, 2)
    assert 2 * half_curvature == pytest.approx(eigenvalues[0], rel=1e-3)
    assert at_origin == pytest.approx(surface.origin_loss, rel=1e-5)
