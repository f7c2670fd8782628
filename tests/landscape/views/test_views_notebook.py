"""What a notebook shows: a live figure, a static picture beside it, text; a run as a table with pictures."""

from __future__ import annotations

import base64
import dataclasses
import xml.etree.ElementTree as ElementTree
from types import ModuleType

import numpy as np
import plotly.graph_objects as go
import pytest

from landscape.surface.surface import Surface
from landscape.views import notebook
from landscape.views.notebook import run_bundle, small_svg, surface_bundle

PROTOCOL = "_repr_mimebundle_"  # of IPython: what a notebook asks every value for
PLOTLY = "application/vnd.plotly.v1+json"


@pytest.mark.parametrize("name", ["line", "holed", "block"])
def test_a_surface_shows_itself_live_as_a_picture_and_as_text(make: ModuleType, name: str) -> None:
    pytest.importorskip("matplotlib")
    bundle = surface_bundle(getattr(make, name)())
    assert list(bundle) == ["text/plain", PLOTLY, "image/png"]
    assert bundle["text/plain"].startswith("Surface(")
    live = go.Figure(bundle[PLOTLY]["data"], bundle[PLOTLY]["layout"])
    assert live.layout.title.text
    assert bundle[PLOTLY]["config"]["showSendToCloud"] is False
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")


def test_notebooks_ask_by_their_own_name(make: ModuleType) -> None:
    asked = getattr(make.line(), PROTOCOL)(include=None, exclude=None)
    assert asked.keys() == surface_bundle(make.line()).keys()


def test_a_large_surface_is_shown_with_fewer_points(make: ModuleType) -> None:
    field = surface_bundle(make.quadratic(400, 300))[PLOTLY]["data"][0]
    assert field["z"]["shape"] == "161, 161"


def test_without_matplotlib_the_picture_is_an_svg(make: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    picture = surface_bundle(make.holed())["image/svg+xml"]
    assert ElementTree.fromstring(picture).get("width") == "480"


@pytest.mark.parametrize("name", ["line", "holed", "block", "valley"])
def test_the_small_picture_has_lines_in_their_colours(make: ModuleType, name: str) -> None:
    root = ElementTree.fromstring(small_svg(getattr(make, name)()))
    paths = [each for each in root if each.tag.endswith("path")]
    strokes = {each.get("stroke") for each in paths}
    assert len(strokes) == (1 if name == "line" else len(paths))
    places = [float(part) for each in paths for part in each.get("d").replace("M", " ").replace("L", " ").split()]
    assert min(places) >= -1
    assert max(places) <= 225
    holes = [each for each in root if each.tag.endswith("rect")][1:]
    assert bool(holes) == (name == "holed")


def test_text_from_outside_stays_text(make: ModuleType) -> None:
    nasty = dataclasses.replace(make.line(), name="<script>alert(1)</script>")
    assert "<script>" not in small_svg(nasty)
    assert "<script>" not in run_bundle({nasty.name: nasty})["text/html"]


def test_a_run_is_a_table_of_its_landscapes(make: ModuleType) -> None:
    surfaces: dict[str, Surface] = {each.name: each for each in (make.holed(), make.line(), make.block())}
    html = run_bundle(surfaces)["text/html"]
    assert html.count("<img") == 3
    for part in ("minimum", "40 × 30 points", "1\u202f104 of 1\u202f200 points", "0.05"):
        assert part in html
    assert "no landscapes yet" in run_bundle({})["text/html"]
    many = run_bundle({str(k): make.line() for k in range(33)})["text/html"]
    assert "and 3 more landscapes" in many


def test_nothing_computed_yet_still_shows(make: ModuleType) -> None:
    surface = make.quadratic(8, 6)
    empty = {name: np.full(values.shape, np.nan) for name, values in surface.observables.items()}
    surface = dataclasses.replace(surface, observables=empty, status=np.zeros((6, 8), np.uint8))
    assert PLOTLY in surface_bundle(surface)
    assert "<img" in run_bundle({"minimum": surface})["text/html"]
