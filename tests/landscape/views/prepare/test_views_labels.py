"""Labels of snapshots: over no line, mark, legend, frame or other label, on twenty paths; as many as fit."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import label_boxes
import numpy as np
import pytest

from landscape.surface.surface import ProjectedPath
from landscape.views.draw.figure import figure
from landscape.views.prepare.labels import Track, place_labels

AREA = (560.0, 420.0)
SIZE, MARK, STAR = np.array([17.0, 15.0]), 6.0, 11.0
LEGEND = (400.0, 300.0, 555.0, 415.0)


def on_paper(points: np.ndarray) -> np.ndarray:
    return (points + 1) / 2 * AREA


def track(points: np.ndarray) -> Track:
    radii = np.full(len(points), MARK)
    radii[-1] = STAR
    return Track(on_paper(points), np.tile(SIZE, (len(points), 1)), radii, width=4.0)


def box_of(spot) -> label_boxes.Box:
    half = SIZE / 2
    return (spot.x - half[0], spot.y - half[1], spot.x + half[0], spot.y + half[1])


@pytest.mark.parametrize("shape", label_boxes.shapes())
def test_no_label_lies_on_anything(shape: str) -> None:
    path = track(label_boxes.shapes()[shape])
    (spots,) = place_labels([path], AREA, [LEGEND])
    boxes = [box_of(spot) for spot in spots]
    assert not label_boxes.overlapping(boxes)
    for box in boxes:
        assert min(box[:2]) >= 0
        assert box[2] <= AREA[0]
        assert box[3] <= AREA[1]
        assert not label_boxes.overlap(box, LEGEND)
        assert not label_boxes.on_line(box, path.points, path.width / 2 - 1e-6)
        for (x, y), radius in zip(path.points, path.radii, strict=True):
            assert not label_boxes.overlap(box, (x - radius, y - radius, x + radius, y + radius))
    for spot in spots:
        away = np.abs(path.points[spot.index] - (spot.x, spot.y)) - SIZE / 2 - path.radii[spot.index]
        assert away.max() < 2 * SIZE[1], "a label far from its mark is read as that of another"


def test_first_and_last_come_first_and_all_where_there_is_room() -> None:
    shapes = label_boxes.shapes()
    for shape in ("spiral", "diagonal", "zigzag", "parabola", "straight", "two snapshots", "one snapshot"):
        (spots,) = place_labels([track(shapes[shape])], AREA)
        assert [spot.index for spot in spots] == list(range(len(shapes[shape]))), shape
    for shape in ("dense spiral", "long spiral", "walk", "long walk"):
        points = shapes[shape]
        (spots,) = place_labels([track(points)], AREA)
        assert {0, len(points) - 1} & {spot.index for spot in spots}, shape
        assert len(spots) >= 10, shape


def test_the_farthest_from_those_before_come_next() -> None:
    points = np.stack([np.linspace(-0.9, 0.9, 181), np.zeros(181)], axis=1)
    wide = dataclasses.replace(track(points), sizes=np.tile([150.0, 15.0], (181, 1)))
    (spots,) = place_labels([wide], AREA)
    assert {0, 90, 180} <= {spot.index for spot in spots}, "the middle is farthest from both ends"


def test_names_come_before_numbers_and_two_paths_share_the_paper() -> None:
    shapes = label_boxes.shapes()
    names = Track(
        on_paper(np.array([[0.0, 0.0], [0.02, 0.0]])), np.tile([90.0, 15.0], (2, 1)), np.full(2, 6.0), named=True
    )
    tracks = [track(shapes["walk"]), track(shapes["spiral"]), names]
    first, second, named = place_labels(tracks, AREA)
    assert len(named) == 2
    assert first
    assert second
    boxes = [box_of(spot) for spot in (*first, *second)]
    boxes += [(spot.x - 45, spot.y - 7.5, spot.x + 45, spot.y + 7.5) for spot in named]
    assert not label_boxes.overlapping(boxes)
    for box in boxes:
        assert not any(label_boxes.on_line(box, one.points, one.width / 2 - 1e-6) for one in tracks[:2])


def test_unknown_places_and_places_off_the_paper_have_no_label() -> None:
    points = np.array([[0.0, 0.0], [np.nan, 0.0], [3.0, 0.0], [0.5, 0.5]])
    (spots,) = place_labels([track(points)], AREA)
    assert [spot.index for spot in spots] == [0, 3]
    assert place_labels([], AREA) == []


@pytest.mark.parametrize("preset", [None, "column", "page"])
@pytest.mark.parametrize("shape", label_boxes.shapes())
def test_labels_of_figures_lie_on_nothing_at_any_size(make: ModuleType, shape: str, preset: str | None) -> None:
    points = label_boxes.shapes()[shape] * np.array([1.0, 0.75])
    ones = np.ones(len(points))
    path = ProjectedPath(
        "epoch", np.arange(len(points)), {"alpha": points[:, 0], "beta": points[:, 1]}, ones, ones, ones,
        np.ones(len(points), np.uint8),
    )  # fmt: skip
    drawn = figure(make.quadratic(12, 9, path=path), "contour", preset=preset)
    layout = drawn.layout
    if preset is None:
        plot = np.array(layout.meta["plot"])
    else:
        plot = np.array(
            [layout.width - layout.margin.l - layout.margin.r, layout.height - layout.margin.t - layout.margin.b]
        )
    low, high = (np.array([axis.range[k] for axis in (layout.xaxis, layout.yaxis)]) for k in (0, 1))
    scale = (plot / (high - low)).min()
    line = (points - low) * scale
    boxes = []
    for note in layout.annotations:
        if note.name == "step":
            centre = (np.array([note.x, note.y]) - low) * scale + (note.xshift, note.yshift)
            words = note.text.removeprefix("<b>").removesuffix("</b>")
            half = np.array([0.56 * note.font.size * len(words), 1.2 * note.font.size]) / 2
            boxes.append((*(centre - half), *(centre + half)))
    assert boxes or shape in ("one point many times",)
    assert not label_boxes.overlapping(boxes)
    for box in boxes:
        assert min(box[:2]) >= 0
        assert box[2] <= (high - low)[0] * scale
        assert box[3] <= (high - low)[1] * scale
        assert not label_boxes.on_line(box, line, 1.0)
