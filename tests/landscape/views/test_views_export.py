"""Every format, read back by a reader that knows nothing of this project."""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
import json
import re
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType
from typing import Any

import meshio
import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image

from landscape.core.errors import JobError, LandscapeError
from landscape.surface.surface import ProjectedPath, Surface
from landscape.views import exporting
from landscape.views.draw.comparison import compare
from landscape.views.draw.quantisation import draw_terraces
from landscape.views.exporting import (
    FORMAT_TABLE,
    FORMATS,
    Browser,
    ExportRequest,
    Format,
    Writer,
    data_format,
    export,
    export_name,
    files_beside,
    observable_stem,
)
from landscape.views.prepare.geometry import triangulated
from landscape.views.prepare.quantisation import StepPatch


def columns(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("name", ["line", "holed", "block"])
def test_csv_holds_every_point_in_full_precision(make: ModuleType, tmp_path: Path, name: str) -> None:
    surface = getattr(make, name)()
    table = columns(export(surface, "csv", tmp_path / "a.csv"))
    assert list(table) == [*(axis.name for axis in surface.axes), *surface.observables, "status"]
    np.testing.assert_array_equal(table["loss"], surface.loss.ravel())
    np.testing.assert_array_equal(table["status"], surface.status.ravel())
    row = surface.status.size // 3
    index = np.unravel_index(row, surface.status.shape)
    for axis, k in zip(surface.axes, reversed(index), strict=True):
        assert table[axis.name][row] == axis.coordinates[k]


@pytest.mark.parametrize("name", ["line", "pca_plane", "holed", "block"])
def test_csv_has_the_path_in_a_table_of_its_own(make: ModuleType, tmp_path: Path, name: str) -> None:
    surface = make.line(path=True) if name == "line" else getattr(make, name)()
    path = dataclasses.replace(surface.path, loss=np.where(surface.path.step == 2, np.nan, surface.path.loss))
    surface = dataclasses.replace(surface, path=path)
    export(surface, "csv", tmp_path / "a.csv")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a+path.csv", "a.csv"]
    assert list(files_beside(surface, "csv", tmp_path / "a.csv")) == [tmp_path / "a+path.csv"]
    table = columns(tmp_path / "a+path.csv")
    axes = [axis.name for axis in surface.axes]
    assert list(table) == [path.unit, *axes, "loss", "projected_loss", "distance", "status"]
    np.testing.assert_array_equal(table[path.unit], path.step)
    for axis in axes:
        np.testing.assert_array_equal(table[axis], path.coordinates[axis])
    for column in ("loss", "projected_loss", "distance", "status"):
        np.testing.assert_array_equal(table[column], getattr(path, column))
    # numpy alone reads both, as every column holds numbers.
    assert np.loadtxt(tmp_path / "a.csv", delimiter=",", skiprows=1).shape[0] == surface.status.size


def test_csv_of_a_surface_without_a_path_is_one_file(make: ModuleType, tmp_path: Path) -> None:
    export(make.line(), "csv", tmp_path / "a.csv")
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]
    assert not files_beside(make.line(), "csv", tmp_path / "a.csv")
    assert not files_beside(make.line(path=True), "npz", tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["line", "holed", "block"])
def test_npz_loads_without_pickle(make: ModuleType, tmp_path: Path, name: str) -> None:
    surface = getattr(make, name)()
    with np.load(export(surface, "npz", tmp_path / "a.npz"), allow_pickle=False) as found:
        np.testing.assert_array_equal(found["loss"], surface.loss)
        np.testing.assert_array_equal(found["alpha"], surface.alpha)
        metadata = json.loads(str(found["metadata"]))
        if surface.path is not None:
            np.testing.assert_array_equal(found["path_projected_loss"], surface.path.projected_loss)
            assert metadata["path_unit"] == "epoch"
        assert metadata["status"] == {"0": "not computed", "1": "ok", "2": "not finite", "3": "quarantined"}
    assert metadata["attributes"]["digest"] == surface.attributes["digest"]
    assert metadata["dimensions"] == list(surface.dimensions)


@pytest.mark.parametrize(("name", "cell"), [("line", "line"), ("holed", "quad"), ("block", "hexahedron")])
def test_vtk_has_all_arrays_and_well_formed_cells(make: ModuleType, tmp_path: Path, name: str, cell: str) -> None:
    surface = getattr(make, name)()
    mesh = meshio.read(export(surface, "vtk", tmp_path / "a.vtk"))
    assert [block.type for block in mesh.cells] == [cell]
    assert len(mesh.cells[0].data) == np.prod([size - 1 for size in surface.status.shape])
    np.testing.assert_array_equal(mesh.point_data["loss"].ravel(), surface.loss.ravel())
    np.testing.assert_array_equal(mesh.point_data["status"].ravel(), surface.status.ravel())
    spans = [np.ptp(axis.coordinates) for axis in surface.axes]
    assert total_size(mesh.points, mesh.cells[0].data, len(spans)) == pytest.approx(np.prod(spans))


def total_size(points: np.ndarray, cells: np.ndarray, axes: int) -> float:
    """Length, area or volume of the cells, from their corners in VTK's order; negative for an inverted cell."""
    corner = points[cells]
    if axes == 1:
        return float((corner[:, 1, 0] - corner[:, 0, 0]).sum())
    if axes == 2:
        one, two = corner[:, 2] - corner[:, 0], corner[:, 3] - corner[:, 1]
        return float((one[:, 0] * two[:, 1] - one[:, 1] * two[:, 0]).sum() / 2)
    edges = [corner[:, k] - corner[:, 0] for k in (1, 3, 4)]
    return float(np.linalg.det(np.stack(edges, axis=1)).sum())


@pytest.mark.parametrize("log", [False, True])
def test_stl_is_the_relief_of_the_finite_squares(make: ModuleType, tmp_path: Path, log: bool) -> None:
    surface = make.holed()
    mesh = meshio.read(export(surface, "stl", tmp_path / "a.stl", log=log))
    triangles = mesh.cells_dict["triangle"]
    whole = np.isfinite(surface.loss)
    whole = whole[1:, 1:] & whole[1:, :-1] & whole[:-1, 1:] & whole[:-1, :-1]
    assert len(triangles) == 2 * whole.sum()
    height = make.bowl(mesh.points[:, 0], mesh.points[:, 1])
    np.testing.assert_allclose(mesh.points[:, 2], np.log10(height) if log else height, atol=2e-6)


def test_triangles_face_upwards() -> None:
    points, triangles = triangulated(np.arange(4.0), np.arange(3.0), np.random.default_rng(0).random((3, 4)))
    a, b, c = (points[triangles[:, k]] for k in range(3))
    assert (np.cross(b - a, c - a)[:, 2] > 0).all()


def test_html_is_offline_and_without_a_cloud(make: ModuleType, tmp_path: Path) -> None:
    page = export(make.pca_plane(), "html", tmp_path / "a.html", kind="contour").read_text(encoding="utf-8")
    assert page.count("plotly.js v") == 1
    assert '"showSendToCloud": false' in page
    assert '<script src="http' not in page
    assert '"filename": "epochs-1-26-contour"' in page


@pytest.mark.parametrize(
    ("name", "kind", "log"),
    [
        ("quadratic", "contour", True),
        pytest.param("holed", "topographic", False, marks=pytest.mark.faults),
        pytest.param("line", "curve", False, marks=pytest.mark.faults),
        ("holed", "surface", True),
    ],
)
def test_png_is_a_picture_of_the_right_size(
    make: ModuleType, tmp_path: Path, drawer: Browser, name: str, kind: str, log: bool
) -> None:
    surface = getattr(make, name)()
    path = export(surface, "png", tmp_path / "a.png", kind=kind, log=log, scale=1, in_browser=drawer)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    layout = surface.figure(kind, log=log).layout
    assert struct.unpack(">II", data[16:24]) == (layout.width, layout.height)
    assert len(data) > 20_000


def test_svg_holds_the_words_of_the_figure(make: ModuleType, tmp_path: Path, drawer: Browser) -> None:
    path = export(make.holed(), "svg", tmp_path / "a.svg", kind="contour", in_browser=drawer)
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join("".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text"))
    for part in ("minimum: loss", "quarantined: 16 points", "512 samples", "last snapshot (epoch 10)", "0.25"):
        assert part in words


def test_lines_on_a_log_scale_carry_real_values(make: ModuleType, tmp_path: Path, drawer: Browser) -> None:
    """Plotly takes the texts from the colour bar's ticks: if that ever ends, the labels would read log10."""
    decades, uneven = {"0.1", "1", "10", "100", "1000", *(f"1e{k}" for k in range(4, 13))}, {"0.2", "0.5", "1", "2"}
    finer = {"0.12", "0.15", "0.25", "0.3", "0.4", "0.6", "0.8", "1.2", "1.5", "2.5", "3"}
    assert labels_of_lines(make.valley(), tmp_path, drawer) <= decades
    assert uneven <= labels_of_lines(make.quadratic(41, 31), tmp_path, drawer) <= uneven | finer


def labels_of_lines(surface: Surface, folder: Path, drawer: Browser) -> set[str]:
    path = export(surface, "svg", folder / "a.svg", kind="contour", log=True, in_browser=drawer)
    svg = "{http://www.w3.org/2000/svg}"
    groups = [
        each for each in ElementTree.parse(path).getroot().iter(f"{svg}g") if each.get("class") == "contourlabels"
    ]
    return {"".join(text.itertext()) for group in groups for text in group.iter(f"{svg}text")}


def test_without_a_browser_the_message_says_how_to_get_one(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "find_browser", lambda: None)
    with pytest.raises(LandscapeError, match=r"apt install chromium.*BROWSER_PATH"):
        export(make.line(), "png", tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_a_browser_that_does_not_start_is_named(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kaleido")
    monkeypatch.setattr(exporting, "find_browser", lambda: "/usr/bin/odd")

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("it crashed")

    monkeypatch.setattr("kaleido.Kaleido", broken)
    with pytest.raises(LandscapeError, match=r"'/usr/bin/odd' does not start \(it crashed\)"):
        export(make.line(), "png", tmp_path / "a.png")


def test_unknown_formats_and_stl_of_a_line_are_refused(make: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="unknown 'pgn'; did you mean 'png'"):
        export(make.line(), "pgn", tmp_path / "a")
    with pytest.raises(JobError, match="stl needs 2 axes, 'line' has 1; use vtk"):
        export(make.line(), "stl", tmp_path / "a.stl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["csv", "npz", "vtk", "html"])
def test_a_failing_write_leaves_the_old_file_and_no_rest(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    target = tmp_path / f"a.{format}"
    target.write_text("old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(LandscapeError, match="cannot be written: No space left on device"):
        export(make.quadratic(), format, target)
    assert target.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == [target.name]


def test_names_tell_files_apart(make: ModuleType) -> None:
    surface = make.quadratic()
    names = [export_name(surface, format, log=True) for format in FORMATS]
    assert names[:2] == ["minimum-topographic-log.html", "minimum-topographic-log.png"]
    assert names[list(FORMATS).index("csv")] == "minimum.csv"
    assert len(set(names)) == len(FORMATS)


def test_a_format_is_added_by_one_line_of_the_table(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def render_rows(surface: Surface, request: ExportRequest) -> Writer:
        values = surface[request.figure.observable]
        return lambda path: np.savetxt(path, values)

    def write_lowest(surface: Surface, path: Path) -> None:
        path.write_text(json.dumps(surface.minimum()))

    def write_steps(trajectory: ProjectedPath, path: Path) -> None:
        path.write_text(str(trajectory.step.tolist()))

    monkeypatch.setitem(FORMAT_TABLE, "rows", Format(render_rows, observable_stem))
    monkeypatch.setitem(FORMAT_TABLE, "lowest", data_format(write_lowest, write_steps))
    surface = make.pca_plane()
    rows = export(
        surface, "rows", tmp_path / export_name(surface, "rows", observable="accuracy"), observable="accuracy"
    )
    np.testing.assert_array_equal(np.loadtxt(rows), surface.accuracy)
    assert rows.name == "epochs-1-26-accuracy.rows"
    lowest = export(surface, "lowest", tmp_path / export_name(surface, "lowest"))
    assert json.loads(lowest.read_text()) == surface.minimum()
    assert [path.name for path in files_beside(surface, "lowest", lowest)] == ["epochs-1-26+path.lowest"]
    assert json.loads((tmp_path / "epochs-1-26+path.lowest").read_text()) == surface.path.step.tolist()
    with pytest.raises(JobError, match="unknown 'row'; did you mean 'rows'"):
        export(surface, "row", tmp_path / "a")


def test_the_formats_of_the_version_before_are_there() -> None:
    assert {"html", "png", "svg", "csv", "npz", "vtk", "stl"} <= set(FORMATS)


def scenes_of(figure: go.Figure) -> list[str]:
    return sorted({trace.scene or "scene" for trace in figure.data if hasattr(trace, "scene")})


def only(figure: go.Figure, scene: str) -> go.Figure:
    """The figure without its other scenes; all else stays in its place."""
    traces = [trace.to_plotly_json() | {"scene": "scene"} for trace in figure.data if (trace.scene or "scene") == scene]
    layout = {key: part for key, part in figure.layout.to_plotly_json().items() if not key.startswith("scene")}
    return go.Figure(traces, layout | {"scene": figure.layout[scene]})


def pixels(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"), np.int16)


def area(figure: go.Figure, scene: str, scale: float) -> tuple[slice, slice]:
    """Where that scene lies in a picture of the figure, by rows and columns."""
    domain, layout = figure.layout[scene].domain, figure.layout
    left, right = (round(at * layout.width * scale) for at in domain.x)
    top, bottom = (round((1 - at) * layout.height * scale) for at in reversed(domain.y))
    return slice(top, bottom), slice(left, right)


def share_that_differs(one: np.ndarray, other: np.ndarray) -> float:
    """The share of the pixels of which a colour differs by more than 24 of 255: more than antialiasing changes."""
    return float((np.abs(one - other).max(axis=-1) > 24).mean())


def hills(make: ModuleType) -> list[tuple[str, Surface]]:
    """Three surfaces that differ much: each hides other parts of the picture."""
    plane = make.quadratic(21, 21, path=make.spiral())
    x, y = np.meshgrid(plane.alpha, plane.beta)
    losses = {"along": 0.3 + x**2 + 0.1 * y**2, "across": 0.3 + 0.1 * x**2 + y**2, "saddle": 3 + x**2 - y**2}
    return [
        (name, dataclasses.replace(plane, observables={**plane.observables, "loss": loss}))
        for name, loss in losses.items()
    ]


def several_scenes(make: ModuleType) -> dict[str, tuple[go.Figure, float]]:
    """All figures that have more than one scene, and at which scale each is exported."""
    rise = np.add.outer(np.linspace(-1, 1, 9) ** 2, np.linspace(0, 1, 9))
    at = np.linspace(-1, 1, 9)
    patch = StepPatch(("plain", "rounded"), ("A patch",), ("alpha", "beta"), (at, at), (rise, rise.T[::-1]), 0.0, 2.0)
    dark = {"theme": "dark", "uncertainty": True, "path": False}
    return {
        "tiles": (compare(hills(make), "tiled", "surface"), 0.5),
        "dark tiles with sheets": (compare(hills(make), "tiled", "surface", **dark), 1),
        "volumes": (compare([("one", make.block()), ("two", make.block())], "tiled", "volume"), 1),
        "differences": (compare(hills(make), "difference", "surface"), 2),
        "terraces": (draw_terraces(patch), 1),
    }


@pytest.mark.faults
@pytest.mark.parametrize("name", ["tiles", "dark tiles with sheets", "volumes", "differences", "terraces"])
def test_every_scene_of_a_picture_is_as_drawn_alone(make: ModuleType, drawer: Browser, name: str) -> None:
    """Plotly draws all scenes on one canvas: the depths of one must not hide parts of the next."""
    whole, scale = several_scenes(make)[name]
    assert len(scenes_of(whole)) > 1
    together = pixels(drawer.draw(whole, "png", scale))
    for scene in scenes_of(whole):
        alone, where = pixels(drawer.draw(only(whole, scene), "png", scale)), area(whole, scene, scale)
        assert np.ptp(alone[where]) > 100, "nothing is drawn"
        assert share_that_differs(together[where], alone[where]) < 0.001, scene


@pytest.mark.faults
def test_scenes_within_svg_and_by_plotlys_own_export_are_as_drawn_alone(
    make: ModuleType, tmp_path: Path, drawer: Browser
) -> None:
    whole = compare(hills(make)[:2], "tiled", "surface")

    def pictures_in(svg: bytes) -> list[np.ndarray]:
        marked = re.findall(rb'href="data:image/png;base64,([^"]+)"', svg)
        return [pixels(base64.b64decode(part)) for part in marked]

    drawn = pictures_in(drawer.draw(whole, "svg", 1.0))
    assert len(drawn) == 2
    for scene, picture in zip(scenes_of(whole), drawn, strict=True):
        (alone,) = pictures_in(drawer.draw(only(whole, scene), "svg", 1.0))
        assert share_that_differs(picture, alone) < 0.001, scene
    whole.write_image(tmp_path / "own.png", scale=1)
    own = pixels((tmp_path / "own.png").read_bytes())
    assert share_that_differs(own, pixels(drawer.draw(whole, "png", 1))) < 0.001


def test_no_two_scenes_that_are_drawn_one_after_the_other_have_one_size(make: ModuleType) -> None:
    """Plotly clears the depths of a scene only where the canvas changes its size; the first follows the last."""
    for count in range(2, 8):
        whole = compare((hills(make) * 3)[:count], "tiled", "surface", path=False)
        domains = [whole.layout["scene" if k == 0 else f"scene{k + 1}"].domain for k in range(count)]
        sizes = [(d.x[1] - d.x[0]) * whole.layout.width for d in domains]
        assert all(abs(sizes[k] - sizes[k - 1]) > 3.4 for k in range(count)), sizes
        assert max(sizes) - min(sizes) < 9, "the scenes look alike"
