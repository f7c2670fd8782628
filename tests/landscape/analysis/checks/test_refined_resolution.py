"""Checks 6 and 8b of refined landscapes: by what the levels have added, wherever each of them is the last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from landscape.analysis.checks.curvature import centre_curvature
from landscape.analysis.checks.evidence import Evidence
from landscape.analysis.checks.geometry import Resolution, judge_resolution, resolution_of
from landscape.surface.surface import NOT_COMPUTED, OK, Axis, Surface

Function = Callable[[np.ndarray, np.ndarray], np.ndarray]


def grid(function: Function, size: int, held: Callable[[np.ndarray], Any] = np.ones_like, **more: Any) -> Surface:
    """A function over [−1, 1]², known where `held` says so of the first coordinate."""
    x = np.linspace(-1, 1, size)
    alpha, beta = np.meshgrid(x, x)
    there = np.broadcast_to(np.asarray(held(alpha), bool), alpha.shape).copy()
    if more.pop("new", False):
        there[::2, ::2] = False  # those lie in the level above
    values = np.where(there, function(alpha, beta), np.nan)
    status = np.where(there, OK, NOT_COMPUTED).astype(np.uint8)
    return Surface("a", (Axis("alpha", x), Axis("beta", x)), {"loss": values}, status, **more)


def found(surface: Surface) -> Resolution:
    resolved = resolution_of(Evidence("", None, surface))  # type: ignore[arg-type]  # the values are all it looks at
    assert resolved is not None
    return resolved


def canyon(alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """A bowl with a canyon at alpha 0.4 that is narrower than the cells of 17 points."""
    return alpha**2 + beta**2 - np.exp(-(((alpha - 0.4) / 0.06) ** 2))


def test_refined_everywhere_it_is_that_of_the_finer_grid():
    fine = grid(canyon, 33)
    refined = grid(canyon, 17, levels=(grid(canyon, 33, new=True),))
    scale = Evidence("", None, fine).relief / Evidence("", None, refined).relief  # type: ignore[arg-type]
    assert found(refined).half == pytest.approx(found(fine).half * scale, rel=0.05)
    assert found(refined).half < 0.6 * found(grid(canyon, 17)).half


def test_refined_where_it_is_narrow_the_rest_counts_by_its_area():
    levels = tuple(grid(canyon, size, lambda alpha: abs(alpha - 0.375) <= 0.25, new=True) for size in (33, 65, 129))
    coarse, refined = found(grid(canyon, 17)), found(grid(canyon, 17, levels=levels))
    assert judge_resolution(coarse).state == "fails"
    assert judge_resolution(refined).state == "holds"
    x = np.linspace(-1, 1, 129)
    truth = canyon(*np.meshgrid(x, x))
    relief = Evidence("", None, grid(canyon, 17)).relief  # type: ignore[arg-type]
    merged = grid(canyon, 17, levels=levels).merged().loss
    assert np.percentile(abs(merged - truth), 95) / relief < refined.half / 2  # it says a quarter, roughly


def test_what_is_refined_too_little_is_to_be_refined_further():
    judged = judge_resolution(Resolution(0.1, float("nan"), None, (17, 17), refined=True))
    assert judged.state == "reservation"
    assert judged.remedy == "landscape refine makes it finer"


def test_the_bowl_at_the_centre_is_that_of_the_nearest_points_that_are_known():
    plain = grid(canyon, 17)
    levels = tuple(grid(canyon, size, lambda alpha: abs(alpha) <= 0.25, new=True) for size in (33, 65))
    for surface, step in ((plain, 1 / 8), (grid(canyon, 17, levels=levels), 1 / 32)):
        for axis, other in (("alpha", 0), ("beta", 1)):
            centre = centre_curvature(Evidence("", None, surface), axis, 2.0)  # type: ignore[arg-type]
            assert centre is not None
            ends = [canyon(*np.roll([sign * step, 0.0], other)) for sign in (-1, 1)]
            assert centre.difference == pytest.approx((sum(ends) - 2 * canyon(0.0, 0.0)) / step**2)
            assert centre.step == step
    missing = np.where(np.isclose(plain.alpha, 0.125), NOT_COMPUTED, OK).astype(np.uint8)
    holed = Surface("a", plain.axes, plain.observables, np.broadcast_to(missing, (17, 17)))
    assert centre_curvature(Evidence("", None, holed), "alpha", 2.0) is None  # type: ignore[arg-type]
    assert centre_curvature(Evidence("", None, holed), "beta", 2.0) is not None  # type: ignore[arg-type]
