"""The barrier against closed forms, on every kind of grid, and its error against that of the samples themselves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from landscape import Axis, Job, Problem, Surface, run
from landscape.core.grid import axis_coordinates
from landscape.surface.barriers import barrier_over_mean, barriers_of, loss_barrier, path_columns, resampled_errors
from landscape.surface.surface import RISE_STDERR
from landscape.views.prepare.words import ENTEZARI, FRANKLE, barrier_rows, caption


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
    """Drawn straight between its neighbours, L(0) would lie below the kink, and the barriers be too high."""
    alpha = np.array([-0.4, 0.3, 0.5, 1.0])
    loss = np.array([-0.6, 1.5, 3.0, 2.0])
    with_origin, without = line(alpha, loss, origin=1.0), line(alpha, loss)
    assert with_origin.barrier() == pytest.approx(3.0 - 1.5)
    assert with_origin.find_barriers().git_re_basin.height == pytest.approx(3.0 - 1.5)
    assert without.find_barriers() is without.find_barrier() is None
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


@pytest.mark.parametrize("size", [13, 14, 101])
def test_a_barrier_is_not_known_where_1_is_no_point(size):
    """Drawn straight between its neighbours, L(1) of a curve that bends down there made a barrier of it."""

    def loss(alpha):
        return 1 + 2 * alpha - 4 * np.maximum(0, alpha - 1)  # it rises straight to 1, and falls beyond

    alpha = axis_coordinates(size, -0.2, 1.2)
    found = line(alpha, loss(alpha), np.full(size, 0.01), origin=1.0)
    observables = {**found.observables, "accuracy": np.full(size, 0.5)}
    assert found.find_barrier() is None
    assert found.find_barriers() is barriers_of(alpha, observables, 1.0, None) is None
    assert math.isnan(found.barrier())
    said = f"not known, as 1 is no point of the grid; `size: {15 if size < 15 else 106}` has one there"
    assert barrier_rows(found) == [(ENTEZARI, said)]
    assert f"Entezari's barrier: {said}" in caption(found, "loss")
    proposed = axis_coordinates(int(said.split("`size: ")[1].split("`")[0]), -0.2, 1.2)
    whole = line(proposed, loss(proposed), origin=1.0)
    assert whole.find_barrier().height == 0
    assert whole.find_barriers().git_re_basin.height == pytest.approx(1.0)


def test_an_end_that_is_a_point_but_for_rounding_counts():
    alpha = np.array([-0.1, 1e-16, 0.5, 1 - 1e-16, 1.1])
    assert line(alpha, [9.0, 1.0, 3.0, 2.0, 9.0]).find_barrier().height == 1.5
    assert line(alpha, [9.0, 1.0, 3.0, 2.0, 9.0]).find_barriers().git_re_basin.height == 1.5


def test_the_barrier_of_the_error_is_not_known_where_0_is_no_point():
    """Of the origin the loss is kept, and no accuracy."""
    alpha = np.array([-0.5, 0.5, 1.0])
    observables = {"loss": np.array([1.0, 3.0, 1.0]), "accuracy": np.array([0.1, 0.2, 0.8])}
    found = barriers_of(alpha, observables, 1.0, None)
    assert found.entezari.height == found.git_re_basin.height == 2
    assert found.frankle is None
    surface = line(alpha, observables["loss"], origin=1.0)
    rows = barrier_rows(replace(surface, observables=observables))
    assert rows[2] == (FRANKLE, "not known, as 0 is no point of the grid")
    unknown = line(alpha, observables["loss"])
    assert barrier_rows(unknown)[0][1] == (
        "not known, as 0 is no point of the grid and the loss at the origin is not known"
    )


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
    plane = Surface("a", axes, {"loss": np.zeros((3, 3))}, np.ones((3, 3), np.uint8))
    assert plane.find_barrier() is None
    assert plane.find_barriers() is None


@given(ends=st.tuples(st.floats(-9, 9), st.floats(-9, 9)), height=st.floats(0, 9), at=st.floats(0.01, 0.99))
def test_the_definitions_differ_by_where_the_ends_do(ends, height, at):
    """A tent over the chord: Entezari's barrier is its height; the mean of the ends is another level."""
    alpha, (first, last) = np.array([0.0, at, 1.0]), ends
    top = (1 - at) * first + at * last + height
    line_ = line(alpha, [first, top, last])
    found = line_.find_barriers()
    assert found.entezari.height == pytest.approx(height, abs=1e-9)
    assert found.git_re_basin.height == pytest.approx(max(first, top, last) - (first + last) / 2, abs=1e-9)
    assert found.git_re_basin.height >= abs(first - last) / 2 - 1e-9
    assert found.frankle is None


def test_frankles_barrier_is_one_of_the_error():
    alpha, accuracy = np.linspace(0, 1, 30), np.full(30, 0.9)
    accuracy[10], accuracy[-1] = 0.5, 0.8
    stderr = np.full(30, 0.01)
    observables = {"loss": hump(alpha), "accuracy": accuracy, "accuracy_stderr": stderr}
    found = barriers_of(alpha, observables, 1.0, None).frankle
    assert (found.height, found.alpha) == (pytest.approx(0.5 - (0.1 + 0.2) / 2), alpha[10])
    assert found.stderr == pytest.approx(0.02)  # of the place, and of both ends by halves


def test_at_an_end_the_error_is_that_of_half_the_rise():
    alpha = np.array([0.0, 0.5, 1.0])
    found = barrier_over_mean(alpha, np.array([0.0, 1.0, 3.0]), np.array([0.0, 0.2, 0.4]), np.nan)
    assert (found.height, found.alpha, found.stderr) == (1.5, 1.0, pytest.approx(0.2))


@pytest.mark.long
@pytest.mark.parametrize("alpha", [[0.0, 0.5, 1.0], [-0.5, 0.4, 1.0, 1.5]])
def test_the_resampled_error_is_that_of_fresh_samples(alpha):
    """The spread of the barrier over many draws of samples from the population, against the bootstrap of one draw."""
    rng, n, alpha = np.random.default_rng(0), 200, np.array(alpha)

    def draw():
        each = rng.normal(size=(n, 3))
        first, top, last = each[:, 0] + 1, 0.3 * each[:, 0] + 0.5 * each[:, 1] + 4, each[:, 2] + 2
        known = {0.0: first, 0.5: top, 1.0: last}
        return np.stack([known.get(x, (1 - x) * first + x * last + 3 * (x == 0.4)) for x in alpha]), first

    def heights(losses, first):
        at = float(first.mean())
        return [rule(alpha, losses.mean(1), None, at).height for rule in (loss_barrier, barrier_over_mean)]

    truth = np.std([heights(*draw()) for _ in range(2000)], axis=0)
    losses, first = draw()
    found = resampled_errors(alpha, losses, np.ones(n), first)
    assert found == pytest.approx(tuple(truth), rel=0.25)


def test_the_columns_of_a_path_are_integrals_over_its_length():
    along = np.sort(np.random.default_rng(0).uniform(0, 2, 400))
    along[0], along[-1] = 0, 2
    columns = path_columns(along**2, np.diff(along))
    assert (columns.least, columns.largest) == (0, 4)
    assert columns.mean == pytest.approx((along**2).mean())
    assert columns.integral == pytest.approx(4 / 3, rel=1e-3)  # 1/2 of the integral of x**2 from 0 to 2


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
    landscapes = [{"name": "line", "directions": directions}]
    job = Job(run=str(tmp_path / "run"), problem=problem, landscapes=landscapes, keep_samples=True)
    surface = run(job)["line"]
    zero, one = (int(np.flatnonzero(surface.alpha == end)[0]) for end in (0.0, 1.0))
    chord = (1 - surface.alpha) * surface.loss[zero] + surface.alpha * surface.loss[one]
    found = surface.find_barrier()
    assert found.height == pytest.approx(max(0.0, (surface.loss - chord)[zero : one + 1].max()))
    assert np.isfinite(found.stderr)
    resampled = surface.find_barriers()
    assert resampled.resampled
    assert resampled.entezari.height == found.height
    assert resampled.entezari.stderr <= 1.1 * found.stderr  # the bound holds, up to the noise of the draws
    assert resampled.git_re_basin.height == pytest.approx(
        surface.loss[zero : one + 1].max() - (surface.loss[zero] + surface.loss[one]) / 2
    )
