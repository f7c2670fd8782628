"""The labels on matplotlib's axes: numbers of snapshots, names of networks, values of contour lines.

They are placed whenever the axes are drawn, since only then the size of the axes, the legend and the fonts are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform
from mpl_toolkits.mplot3d import proj3d

from landscape.core.grid import Floats
from landscape.views.plots.style import HALO, INK, QUIET, plain_label, small
from landscape.views.prepare.labels import Track, free_boxes, place_labels

WHITE = 1.5  # points of white around a mark
STRAIGHT = 0.12  # of its length: how far a contour line may bend below its label
MOST_PER_LINE = 40  # places tried on one contour line


@dataclass(frozen=True, eq=False)
class LabelledMarks:
    """Marks at `places` on the axes, an array per axis, with their texts and their diameters in points."""

    places: tuple[Floats, ...]
    texts: tuple[str, ...]
    sizes: Floats
    named: bool = False


@dataclass(frozen=True, eq=False)
class LabelledLines:
    """Contour lines with the text and the colour of each level."""

    contours: Any
    texts: tuple[str, ...]
    colours: tuple[Any, ...]


class Labels(Artist):
    """All labels of one plot, over everything else on its axes."""

    def __init__(self, ax: Any) -> None:
        super().__init__()
        self._ax = ax
        self._small = small()
        self.marks: list[LabelledMarks] = []
        self.lines: list[LabelledLines] = []
        self._drawn: list[Any] = []
        self.set_zorder(9)
        self.set_in_layout(False)  # labels lie within the axes
        ax.add_artist(self)

    def get_children(self) -> list[Any]:
        """The texts of the last drawing."""
        return list(self._drawn)

    def draw(self, renderer: Any) -> None:
        """Place the labels for the size that the axes have now, and draw them."""
        if not self.get_visible():
            return
        self._drawn = self._placed(renderer)
        for label in self._drawn:
            label.draw(renderer)

    def _placed(self, renderer: Any) -> list[Any]:
        box = scene_box(self._ax) if hasattr(self._ax, "get_proj") else self._ax.bbox
        corner, area = np.array([box.x0, box.y0]), (float(box.width), float(box.height))
        texts = [[self._text(words) for words in marks.texts] for marks in self.marks]
        tracks = [
            Track(
                self._on_paper(marks) - corner,
                np.array([_size(text, renderer) for text in row]).reshape(-1, 2),
                self._pixels(marks.sizes / 2 + WHITE),
                named=marks.named,
            )
            for marks, row in zip(self.marks, texts, strict=True)
        ]
        lines = [_of_line(line, corner, self._pixels(1.0)) for line in self._ax.lines if _is_in_the_way(line)]
        taken = [_moved(extent, corner) for extent in _other_boxes(self._ax, renderer)]
        spots = place_labels([*tracks, *lines], area, taken)
        placed = []
        for row, track, own in zip(texts, tracks, spots, strict=False):
            for spot in own:
                row[spot.index].set_position((spot.x + corner[0], spot.y + corner[1]))
                placed.append(row[spot.index])
                width, height = track.sizes[spot.index] / 2
                taken.append((spot.x - width, spot.y - height, spot.x + width, spot.y + height))
        return [*placed, *self._values(renderer, corner, area, [*tracks, *lines], taken)]

    def _on_paper(self, marks: LabelledMarks) -> Floats:
        """The marks in pixels of the figure, [n, 2]."""
        places: Any = marks.places
        if len(places) == 3:
            places = proj3d.proj_transform(*places, self._ax.get_proj())[:2]
        return np.asarray(self._ax.transData.transform(np.stack(places, axis=1)), np.float64)

    def _pixels(self, points: Any) -> Any:
        return np.asarray(points) * self._ax.figure.dpi / 72

    def _text(self, words: str, **look: Any) -> Any:
        ground = {"boxstyle": "square,pad=0.08", "facecolor": HALO, "edgecolor": "none", "alpha": 0.78}
        options: dict[str, Any] = {
            "ha": "center",
            "va": "center",
            "fontsize": self._small,
            "color": INK,
            "bbox": ground,
        }
        text: Any = Text(0, 0, plain_label(words), **(options | look))
        text.set_figure(self._ax.figure)
        text.axes = self._ax
        text.set_transform(IdentityTransform())
        return text

    def _values(
        self,
        renderer: Any,
        corner: Floats,
        area: tuple[float, float],
        tracks: Sequence[Track],
        taken: list[tuple[float, float, float, float]],
    ) -> Iterator[Any]:
        """The values on contour lines: one per level, where its line is straight and the paper free."""
        for drawn in self.lines:
            paths = zip(drawn.contours.get_paths(), drawn.texts, drawn.colours, strict=True)
            for path, words, colour in paths:
                text = self._text(words, color=colour)
                text.get_bbox_patch().set(facecolor=self._ax.get_facecolor(), alpha=0.9)
                width, height = _size(text, renderer)
                for line in sorted(_pieces(path, self._ax.transData), key=len, reverse=True)[:2]:
                    centres, angles = _straight_places(line - corner, width)
                    boxes = _turned(centres, angles, width, height)
                    free = free_boxes(boxes, tracks, area, taken)
                    if free.any():
                        at = int(np.flatnonzero(free)[0])
                        text.set_position(tuple(centres[at] + corner))
                        text.set_rotation(math.degrees(angles[at]))
                        taken.append(tuple(boxes[at]))
                        yield text
                        break


def scene_box(ax: Any) -> Bbox:
    """The box in pixels around the eight corners of a scene, which may be larger or smaller than its axes."""
    corners = np.array(list(product(ax.get_xlim3d(), ax.get_ylim3d(), ax.get_zlim3d())), np.float64).T
    places = ax.transData.transform(np.stack(proj3d.proj_transform(*corners, ax.get_proj())[:2], axis=1))
    return Bbox([places.min(axis=0), places.max(axis=0)])


def _size(text: Any, renderer: Any) -> tuple[float, float]:
    """The width and height of an unturned text in pixels, with a thin edge."""
    extent = text.get_window_extent(renderer)
    edge = 0.16 * extent.height
    return float(extent.width + edge), float(extent.height + edge)


def _is_in_the_way(line: Any) -> bool:
    return line.get_visible() and line.get_gid() != QUIET and len(line.get_xdata()) > 0


def _of_line(line: Any, corner: Floats, point: float) -> Track:
    """A line or the marks that matplotlib draws, in pixels; `point` is the size of a point."""
    places = np.ma.filled(np.ma.asarray(line.get_transform().transform(line.get_xydata()), np.float64), np.nan)
    marked = line.get_marker() not in ("None", "none", None, "", " ")
    radius = (line.get_markersize() + line.get_markeredgewidth()) / 2 * point if marked else 0.0
    width = line.get_linewidth() * point if line.get_linestyle() not in ("None", "none", "", " ") else 0.0
    return Track(places - corner, np.zeros((len(places), 2)), np.full(len(places), radius), width)


def _other_boxes(ax: Any, renderer: Any) -> Iterator[Any]:
    """The extents of legends and texts on the axes, and of the words that stand within a scene."""
    legends = [legend for legend in (ax.get_legend(), *ax.figure.legends) if legend is not None]
    axes = (ax.xaxis, ax.yaxis, ax.zaxis) if hasattr(ax, "zaxis") else ()
    words = [word for axis in axes for word in (*numbers_of(axis), axis.label) if word.get_text()]
    for artist in (*legends, *ax.texts, *words):
        if artist.get_visible():
            yield artist.get_window_extent(renderer)


def numbers_of(axis: Any) -> list[Any]:
    """The numbers that are drawn; asking matplotlib for tick labels would move them."""
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    return [tick.label1 for tick in axis.get_major_ticks() if low - slack <= tick.get_loc() <= high + slack]


def _moved(extent: Any, corner: Floats) -> tuple[float, float, float, float]:
    return (extent.x0 - corner[0], extent.y0 - corner[1], extent.x1 - corner[0], extent.y1 - corner[1])


def _pieces(path: Any, transform: Any) -> list[Floats]:
    """The connected lines of one level, in pixels."""
    if not len(path.vertices):
        return []
    points = transform.transform(path.vertices)
    codes = path.codes if path.codes is not None else np.r_[Path.MOVETO, np.full(len(points) - 1, Path.LINETO)]
    return [piece for piece in np.split(points, np.flatnonzero(codes == Path.MOVETO)[1:]) if len(piece) > 1]


def _straight_places(line: Floats, width: float) -> tuple[Floats, Floats]:
    """Where a text of this width fits on a line, the straightest stretches in its middle first, and its angles."""
    length = np.r_[0.0, np.cumsum(np.hypot(*np.diff(line, axis=0).T))]
    if length[-1] < 1.6 * width:
        return np.empty((0, 2)), np.empty(0)
    at = np.linspace(0.8 * width, length[-1] - 0.8 * width, MOST_PER_LINE)
    ends = [np.stack([np.interp(at + side * width / 2, length, part) for part in line.T], axis=1) for side in (-1, 1)]
    middle = np.stack([np.interp(at, length, part) for part in line.T], axis=1)
    chord = ends[1] - ends[0]
    bend = np.hypot(*(middle - (ends[0] + ends[1]) / 2).T) + np.maximum(width - np.hypot(*chord.T), 0.0)
    away = np.abs(at - length[-1] / 2) / length[-1]
    kept = np.flatnonzero(bend < STRAIGHT * width)
    order = kept[np.argsort((bend / width + 0.3 * away)[kept], kind="stable")]
    angles = np.arctan2(chord[:, 1], chord[:, 0])
    angles = np.where(np.abs(angles) > math.pi / 2, angles - np.sign(angles) * math.pi, angles)  # never upside down
    return middle[order], angles[order]


def _turned(centres: Floats, angles: Floats, width: float, height: float) -> Floats:
    """The boxes around turned texts, [n, 4]."""
    across = (np.abs(np.cos(angles)) * width + np.abs(np.sin(angles)) * height) / 2
    up = (np.abs(np.sin(angles)) * width + np.abs(np.cos(angles)) * height) / 2
    half = np.stack([across, up], axis=1)
    return np.concatenate([centres - half, centres + half], axis=1)
