"""The sign of the smallest eigenvalue in convexity maps, against dense Hessians of eight small networks in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from signed_networks import COUNT, NETWORKS, dense_hessian, network, problem_of
from small_models import make_job, raw_directions

from landscape import open_run, run
from landscape.curvature import lanczos
from landscape.record import UNDECIDED, YES, ZERO
from landscape.record.convexity import ENDS, NO
from landscape.surface import Surface
from landscape.views import figure, plot
from landscape.views.prepared.figure_data import prepare_figure
from landscape.views.prepared.scale import NO_SIGN

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch.func itself
ROUNDED = 3e-7  # of the largest eigenvalue: what the rounding of float32 may move an eigenvalue by


@dataclass(frozen=True)
class Judged:
    """A map beside the dense Hessians: λmin and max abs(λ) at each point."""

    surface: Surface
    smallest: np.ndarray
    largest: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        """Where a sign that is decided is another one than that of the dense Hessian."""
        negative, share = self.surface["eig_negative"], self.smallest / self.largest
        return ((negative == YES) & (share >= 0)) | ((negative == NO) & (share < -ZERO - ROUNDED))

    def row(self, name: str, epochs: int) -> str:
        """A line of the table."""
        negative, total = self.surface["eig_negative"], self.smallest.size
        counts = [int((negative == each).sum()) for each in (YES, NO, UNDECIDED)]
        return (
            f"{name:<12} {epochs:>5} steps: {total} cells, {total - counts[2]} decided ({counts[0]} negative, "
            f"{counts[1]} not), {int(self.wrong.sum())} wrong"
        )


def judged(folder: Path, name: str, epochs: int, size: int, precision: str = "float32") -> Judged:
    """The map of a network, and its dense Hessian at each point of it."""
    landscape = {"name": "map", "convexity": True, "size": size, "range": [-0.03, 0.03]}
    options = {"num_samples": COUNT, "precision": precision, "engine": "eager"}
    surface = run(make_job(folder, lambda: problem_of(name, epochs), [landscape], **options))["map"]
    directions, (model, data, observe) = raw_directions(folder, "map"), network(name, epochs)
    smallest, largest = np.empty(surface.loss.shape), np.empty(surface.loss.shape)
    for j, i in np.ndindex(surface.loss.shape):
        moved = copy.deepcopy(model).double()
        with torch.no_grad():
            for key, parameter in moved.named_parameters():
                for at, stored in zip((surface.alpha[i], surface.beta[j]), directions, strict=True):
                    if key in stored:
                        parameter += at * torch.tensor(stored[key]).double().reshape(parameter.shape)
        values = torch.linalg.eigvalsh(dense_hessian(moved, data, observe)).numpy()
        smallest[j, i], largest[j, i] = values[0], np.abs(values).max()
    return Judged(surface, smallest, largest)


def check(found: Judged, name: str, epochs: int) -> None:
    print(found.row(name, epochs))
    surface = found.surface
    assert not found.wrong.any()
    assert (surface["eig_negative"] != UNDECIDED).mean() >= 0.9
    slack = ROUNDED * found.largest
    assert (surface["eig_min_bound"] <= found.smallest + slack).all()
    assert (surface["eig_min"] >= found.smallest - slack).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_no_decided_sign_is_wrong(tmp_path, name):
    check(judged(tmp_path, name, 400, 3), name, 400)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("epochs", [0, 1500])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_decided_sign_is_wrong_on_larger_maps(tmp_path, name, epochs, precision):
    check(judged(tmp_path, name, epochs, 5, precision), name, epochs)
