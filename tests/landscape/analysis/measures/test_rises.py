"""The rise along lines, the radius and the layers, against closed forms of a paraboloid."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sharpness_scene import Scene, bowl, observe, scene_of
from torch import nn

from landscape import Problem
from landscape.analysis.measures.document import MeasureRow
from landscape.analysis.measures.lines import (
    COORDINATES,
    DISTANCES,
    LINES,
    average_rows,
    crossing,
    draws_of,
    error_noise_row,
    known_radius,
    radii_of,
    radius_row,
    relative,
    rises_of,
    stderr_over,
)
from landscape.analysis.measures.worst import layer_rows
from landscape.compute.hessian import filter_weighted_trace
from landscape.core.statistics import interval_of
from landscape.evaluation.reduction import SampleValues, Values
from landscape.model.parameters import State

CURVATURES = [0.5, 1.0, 4.0, 2.0, 8.0, 3.0]
THETA = [0.3, -1.0, 0.5, 0.2, -0.4, 0.6]


@pytest.fixture
def context(tmp_path) -> Scene:
    return scene_of(tmp_path, bowl(CURVATURES, THETA))


def curvature_along(direction: State) -> float:
    """dᵀAd."""
    return float(
        (torch.tensor(CURVATURES, dtype=torch.float64) * direction["bowl.weight"].double().reshape(-1) ** 2).sum()
    )


def test_on_a_paraboloid_a_line_rises_by_half_its_curvature(context):
    draws = draws_of(context.base.origin, context.infos)
    values = context.base.along(draws, [COORDINATES] * LINES)
    found = rises_of(values, DISTANCES)
    expected = np.array([[0.5 * r**2 * curvature_along(draw()) for r in DISTANCES] for draw in draws])
    np.testing.assert_allclose(found.means, expected, rtol=1e-12)
    assert found.samples is not None
    # Every sample rises alike, so that the standard error over them is rounding.
    np.testing.assert_allclose(found.samples, np.repeat(expected[..., None], 32, 2), rtol=1e-3, atol=1e-6)
    row = found.rows()["rise 0.5"]
    interval = interval_of(expected[:, -1].tolist())
    assert (row.value, row.low, row.high) == pytest.approx((interval.mean, interval.low, interval.high), rel=1e-12)
    assert row.stderr < 1e-6


def test_the_radius_of_a_paraboloid_is_exact_also_beyond_the_line(context):
    draws = draws_of(context.base.origin, context.infos)
    values = context.base.along(draws, [COORDINATES] * LINES)
    target, radii = radii_of(context.base, draws, values)
    assert target == pytest.approx(float(values[0].mean["loss"][4]))
    expected = [math.sqrt(2 * target / curvature_along(draw())) for draw in draws]
    assert max(expected) > DISTANCES[-1]
    # The gradient tilts both sides oppositely: at the minimum they agree, elsewhere their geometric mean is near.
    assert list(map(known_radius, radii)) == pytest.approx(expected, rel=0.2)


def test_the_radius_at_a_minimum_is_the_root_of_two_tau_over_kappa(tmp_path):
    context = scene_of(tmp_path, bowl([2.0, 2.0], [0.0, 0.0]))
    # A minimum at 0 has no filters to scale to: the directions are given.
    draws = [lambda: {"bowl.weight": torch.tensor([[0.6], [0.8]])}]
    values = context.base.along(draws, [COORDINATES])
    target, radii = radii_of(context.base, draws, values)
    expected = math.sqrt(2 * target / 2.0)
    assert radii == [pytest.approx((expected, expected), rel=1e-6)]
    row = radius_row([*radii, *radii])
    assert (row.value, row.low) == pytest.approx((expected, expected))


def test_lines_that_do_not_rise_are_counted():
    row = radius_row([(1.0, 1.0), (8.0, math.inf), (2.0, 2.0)])
    assert (row.value, row.below, row.note) == (None, None, "beyond 8 on 1 of the 3 lines")
    assert row.above == pytest.approx((1.0 * 8.0 * 2.0) ** (1 / 3))
    assert crossing([(0.0, 0.0), (0.5, 0.2)], 0.3) == (0.5, math.inf)
    for broken in (math.inf, math.nan, -math.inf):
        assert crossing([(0.0, 0.0), (0.25, 0.2), (0.5, broken), (1.0, 9.0)], 0.3) == (0.25, 0.5)
    both = radius_row([(0.0, 0.05), (8.0, math.inf)])
    assert (both.value, both.above, both.below, both.is_bound) == (None, None, None, False)


class Walled(nn.Module):
    """A bowl of curvature 1 whose loss is not finite beyond some distance from the weights that it begins with."""

    def __init__(self, wall: float, beyond: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[3.0, 4.0]], dtype=torch.float64))  # of norm 5, as each direction
        self.wall, self.beyond = wall, beyond

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        from_start = (self.weight - torch.tensor([[3.0, 4.0]], dtype=torch.float64)).norm()
        losses = 1e-4 * from_start**2 + 0 * batch.sum(1)
        return losses + 1.0 if from_start <= self.wall else losses + self.beyond


@pytest.mark.parametrize("beyond", [math.inf, math.nan])
@pytest.mark.parametrize(("wall", "above", "below"), [(0.01, None, 0.05), (0.6, 0.1, 0.25), (15.0, 2.0, 4.0)])
def test_bounds_of_a_radius_hold_the_distance_at_which_the_loss_breaks(tmp_path, wall, above, below, beyond):
    problem = Problem(Walled(wall, beyond), torch.zeros(32, 1, dtype=torch.float64), observe)
    context = scene_of(tmp_path, problem)
    draws = draws_of(context.base.origin, context.infos)
    _, radii = radii_of(context.base, draws, context.base.along(draws, [COORDINATES] * LINES))
    row = radius_row(radii)
    assert (row.value, row.low, row.high, row.is_bound) == (None, None, None, True)
    assert (row.above, row.below) == (above and pytest.approx(above), pytest.approx(below))
    assert (row.above or 0.0) < wall / 5 <= row.below  # where a line meets the wall
    assert row.note == "the loss is not finite before it has risen so far on 16 of the 16 lines"


@pytest.mark.parametrize(
    ("falls_at", "above", "below"),
    [(1e-6, 1 / (0.1 / 64) ** 2, None), (math.inf, None, 1 / 6.4**2), (0.03, None, None)],
    ids=["at once", "never", "between"],
)
def test_the_noise_that_the_error_bears_is_a_bound_where_the_search_ends(tmp_path, falls_at, above, below):
    """One weight θ = 1: all answers are wrong where |δ| > falls_at."""

    def observe(model, batch):
        moved = (model.weight - 1.0).abs().reshape(())
        right = (moved <= falls_at).double()
        return {"loss": moved + 0 * batch[:, 0], "accuracy": right + 0 * batch[:, 0]}

    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    context = scene_of(tmp_path, Problem(model, torch.zeros(32, 1, dtype=torch.float64), observe))
    row = error_noise_row(context.base, context.infos)
    assert (row.above, row.below) == (above and pytest.approx(above), below and pytest.approx(below))
    assert (row.value is None) == row.is_bound == (falls_at != 0.03)
    if row.value is not None:
        noise = [abs(float(relative(context.base.origin, context.infos, 1001 + k)["weight"])) for k in range(16)]
        share = np.mean([each / math.sqrt(row.value) > falls_at for each in noise])
        assert 0 < share <= 0.2


def test_the_mean_over_lines_estimates_the_filter_weighted_trace(context):
    draws = draws_of(context.base.origin, context.infos, 200)
    curvatures = [curvature_along(draw()) for draw in draws]
    rows = context.base.origin["bowl.weight"].reshape(2, 3)
    traces = torch.tensor(CURVATURES, dtype=torch.float64).reshape(2, 3).sum(1)
    expected = float((rows.square().sum(1) / 3 * traces).sum())
    found = interval_of(curvatures)
    assert abs(found.mean - expected) < 3 * found.stderr
    hessian = torch.diag(torch.tensor(CURVATURES + [0.0] * 6, dtype=torch.float64)).numpy()
    layout = context.slope.layout
    estimated = filter_weighted_trace(lambda rows: rows @ hessian, layout, context.base.origin, ("bias",))
    assert estimated.mean == pytest.approx(expected)


def test_a_layer_that_does_nothing_rises_by_nothing_and_others_go_back_to_their_first_weights(context):
    first = {name: tensor.clone() for name, tensor in context.base.origin.items()}
    first["bowl.weight"] += 1
    rows = layer_rows(context.base, context.infos, first)
    assert list(rows) == ["bowl", "idle"]
    assert {row.value for row in rows["idle"].values()} == {0.0}
    a = np.array(CURVATURES)
    theta = context.base.origin["bowl.weight"].double().numpy().reshape(-1)
    expected = 0.5 * (a * ((theta + 1) ** 2 - theta**2)).sum()
    assert rows["bowl"]["re-initialised"].value == pytest.approx(expected, rel=1e-6)
    assert rows["bowl"]["rise 0.5"].value == pytest.approx(
        np.mean([0.125 * curvature_along(draw()) for draw in draws_of(context.base.origin, context.infos, 4)])
    )


def test_the_average_case_is_half_the_trace(context):
    rows = average_rows(context.base, context.infos, 1.0)
    noise = rows["average 0.01"]
    assert is_near(noise, 0.5 * 0.01**2 * sum(CURVATURES))
    theta = context.base.origin["bowl.weight"].double().numpy().reshape(-1)
    adaptive = rows["adaptive average 0.1"]
    assert is_near(adaptive, 0.5 * 0.1**2 * float((theta**2 * np.array(CURVATURES)).sum()))
    smooth = rows["low-pass 0.01"]
    assert smooth.value == pytest.approx(1.0 + noise.value)
    # The loss differs between samples by far more than the rise by so little noise does.
    assert smooth.stderr == pytest.approx(context.base.along([dict], [(0.0,)])[0].stderr["loss"][0], rel=0.1)


def is_near(row: MeasureRow, truth: float) -> bool:
    """Whether the truth lies within three standard errors over the draws, of which an interval has two on a side."""
    return abs(row.value - truth) < 1.5 * (row.high - row.low) / 2


def simulated(b: np.ndarray, e: np.ndarray) -> list[Values]:
    """Lines k on which sample i rises by r²(bₖ + eᵢ)."""
    squares, found = np.square(COORDINATES), []
    for each in b:
        losses = squares[:, None] * (each + e) + 3.0
        kept = SampleValues(losses.astype(np.float32), losses[4].astype(np.float32), np.ones(len(e)))
        found.append(Values({"loss": losses.mean(1)}, {}, samples=kept))
    return found


def test_95_percent_of_the_intervals_hold_the_truth():
    generator, held = np.random.default_rng(0), np.zeros(2)
    for _ in range(200):
        b, e = generator.gamma(4.0, 0.5, LINES), generator.normal(1.0, 0.7, 64)  # of means 2 and 1
        row = rises_of(simulated(b, e), DISTANCES).rows()["rise 0.5"]
        over_directions, over_samples = 0.25 * (2.0 + e.mean()), 0.25 * (b.mean() + 1.0)
        held += [row.low <= over_directions <= row.high, abs(row.value - over_samples) <= 1.96 * row.stderr]
    assert all(182 <= count <= 196 for count in held), held


def test_the_error_over_samples_weighs_them():
    samples, weights = np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0])
    assert stderr_over(samples, weights) == pytest.approx(samples.std(ddof=1) / math.sqrt(3))
    assert stderr_over(samples, 5 * weights) == pytest.approx(stderr_over(samples, weights))
