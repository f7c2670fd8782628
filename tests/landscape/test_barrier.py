"""The barrier against closed forms, on every kind of grid, and its error against that of the samples themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from landscape import Axis, Job, Problem, Surface, run
from landscape.barrier import loss_barrier
from landscape.surface import RISE_STDERR


def line(alpha, loss, errors=None, origin=None, kind="towards") -> Surface:
    observables = {"loss": np.asarray(loss, float)} | ({} if errors is None else {RISE_STDERR: np.asarray(errors)})
    axes = (Axis("alpha", np.asarray(alpha, float), {"kind": kind}),)
    attributes = {} if origin is None else {"origin_loss": origin}
    return Surface("line", axes, observables, np.ones(len(alpha), np.uint8), attributes=attributes)


def hump(alpha):
    """L(α) = 1 + α + 4 α (1−α): a barrier of 1 at 0.5."""
    return 1 + alpha + 4 * alpha * (1 - alpha)


@pytest.mark.parametrize("size", [3, 5, 15, 29])
def test_the_barrier_of_a_hump_where_both_ends_are_points(size):
    alpha = np.linspace(0, 1, size)
    found = line(alpha, hump(alpha)).find_barrier()
    assert (found.height, found.alpha) == (pytest.approx(1.0), 0.5)
    assert math.isnan(found.stderr)


def test_the_origin_stands_in_for_a_grid_without_zero():
    """Drawn straight between its neighbours, L(0) would lie below the kink, and the barrier be too high."""
    alpha = np.array([-0.4, 0.3, 0.5, 1.0])
    loss = np.array([-0.6, 1.5, 3.0, 2.0])
    with_origin, without = line(alpha, loss, origin=1.0), line(alpha, loss)
    assert with_origin.barrier() == pytest.approx(3.0 - 1.5)
    assert without.barrier() == pytest.approx(3.0 - (0.6 + 2.0) / 2)
    # At a point of the grid its own value counts.
    assert line([0.0, 0.5, 1.0], [1.0, 3.0, 2.0], origin=7.0).barrier() == pytest.approx(1.5)


def test_a_line_without_a_barrier_says_so():
    found = line([0, 0.25, 0.5, 1], [2.0, 1.0, 0.5, 1.0], errors=[0.0, 0.1, 0.1, 0.2]).find_barrier()
    assert (found.height, found.alpha, found.stderr) == (0.0, 0.0, 0.0)


@given(
    start=st.floats(-1e6, 1e6), end=st.floats(-1e6, 1e6), size=st.integers(2, 300), low=st.floats(-0.5, 0),
    high=st.floats(1, 1.5),
)  # fmt: skip
def test_rounding_is_no_barrier(start, end, size, low, high):
    alpha = np.unique(np.concatenate([np.linspace(low, high, size), [0.0, 1.0]]))
    found = loss_barrier(alpha, (1 - alpha) * start + alpha * end, np.ones(len(alpha)), math.nan)
    assert (found.height, found.alpha, found.stderr) == (0.0, 0.0, 0.0)
    constant = loss_barrier(alpha, np.full(len(alpha), start), np.ones(len(alpha)), math.nan)
    assert (constant.height, constant.alpha, constant.stderr) == (0.0, 0.0, 0.0)


def test_the_error_is_not_known_where_the_loss_at_the_origin_is_not():
    """L(0) is then drawn between its neighbours, whose errors the bound does not hold."""
    alpha, loss, errors = np.array([-0.1, 0.3, 1.1]), np.array([1.0, 2.0, 1.0]), np.array([0.5, 0.1, 0.1])
    assert math.isnan(loss_barrier(alpha, loss, errors, math.nan).stderr)
    assert loss_barrier(alpha, loss, errors, 1.0).stderr > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_it_is_not_known_before_all_of_it_is(bad):
    inside, outside = [1.0, 1.0, bad, 1.0, 1.0, 1.0], [bad, 1.0, 2.0, 1.0, 1.0, bad]
    alpha = [-0.2, 0.0, 0.4, 1.0, 1.2, 1.4]
    assert line(alpha, inside).find_barrier() is None
    assert math.isnan(line(alpha, inside).barrier())
    assert line(alpha, outside).barrier() == pytest.approx(1.0)
    for covered in ([0.1, 0.5, 1.0], [0.0, 0.5, 0.9]):
        assert line(covered, [1.0, 2.0, 1.0], origin=1.0).find_barrier() is None


def test_planes_have_none():
    axes = (Axis("alpha", np.arange(3.0)), Axis("beta", np.arange(3.0)))
    assert Surface("a", axes, {"loss": np.zeros((3, 3))}, np.ones((3, 3), np.uint8)).find_barrier() is None


@given(seed=st.integers(0, 1000), size=st.integers(2, 12), low=st.floats(-0.5, 0), high=st.floats(1, 1.5))
def test_the_error_is_never_below_that_of_the_samples(seed, size, low, high):
    """The paired error of B itself, which the samples would tell, is at most the bound that their moments give."""
    rng, n = np.random.default_rng(seed), 40
    alpha = np.unique(np.concatenate([np.linspace(low, high, size), [0.0, 1.0]]))
    samples = rng.normal(size=(n, len(alpha))) + rng.normal(size=(n, 1)) + 3 * alpha * (1 - alpha)
    zero, one = alpha.tolist().index(0.0), alpha.tolist().index(1.0)
    errors = (samples - samples[:, [zero]]).std(axis=0, ddof=1) / math.sqrt(n)
    found = loss_barrier(alpha, samples.mean(axis=0), errors, float("nan"))
    k = alpha.tolist().index(found.alpha)
    each = samples[:, k] - (1 - found.alpha) * samples[:, zero] - found.alpha * samples[:, one]
    assert each.std(ddof=1) / math.sqrt(n) <= found.stderr + 1e-12
    assert found.height == pytest.approx(each.mean(), abs=1e-12)


def test_a_line_of_a_job_has_its_barrier_with_its_error(tmp_path):
    def problem() -> Problem:
        torch.manual_seed(0)
        return Problem.supervised(torch.nn.Linear(4, 3), (torch.randn(30, 4), torch.randint(0, 3, (30,))))

    target = tmp_path / "other.safetensors"
    save_file({name: -2 * each for name, each in problem().model.state_dict().items()}, target)
    directions = [{"kind": "towards", "target": str(target)}]
    job = Job(run=str(tmp_path / "run"), problem=problem, landscapes=[{"name": "line", "directions": directions}])
    surface = run(job)["line"]
    zero, one = (int(np.flatnonzero(surface.alpha == end)[0]) for end in (0.0, 1.0))
    chord = (1 - surface.alpha) * surface.loss[zero] + surface.alpha * surface.loss[one]
    found = surface.find_barrier()
    assert found.height == pytest.approx(max(0.0, (surface.loss - chord)[zero : one + 1].max()))
    assert np.isfinite(found.stderr)
