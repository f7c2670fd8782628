"""The band of other seeds: drawn behind the curve of a random line that was checked, and nowhere else."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from landscape.surface.record_entries import Check, Checks
from landscape.surface.surface import Surface
from landscape.views.plots.plot import plot
from landscape.views.prepare.figure import prepare_figure
from landscape.views.prepare.uncertainty import NAME, prepare_seeds

BAND = {"at": [0.5, -0.5, 1.0], "mean": [2, 2, 3], "low": [1.0, 1.5, 2.0], "high": [3.0, 2.5, 4.0]}


def checked(surface: Surface, make: ModuleType, kind: str = "random", band: Any = BAND) -> Surface:
    """The surface with axes of a kind, and with what check 7 found."""
    axes = tuple(dataclasses.replace(axis, attributes={**axis.attributes, "kind": kind}) for axis in surface.axes)
    found = Check(number="7", name="other seeds", state="holds", text="", numbers={"band": band})
    return make.with_record(dataclasses.replace(surface, axes=axes), checks=Checks(results=(found,)), origin_loss=0.25)


def test_the_band_runs_through_the_origin_in_the_order_of_the_axis(make: ModuleType) -> None:
    band = prepare_seeds(checked(make.line(), make), "loss")
    assert band is not None
    np.testing.assert_array_equal(band.at, [-0.5, 0.0, 0.5, 1.0])
    np.testing.assert_array_equal(band.low, [1.5, 0.25, 1.0, 2.0])
    np.testing.assert_array_equal(band.high, [2.5, 0.25, 3.0, 4.0])


def test_both_figures_draw_it(make: ModuleType) -> None:
    surface = checked(make.line(), make)
    (trace,) = (each for each in surface.figure().data if each.name == NAME)
    assert list(trace.x) == [-0.5, 0.0, 0.5, 1.0, 1.0, 0.5, 0.0, -0.5]
    assert list(trace.y) == [2.5, 0.25, 3.0, 4.0, 2.0, 1.0, 0.25, 1.5]
    pyplot = pytest.importorskip("matplotlib.pyplot")
    assert NAME in plot(surface).get_legend_handles_labels()[1]
    pyplot.close("all")


def test_on_a_logarithmic_scale_it_ends_at_the_bottom_of_the_figure(make: ModuleType) -> None:
    surface = checked(make.line(), make, band={**BAND, "low": [-1.0, 1.5, 2.0]})
    (trace,) = (each for each in surface.figure(log=True).data if each.name == NAME)
    assert min(trace.y) > 0


@pytest.mark.parametrize(
    "band",
    [None, {}, 3, {**BAND, "low": [1.0]}, {**BAND, "high": [1.0, None, 2.0]}, {**BAND, "at": "abc"}],
)
def test_what_is_no_band_on_disk_is_not_drawn(make: ModuleType, band: Any) -> None:
    assert prepare_seeds(checked(make.line(), make, band=band), "loss") is None


def test_no_other_figure_has_it(make: ModuleType) -> None:
    assert prepare_seeds(make.line(), "loss") is None
    assert prepare_seeds(checked(make.line(), make, kind="pca"), "loss") is None
    assert prepare_figure(checked(make.quadratic(), make)).seeds is None
