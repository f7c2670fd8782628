"""Contour lines of coarse grids by a bicubic interpolation: exact on parabolas, where errors allow it, and said."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import numpy as np
import pytest

from landscape.surface.surface import Surface
from landscape.views.draw.figure import figure
from landscape.views.prepare.geometry import bilinear
from landscape.views.prepare.smooth import bicubic

NOTE = "Contour lines from a bicubic interpolation between the points"


def test_parabolas_are_met_exactly_on_uneven_grids_too() -> None:
    x, y = np.array([-1.0, -0.4, 0.1, 0.9, 1.0]), np.linspace(0, 3, 7) ** 1.3
    at_x, at_y = np.linspace(-1, 1, 33), np.linspace(y[0], y[-1], 21)

    def parabola(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return 2 + a - 3 * a**2 + b**2 * (1 - a) + 0.5 * a * b

    found = bicubic(x, y, parabola(x[None], y[:, None]), at_x, at_y)
    np.testing.assert_allclose(found, parabola(at_x[None], at_y[:, None]), atol=1e-12)


def test_it_keeps_the_values_of_the_points_and_errs_less_than_straight_pieces() -> None:
    x = np.linspace(-2, 2, 13)
    values = np.sin(2 * x)[None] * np.cos(x)[:, None]
    np.testing.assert_allclose(bicubic(x, x, values, x, x), values, atol=1e-14)
    at = np.linspace(-2, 2, 121)
    truth = np.sin(2 * at)[None] * np.cos(at)[:, None]
    errors = [
        np.abs(found - truth).max()
        for found in (bicubic(x, x, values, at, at), bilinear(x, x, values, at[None], at[:, None]))
    ]
    assert errors[0] < 0.3 * errors[1]


def test_cells_with_a_missing_corner_stay_missing_and_no_others() -> None:
    x = np.linspace(0, 6, 7)
    values = np.add.outer(x, 2 * x)
    values[3, 2] = np.nan
    at = np.linspace(0, 6, 61)
    found = bicubic(x, x, values, at, at)
    a, b = np.meshgrid(at, at)
    beside = (np.abs(a - 2) < 1 - 1e-9) & (np.abs(b - 3) < 1 - 1e-9)
    np.testing.assert_array_equal(np.isnan(found), beside)
    np.testing.assert_allclose(found[~beside], (b + 2 * a)[~beside], atol=1e-12)


def with_errors(surface: Surface, error: float) -> Surface:
    return dataclasses.replace(
        surface, observables={**surface.observables, "loss_stderr": np.full(surface.loss.shape, error)}
    )


@pytest.mark.parametrize(
    ("size", "error", "options", "smooth"),
    [
        ((21, 15), 1e-3, {"preset": "page"}, True),
        ((21, 15), 0.2, {"preset": "page"}, False),
        ((21, 15), 0.2, {"preset": "page", "smooth": True}, True),
        ((21, 15), 1e-3, {"preset": "page", "smooth": False}, False),
        ((21, 15), 1e-3, {}, False),
        ((61, 15), 1e-3, {"preset": "page"}, False),
    ],
)
@pytest.mark.parametrize("kind", ["contour", "topographic"])
def test_lines_are_smooth_for_print_where_grid_and_errors_allow_it(
    make: ModuleType, kind: str, size: tuple[int, int], error: float, options: dict[str, object], smooth: bool
) -> None:
    surface = with_errors(make.quadratic(*size), error)
    field = figure(surface, kind, log=False, **options).data[0]
    assert (np.asarray(field.z).shape != surface.loss.shape) == smooth
    assert (NOTE in surface.caption(kind, log=False, **options)) == smooth


def test_a_caption_is_text_that_latex_takes(make: ModuleType) -> None:
    surface = dataclasses.replace(make.pca_plane(), name="adam_100%")
    plain, latex = (surface.caption("contour", preset="column", latex=latex) for latex in (False, True))
    assert plain == f"adam_100%: loss. {figure(surface, 'contour', preset='column').layout.meta['caption']}"
    assert latex.startswith(r"adam\_100\%: loss. Mean loss of 512 samples")
    assert r"81.2~\% of the variance" in latex
    assert r"25 $\times$ 35 points" in latex
    assert all(ord(sign) < 128 for sign in latex)
    assert surface.caption(title="A & B", latex=True).startswith(r"A \& B. ")
