"""The regression estimator of nested samples: against an independent loop, unbiased, and with honest errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from landscape.surface.nested_samples import Known, estimate_means, pilot_covariance, shares_of

POINTS = 6


def population(draw: np.random.Generator, size: int, kind: str) -> np.ndarray:
    """Rises [points, samples] that are correlated between points; `lognormal` ones have long tails."""
    common = draw.normal(size=(3, size))
    if kind == "lognormal":
        common = np.exp(common) - math.exp(0.5)
    mix = np.array([[1, 0.2, 0.1], [0.8, 0.5, 0], [0.9, 0, 0.4], [0.3, 1, 0.2], [0.1, 0.1, 1], [0.7, 0.7, 0.7]])
    own = draw.normal(size=(POINTS, size)) * 0.3
    return mix @ common + own + np.arange(POINTS)[:, None]


def nested(rises: np.ndarray, counts: list[int], size: int) -> Known:
    return Known([row[:count] for row, count in zip(rises, counts, strict=True)], size)


def in_order(points: int = POINTS) -> np.ndarray:
    """Each point is corrected by those before it."""
    preference = np.full((points, points), -1)
    for point in range(points):
        preference[point, :point] = np.arange(point)
    return preference


def test_two_phases_are_cochrans_regression_estimator() -> None:
    """One point with all samples and one with few: the mean there, corrected by the slope of least squares."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=1000), draw.normal(size=1000)
    y = 2.0 * x + 0.5 * y + 3.0
    found = estimate_means([Known([x, y[:100]], 1000)], in_order(2))
    a, b = x[:100] - x[:100].mean(), y[:100] - y[:100].mean()
    slope = (a * b).sum() / ((a * a).sum() * (1 + 1e-3))
    assert found.mean[0] == pytest.approx(x.mean())
    assert found.mean[1] == pytest.approx(y[:100].mean() + slope * (x.mean() - x[:100].mean()))
    assert found.errors[0].any() == False  # noqa: E712 - all samples are known
    residual = (b - slope * a).std() / math.sqrt(100) * math.sqrt(0.9)
    assert found.stderr[1] == pytest.approx(residual, rel=0.25)
    assert found.stderr[1] < 0.35 * y[:100].std() / math.sqrt(100)


def test_without_better_points_it_is_the_mean_and_its_standard_error() -> None:
    rises = population(np.random.default_rng(1), 400, "normal")
    found = estimate_means([nested(rises, [100] * POINTS, 400)], in_order(), draws=4096)
    assert np.allclose(found.mean, rises[:, :100].mean(axis=1))
    usual = rises[:, :100].std(axis=1, ddof=1) / 10 * math.sqrt(1 - 0.25)
    assert np.allclose(found.stderr, usual, rtol=0.06)
    covariance = found.errors @ found.errors.T / 4096
    true = np.cov(rises[:, :100]) / 100 * 0.75
    assert np.allclose(covariance, true, atol=0.12 * true.max())


@pytest.mark.parametrize(("kind", "least"), [("normal", 0.92), ("lognormal", 0.6)])
def test_the_variance_is_mostly_below_the_inflated_one(kind: str, least: float) -> None:
    """The variance of all samples exceeds that of few of them by no more than their kurtosis says, most of the time."""
    draw, within, plain = np.random.default_rng(3), 0, 0
    for _ in range(200):
        rises = population(draw, 20_000, kind)
        found = estimate_means([nested(rises, [64] * POINTS, 20_000)], in_order())
        true = rises.var(axis=1) / 64
        within += int((true <= found.own * found.inflation).sum())
        plain += int((true <= found.own).sum())
        assert (found.inflation >= 1).all()
    assert within > least * 200 * POINTS
    assert plain < 0.6 * within


def test_the_inflation_follows_from_the_kurtosis() -> None:
    """Half the samples at ±1 have a kurtosis of 1, so their variance is known; one in a hundred at 10 has one of 98."""
    even = np.tile([1.0, -1.0], 50)
    rare = np.where(np.arange(100) == 0, 10.0, 0.0)
    found = estimate_means([Known([even, rare], 1000)], np.full((2, 1), -1))
    assert found.inflation[0] == pytest.approx(1.0)
    assert found.inflation[1] == pytest.approx(1 + 3 * math.sqrt((98 - 1) / 100), rel=0.01)


def test_equal_weights_are_no_weights_and_others_weigh() -> None:
    rises = population(np.random.default_rng(2), 300, "normal")
    known = nested(rises, [300, 200, 200, 100, 100, 100], 300)
    plain = estimate_means([known], in_order())
    same = estimate_means([Known(known.rises, 300, 1.0, np.full(300, 3.0))], in_order())
    assert np.allclose(plain.mean, same.mean)
    assert np.allclose(plain.errors, same.errors)
    weights = np.linspace(1, 3, 300)
    other = estimate_means([Known([row[:300] for row in rises], 300, 1.0, weights)], in_order())
    assert np.allclose(other.mean, rises @ weights / weights.sum())


def test_terms_add_with_their_factors_and_a_whole_term_has_no_error() -> None:
    draw = np.random.default_rng(3)
    first, second = population(draw, 200, "normal"), population(draw, 50, "normal")
    terms = [nested(first, [100] * POINTS, 200), Known(list(second), 50, 10.0)]
    both, alone = estimate_means(terms, in_order()), estimate_means(terms[:1], in_order())
    assert np.allclose(both.mean, alone.mean + 10 * second.mean(axis=1))
    assert np.allclose(both.errors, alone.errors)


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
def test_means_are_unbiased_and_errors_hold(kind: str) -> None:
    """1,000 repeats: the signed error is at most 0.1 standard errors, and intervals hold in 93 to 97 per cent."""
    draw, size, repeats = np.random.default_rng(4), 4096, 1000
    rises = population(draw, size, kind)
    true = rises.mean(axis=1)
    scores = np.empty((repeats, POINTS))
    for repeat in range(repeats):
        order = draw.permutation(size)
        known = nested(rises[:, order], [2048, 1024, 1024, 512, 512, 512], size)
        found = estimate_means([known], in_order(), draws=256)
        scores[repeat] = (found.mean - true) / found.stderr
    # A score's own distribution is skewed where tails are long: errors are compared with the usual standard error.
    assert np.abs(np.median(scores, axis=0)).max() < (0.1 if kind == "normal" else 0.25)
    inside = (np.abs(scores) < 1.96).mean()
    assert 0.93 <= inside <= 0.975


def test_the_signed_error_of_a_chosen_number_of_samples_is_small() -> None:
    """Shares follow from a pilot of 256 samples with long tails; what is chosen so biases means by under 0.1 errors."""
    draw, size, repeats = np.random.default_rng(5), 8192, 1000
    rises = population(draw, size, "lognormal")
    true, errors = rises.mean(axis=1), np.empty((repeats, POINTS))
    for repeat in range(repeats):
        shuffled = rises[:, draw.permutation(size)]
        pilot = nested(shuffled, [256] * POINTS, size)
        shares = shares_of(pilot_covariance([pilot], 256), np.full(POINTS, 1 / POINTS))
        scale = 1024 / shares.share.max() * math.sqrt(np.diag(pilot_covariance([pilot], 256)).mean() / 3.0)
        counts = np.clip(256 * np.ceil(scale * shares.share / 256), 256, size).astype(int).tolist()
        preference = np.full((POINTS, POINTS), -1)
        for rank, point in enumerate(shares.order):
            preference[point, :rank] = shares.order[:rank]
        errors[repeat] = estimate_means([nested(shuffled, counts, size)], preference, draws=8).mean - true
    assert (np.abs(errors.mean(axis=0)) / errors.std(axis=0)).max() < 0.1


def test_shares_take_the_best_predictors_first_and_leave_the_least_variance() -> None:
    draw = np.random.default_rng(6)
    rises = population(draw, 2000, "normal")
    covariance, area = np.cov(rises), np.full(POINTS, 1 / POINTS)
    shares = shares_of(covariance, area)
    assert np.allclose(shares.loads @ shares.loads.T, covariance)
    assert (np.diff(shares.share[shares.order]) <= 1e-12).all()
    counts = np.maximum(2, np.rint(3000 * shares.share / shares.share.sum())).astype(np.int64)
    mean = shares.variance(counts, 10**9).mean()
    for _ in range(200):  # no other division of as many samples, in this order, is better
        other = np.sort(draw.dirichlet(np.ones(POINTS)))[::-1] * counts.sum()
        moved = np.empty(POINTS, np.int64)
        moved[shares.order] = np.maximum(2, other).astype(np.int64)
        assert shares.variance(moved, 10**9).mean() > 0.999 * mean


def test_points_that_are_equal_or_constant_need_no_second_sample() -> None:
    rises = np.zeros((3, 100))
    rises[0] = rises[1] = np.random.default_rng(7).normal(size=100)
    shares = shares_of(np.cov(rises), np.full(3, 1 / 3))
    assert (shares.share > 1e-6).sum() == 1
    assert len(set(shares.order.tolist())) == 3
    found = estimate_means([Known([rises[0], rises[1][:60], rises[2][:60]], 100)], in_order(3))
    assert found.mean[1] == pytest.approx(rises[0].mean(), abs=1e-3)
    assert found.stderr[2] == 0.0


@pytest.mark.parametrize("counts", [[1, 1, 1], [2, 1, 1]])
def test_one_sample_has_no_error_that_could_be_known(counts: list[int]) -> None:
    found = estimate_means([nested(np.ones((3, 5)), counts, 5)], in_order(3))
    assert np.allclose(found.mean, 1.0)
    assert np.isfinite(found.errors).all()
