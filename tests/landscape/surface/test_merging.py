"""Levels shown as one grid: what is known stays to the bit, what is not is bilinear, and nothing jumps at an edge."""

from __future__ import annotations

import numpy as np
import pytest

from landscape import Axis, Surface
from landscape.core.errors import JobError
from landscape.surface.refinement import interpolated_from, merge, spread
from landscape.views.draw.layout import INTERPOLATED
from landscape.views.exporting import export
from landscape.views.prepare.figure import prepare_figure

HELD = np.zeros((9, 9), bool)
HELD[:4] = True
HELD[::2, ::2] = False


def plane(size: int) -> np.ndarray:
    beta, alpha = np.meshgrid(np.linspace(0, 1, size), np.linspace(0, 1, size), indexing="ij")
    return 3 * beta + 5 * alpha - 2 * alpha * beta


def test_what_is_bilinear_is_filled_in_as_it_is():
    held = [np.ones((5, 5), bool), np.zeros((9, 9), bool)]
    assert np.allclose(merge([plane(5), np.full((9, 9), np.nan)], held), plane(9))
    assert np.allclose(spread(spread(plane(3))), plane(9))


def test_known_points_keep_their_bits_and_hanging_ones_join_both_sides():
    coarse, fine = np.random.default_rng(0).normal(size=(5, 5)), np.random.default_rng(1).normal(size=(9, 9))
    merged = merge([coarse, fine], [np.ones((5, 5), bool), HELD])
    assert np.array_equal(merged[::2, ::2], coarse)
    assert np.array_equal(merged[HELD], fine[HELD])
    # Between the refined rows and the others, middle points of the edge are the means that coarse cells have there.
    assert np.allclose(merged[4, 1::2], (coarse[2, :-1] + coarse[2, 1:]) / 2)
    # One level further, a point beside a known hanging one is the mean of it and its neighbour.
    finer = spread(merged)
    assert np.allclose(finer[6, 1::2], (merged[3, :-1] + merged[3, 1:]) / 2)


def test_the_map_tells_how_coarse_the_cell_is():
    whole, nothing = np.ones((3, 3), bool), np.zeros((9, 9), bool)
    middle = np.zeros((5, 5), bool)
    middle[:3, :] = True
    middle[::2, ::2] = False
    found = interpolated_from([whole, middle, nothing])
    assert found[::4, ::4].max() == 0 == found[2, 2]
    assert found[1, 1] == 1  # all corners of its cell are known in level 1
    assert found[6, 6] == found[7, 7] == 2


def refined() -> Surface:
    def surface(values: np.ndarray, status: np.ndarray) -> Surface:
        axes = tuple(Axis(name, np.linspace(0, 1, len(values))) for name in ("alpha", "beta"))
        return Surface("a", axes, {"loss": np.where(status, values, np.nan)}, status.astype(np.uint8))

    level = surface(plane(9) + 1, HELD)
    base = surface(plane(5), np.ones((5, 5)))
    return Surface("a", base.axes, base.observables, base.status, levels=(level,))


def test_a_surface_gives_its_levels_and_all_of_them_merged():
    surface = refined()
    merged = surface.merged()
    assert merged.loss.shape == (9, 9)
    assert merged.levels == ()
    assert merged.merged() is merged
    assert np.array_equal(merged.interpolated == 0, HELD | (np.add.outer(np.arange(9) % 2, np.arange(9) % 2) == 0))
    assert np.isfinite(merged.loss).all()
    assert (merged.status == 1).all()
    assert surface.at(1) is surface.levels[0]
    assert surface.at(0).loss.shape == (5, 5)
    assert surface.at(0).levels == ()
    assert {"loss", "status", "interpolated"} <= set(merged.to_xarray())
    with pytest.raises(JobError, match="level: must be 0 to 1, which 'a' has, not 2"):
        surface.at(2)


def test_figures_and_exports_show_all_levels_and_mark_what_is_interpolated(tmp_path):
    surface = refined()
    merged = surface.merged()
    drawn = surface.figure("contour")
    told = f"{int((merged.interpolated == 0).sum())} of 81 points evaluated, the others bilinear between them"
    assert told in " ".join(prepare_figure(merged).caption)
    trace = next(trace for trace in drawn.data if trace.type == "contour" and trace.customdata is not None)
    assert trace.z.shape == (9, 9)
    assert np.isfinite(trace.z).all()
    assert np.array_equal(np.array(trace.text) == INTERPOLATED, merged.interpolated > 0)
    export(surface, "npz", tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        assert np.array_equal(arrays["interpolated"], merged.interpolated)
        assert np.array_equal(arrays["loss"], merged.loss)
    export(surface, "csv", tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == "alpha,beta,loss,status,interpolated"
