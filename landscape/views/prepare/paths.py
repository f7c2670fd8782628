"""The data of drawn trajectories, networks and origins: places, losses, texts of the pointer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from landscape.core.grid import Floats
from landscape.core.plan import RECALIBRATE
from landscape.core.text import number_text
from landscape.core.validation import counted
from landscape.surface.barriers import curve_places
from landscape.surface.derived import RISE, bases_of, derive
from landscape.surface.record import SEEN
from landscape.surface.record_entries import BATCH_NORM, Check
from landscape.surface.surface import OK, ProjectedPath, Surface
from landscape.views.prepare import words
from landscape.views.prepare.geometry import bilinear
from landscape.views.prepare.scale import LOG_DECADES, Scale, choose_scale, drawn_values, point_states, spanned_decades
from landscape.views.prepare.words import has_fixed_statistics, mixes_networks, shortened

VISIBLE = 0.05  # of the range drawn: less than the distance of two contour lines, or of two colours of a bar
START, LAST = "start", "last snapshot"


@dataclass(frozen=True, eq=False)
class DrawnPath:
    """The snapshots of a trajectory as drawn, in order; `numbers` count `unit`, step or epoch.

    `places` are their coordinates, one array per axis. `below` is the loss at the projection of each on the axes, and
    `height` the same in drawn units, NaN if it is not known or has no logarithm. `loss` is the loss at the snapshots
    themselves, which lie off the plane, infinite if it is not finite, and `own` the same in drawn units, NaN likewise.
    `apart` is the distance of both losses, as `Along.ranked`. All of these are values of an observable that is computed
    from the loss, such as the perplexity; for any other observable `height` and `own` are NaN, and `apart` is 0. `run`
    is the name of the run, empty for that of the landscape; `number` is the place among the paths of several runs, from
    0, and `shown` the share of its own variance on the axes, if known.
    """

    unit: str
    numbers: tuple[int, ...]
    places: tuple[Floats, ...]
    height: Floats
    below: Floats
    loss: Floats
    own: Floats
    apart: Floats
    hover: tuple[str, ...]
    run: str = ""
    number: int = 0
    shown: float | None = None

    @property
    def name(self) -> str:
        """The legend entry of the line, such as 'trajectory', or 'sgd (epochs 0 to 20)' with several runs."""
        return f"{self.run} ({self.stretch})" if self.run else "trajectory"

    @property
    def stretch(self) -> str:
        """The snapshots on the path: 'epochs 0 to 20', or 'epochs 0-3, 9-12'."""
        return counted(self.unit, self.numbers)

    @property
    def end_name(self) -> str:
        """The legend entry of the last snapshot, such as 'last snapshot (epoch 20)'."""
        return LAST if self.run else f"{LAST} ({self.unit} {self.numbers[-1]})"

    @property
    def start_name(self) -> str:
        """The legend entry of the first snapshot, such as 'start (epoch 0)'."""
        return START if self.run else f"{START} ({self.unit} {self.numbers[0]})"


def prepare_paths(surface: Surface, observable: str, log: bool) -> tuple[DrawnPath, ...]:
    """The paths of `surface` for a figure of `observable`.

    Returns:
        One per run with a drawn path; empty if there is no path, or one has no place on one of the axes.
    """
    paths = [path for path in surface.paths if len(path.step)]
    names = [axis.name for axis in surface.axes]
    places = [_places(path, names) for path in paths]
    if not paths or any(not steps for steps in places):
        return ()
    follows, losses = follows_loss(surface, observable), [_of_losses(surface, observable, path) for path in paths]
    return tuple(
        DrawnPath(
            unit=path.unit,
            numbers=tuple(int(step) for step in path.step),
            places=places[k],
            height=_drawn(losses[k][1], follows, log),
            below=losses[k][1],
            loss=losses[k][0],
            own=_drawn(losses[k][0], follows, log),
            apart=_apart(surface, observable, path, losses[k]) if follows else np.zeros(len(path.step)),
            hover=tuple(
                _hover(path, names, place, observable, losses[k] if follows else None)
                for place in range(len(path.step))
            ),
            run=path.label,
            number=k,
            shown=path.runs[0].shown if path.runs else None,
        )
        for k, path in enumerate(paths)
    )


def follows_loss(surface: Surface, observable: str) -> bool:
    """Whether the observable is the loss or derived from it alone, and so known along a path."""
    record = surface.record
    if observable == "loss" or observable in record.observables:
        return observable == "loss"
    return observable in (*record.derived, RISE) and bases_of(record.derived, observable) == ("loss",)


def _of_losses(surface: Surface, observable: str, path: ProjectedPath) -> tuple[Floats, Floats]:
    """The values at the snapshots and at their projections; the losses for observables not derived from the loss."""
    own, below = path.losses
    if observable == "loss" or not follows_loss(surface, observable):
        return own, below
    derived, origin_loss = surface.record.derived, surface.record.origin_loss
    at_snapshots, at_projections = (derive(derived, {"loss": losses}, origin_loss) for losses in (own, below))
    unknown = np.full(own.shape, np.nan)  # a formula of a later version
    return at_snapshots.get(observable, unknown), at_projections.get(observable, unknown)


def _apart(surface: Surface, observable: str, path: ProjectedPath, values: tuple[Floats, Floats]) -> Floats:
    """The distance of the values at snapshots from those at their projections; 0 if their losses differ by chance."""
    ranked = surface.along(path).ranked
    if observable == "loss":
        return ranked
    with np.errstate(invalid="ignore"):
        gaps = np.nan_to_num(np.abs(values[0] - values[1]), nan=0.0, posinf=np.inf)
    return np.where(ranked > 0, gaps, 0.0)


def _places(path: ProjectedPath, names: Sequence[str]) -> tuple[Floats, ...]:
    """The coordinates, an array per axis; empty if one is not known."""
    if not all(name in path.coordinates for name in names):
        return ()
    places = tuple(np.asarray(path.coordinates[name], np.float64) for name in names)
    return places if all(np.isfinite(place).all() for place in places) else ()


def path_notes(surface: Surface, paths: Sequence[DrawnPath], observable: str, scale: Scale) -> list[str]:
    """The caption's notes on paths: the variance that the axes show, and the distance of losses from the axes' own.

    Then unknown losses, and the effect of batch norm, also for lines between networks. If check 10 has judged that, its
    finding is repeated; if the check holds, nothing is said.
    """
    follows, judged = follows_loss(surface, observable), _judged(surface) if has_fixed_statistics(surface) else None
    # Snapshots have no values of other observables: the loss tells how far the path is off the axes.
    told, limits, name = paths, scale, words.observable_title(observable)
    if not follows:
        told, name = (), "loss"
        if paths and "loss" in surface.observables:
            limits = _loss_scale(surface)
            told = prepare_paths(surface, "loss", limits.log)
    apart = off_the_axes(told, limits, name)
    if judged is None:
        statistics = _statistics(surface, paths, bool(apart))
    else:
        statistics = [] if judged.state == "holds" else [f"{judged.text}; {judged.remedy}".removesuffix("; ")]
        by_check = {judged.numbers.get("snapshot")} if statistics and name == "loss" else set()
        if {_name(path, k) for path, k in _far_off(told, limits)} <= by_check:  # with the same two losses
            apart = []
    shares = [f"{path.run} {100 * path.shown:.0f}\u00a0%" for path in paths if path.run and path.shown is not None]
    return [
        *([f"of each path's own variance the axes show: {', '.join(shares)}"] if shares else []),
        *apart,
        *(_unknown(paths, words.observable_title(observable)) if follows else ()),
        *statistics,
    ]


def _loss_scale(surface: Surface) -> Scale:
    """The default scale of a figure of the loss."""
    values = np.asarray(surface.loss, np.float64)
    log = not surface.record.has_linear_error and spanned_decades(values[surface.status == OK]) > LOG_DECADES
    return choose_scale(drawn_values(values, point_states(values, surface.status, log), log), log)


def off_the_axes(paths: Sequence[DrawnPath], scale: Scale, name: str = "loss") -> list[str]:
    """Notes on each path's largest visible difference between a snapshot and its projection.

    The difference is that of the loss, or of the observable `name` derived from it. It is visible if it exceeds
    `VISIBLE` of the range drawn (of the decades on a logarithmic scale), or if one of both is not finite. The note
    names no cause: the snapshot may lie off the axes, or have other statistics of batch norm.
    """
    far = _far_off(paths, scale)
    if not far:
        return []
    plane = ("line", "plane", "volume")[len(paths[0].places) - 1]
    losses = [number_text(float(path.loss[k]), 3) if math.isfinite(path.loss[k]) else "not finite" for path, k in far]
    below = [number_text(float(path.below[k]), 3) if math.isfinite(path.below[k]) else "" for path, k in far]
    if len(far) == 1:
        path, k = far[0]
        there = f"the {plane} has {below[0]} there" if below[0] else f"the {plane}'s is not finite there"
        return [
            f"the {name} of the path{f' of {path.run}' if path.run else ''} is not that of the {plane}: at {path.unit} "
            f"{path.numbers[k]} it is {losses[0]}, {there}"
        ]
    places = [
        f"{path.run} {path.unit} {path.numbers[k]} ({name} {loss}, {plane} {there or 'not finite'})"
        for (path, k), loss, there in zip(far, losses, below, strict=True)
    ]
    return [f"the {_plural(name)} of the paths are not those of the {plane}, furthest apart at {', '.join(places)}"]


def _far_off(paths: Sequence[DrawnPath], scale: Scale) -> list[tuple[DrawnPath, int]]:
    """Per path the snapshot whose own loss differs most from that of its projection, if the difference is visible."""
    far = []
    for path in paths:
        seen = np.abs(path.own - path.height) > VISIBLE * (scale.high - scale.low)
        apart = np.where(seen | np.isinf(path.apart), path.apart, 0.0)
        far += [(path, int(np.argmax(apart)))] if apart.any() else []
    return far


def _name(path: DrawnPath, k: int) -> str:
    """The name of a snapshot in checks, such as 'epoch 3' or 'epoch 3 of sgd'."""
    return f"{path.unit} {path.numbers[k]}{f' of {path.run}' if path.run else ''}"


def _plural(name: str) -> str:
    return "losses" if name == "loss" else f"values of {name}"


def _unknown(paths: Sequence[DrawnPath], name: str) -> list[str]:
    """Notes on paths whose loss is not known at all points: at how many it is."""
    known = [(path, int(np.isfinite(path.below).sum())) for path in paths]
    return [
        f"{name} on the path{f' of {path.run}' if path.run else ''} known at {count} of {len(path.numbers)} points"
        for path, count in known
        if count < len(path.numbers)
    ]


def _judged(surface: Surface) -> Check | None:
    """The finding of check 10; None if it has not judged the landscape."""
    checks = surface.record.checks
    results = () if checks is None else checks.of("holds", "reservation", "fails")
    return next((result for result in results if result.number == BATCH_NORM), None)


def _statistics(surface: Surface, paths: Sequence[DrawnPath], told: bool) -> list[str]:
    """A note that batch norm's statistics of other weights may change losses below a path or between networks.

    For a path: if a snapshot's own loss and the plane's differ by more than 3 standard errors of the rise and 1 % of
    the height of the path. For a line: if its barrier exceeds its error.

    Args:
        told: whether the caption already says that the losses differ.
    """
    if not has_fixed_statistics(surface):
        return []
    if mixes_networks(surface):
        barrier = surface.find_barrier() if len(surface.axes) == 1 else None
        if barrier is not None and (barrier.height == 0 or barrier.is_within_error):
            return []
        mixed = "between the networks batch norm's statistics are mixed from theirs, and may raise the loss"
        return [f"{mixed}; {RECALIBRATE}"]
    drawn = {path.run for path in paths}
    along = [surface.along(path) for path in surface.paths if path.label in drawn]
    if not any((part.clear > SEEN * part.height).any() for part in along):
        return []
    plane = ("line", "plane", "volume")[len(surface.axes) - 1]
    may = "" if told else ", by which their losses may differ"
    return [
        f"batch norm has the origin's statistics on the whole {plane}, and each snapshot its own{may}; {RECALIBRATE}"
    ]


def ends_of(paths: Sequence[DrawnPath], k: int) -> tuple[float, float]:
    """The smallest and the largest coordinate of all paths on axis `k`; inf and -inf without a path."""
    everywhere = np.concatenate([path.places[k] for path in paths]) if paths else np.empty(0)
    return float(everywhere.min(initial=np.inf)), float(everywhere.max(initial=-np.inf))


def _drawn(values: Floats, known: bool, log: bool) -> Floats:
    """The values in drawn units; all NaN for observables that are not known along the path."""
    values = np.asarray(values, np.float64)
    if not known:
        return np.full(values.shape, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = np.log10(np.where(values > 0, values, np.nan)) if log else values
    return np.where(np.isfinite(drawn), drawn, np.nan)


def _hover(
    path: ProjectedPath, names: Sequence[str], k: int, observable: str, known: tuple[Floats, Floats] | None
) -> str:
    """The pointer's text at a snapshot; `known` are the values there and at its projection, if any."""
    last = f" ({LAST})" if k == len(path.step) - 1 else f" ({START})" if k == 0 else ""
    run = f"{escape(path.label, quote=False)}, " if path.label else ""
    lines = [f"<b>{run}{path.unit} {int(path.step[k])}</b>{last}"]
    lines += [f"{name} {number_text(float(path.coordinates[name][k]))}" for name in names]
    own, projected = path.losses
    title = words.observable_title(observable)
    derived = (
        () if known is None or observable == "loss" else ((title, known[0]), (f"{title} at its projection", known[1]))
    )
    facts = (
        *((escape(name, quote=False), values) for name, values in derived),
        ("loss", own),
        ("loss at its projection", projected),
        ("distance off the plane", path.distance),
    )
    for name, values in facts:
        value = float(values[k])
        unknown = "not finite" if math.isinf(value) else "not known"
        lines.append(f"{name} {number_text(value, 5) if math.isfinite(value) else unknown}")
    if known is None:
        lines.append(f"{escape(observable.replace('_', ' '), quote=False)} not known along the path")
    return "<br>".join(lines)


# ----------------------------------------------------------------------------------------------------
# The marks of the networks that a plane runs through, and the curve between two of them.

CURVE_POINTS = 121
NAME_LETTERS = 24  # of a label beside its mark
SAME_PLACE = 1e-3  # of the axes' spans


@dataclass(frozen=True, eq=False)
class Networks:
    """The networks at their places on the first two axes.

    Attributes:
        places: [2, n].
        names: short enough to stand beside the marks.
        hover: in plotly's markup.
        heights: in drawn units [n], interpolated between grid points; NaN beyond the grid.
        curve: places of the curve's points [2, m]; empty without a curve.
        curve_heights: [m].
    """

    places: Floats
    names: tuple[str, ...]
    hover: tuple[str, ...]
    heights: Floats
    curve: Floats
    curve_heights: Floats
    curve_name: str = ""

    title = "networks"


def prepare_networks(surface: Surface, drawn: Floats, paths: Sequence[DrawnPath] = ()) -> Networks | None:
    """The networks of a plane for a figure; None for other landscapes.

    Args:
        drawn: the values of the surface in drawn units.
        paths: the drawn paths: a network that is a snapshot of a path has no mark of its own.
    """
    if len(surface.axes) != 2:
        return None
    known = [axis.record.networks for axis in surface.axes]
    if (
        known[0] is None
        or known[1] is None
        or [finding.name for finding in known[0]] != [finding.name for finding in known[1]]
    ):
        return None
    places = np.array([[network.at for network in axis] for axis in known if axis is not None])
    x, y = (axis.coordinates for axis in surface.axes)

    kind = surface.axes[0].record.curve
    curve = np.empty((2, 0))
    if kind is not None and places.shape[1] == 3:
        curve = curve_places(kind, places.T, np.linspace(0, 1, CURVE_POINTS)).T
    losses = network_losses(surface)
    hover = tuple(
        f"<b>{escape(network.name, quote=False)}</b><br>"
        + ", ".join(f"{axis.name} {number_text(float(at), 4)}" for axis, at in zip(surface.axes, place, strict=True))
        + (f"<br>loss {number_text(loss)}" if np.isfinite(loss) else "")
        for network, place, loss in zip(known[0], places.T, losses, strict=True)
    )
    names = tuple(shortened(network.name, NAME_LETTERS) for network in known[0])
    heights, of_curve = (bilinear(x, y, drawn, at[0], at[1]) for at in (places, curve))
    shown = [k for k, place in enumerate(places.T) if not _is_on(paths, place, (x[-1] - x[0], y[-1] - y[0]))]
    if not shown and not curve.size:
        return None
    names, hover = (tuple(texts[k] for k in shown) for texts in (names, hover))
    return Networks(
        places[:, shown], names, hover, heights[shown], curve, of_curve, f"{kind} curve" if curve.size else ""
    )


def _is_on(paths: Sequence[DrawnPath], place: Floats, spans: tuple[float, float]) -> bool:
    """Whether a snapshot of a path visibly lies at this place."""
    away = [np.hypot(*((path.places[k] - place[k]) / spans[k] for k in (0, 1))) for path in paths]
    return any(bool((far < SAME_PLACE).any()) for far in away)


def network_notes(surface: Surface) -> list[str]:
    """The caption's note on the losses of the networks; empty if none is known."""
    names = [network.name for network in surface.axes[0].record.networks or ()]
    known = [
        f"{shortened(name, NAME_LETTERS)} {number_text(loss)}"
        for name, loss in zip(names, network_losses(surface), strict=True)
        if np.isfinite(loss)
    ]
    return [f"loss at the networks: {', '.join(known)}"] if known else []


def network_losses(surface: Surface) -> Floats:
    """The own loss of each network that the axes run through; NaN if it is not known."""
    known = surface.axes[0].record.networks or ()
    evaluated = surface.networks
    if evaluated is None or len(evaluated.loss) != len(known):
        return np.full(len(known), np.nan)
    return np.asarray(evaluated.loss, np.float64)


# ----------------------------------------------------------------------------------------------------
# The mark of the origin: the weights where the axes cross, at 0 on all of them.


@dataclass(frozen=True)
class OriginMark:
    """The origin of a landscape; `height` is its value in drawn units, NaN if that is not known."""

    height: float
    hover: str  # in plotly's markup

    name = "origin"


def prepare_origin(surface: Surface, observable: str, drawn: Floats, log: bool) -> OriginMark | None:
    """The origin for a figure of `observable`; None if it lies outside the axes.

    The loss at the origin is evaluated for every landscape. Another observable is known if the grid has a point there,
    and interpolated along a single axis.

    Args:
        drawn: the values of the surface in drawn units.
    """
    if not all(axis.coordinates[0] <= 0 <= axis.coordinates[-1] for axis in surface.axes):
        return None
    value = {"loss": surface.origin_loss, RISE: 0.0}.get(observable, math.nan)
    if math.isfinite(value) and (value > 0 or not log):
        height = math.log10(value) if log else value
    else:
        height = _on_grid(surface, drawn)
    known = value if math.isfinite(value) else None
    if known is None and math.isfinite(height) and origin_index(surface) is not None:
        known = 10.0**height if log else height
    what, title = (
        escape(name, quote=False) for name in (surface.record.origin_name, words.observable_title(observable))
    )
    lines = [f"<b>origin</b>{f' ({what})' if what else ''}"]
    error = surface.origin_loss_stderr if observable == "loss" else math.nan
    lines += [f"{title} {words.value_with_error(known, error)}"] if known is not None else []
    went_on_to = surface.record.went_on_to
    lines += [f"training went on to {escape(went_on_to, quote=False)}"] if went_on_to else []
    return OriginMark(height, "<br>".join(lines))


def _on_grid(surface: Surface, drawn: Floats) -> float:
    index = origin_index(surface)
    if index is not None:
        return float(drawn[index])
    if len(surface.axes) == 1:
        return float(np.interp(0.0, surface.axes[0].coordinates, drawn))
    return math.nan


def origin_index(surface: Surface) -> tuple[int, ...] | None:
    """The index of the grid point at exactly 0 on all axes; None if there is none."""
    zeros = [np.flatnonzero(axis.coordinates == 0) for axis in surface.axes]
    return tuple(int(places[0]) for places in reversed(zeros)) if all(places.size for places in zeros) else None
