"""From a surface to the numbers and words of one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats
from landscape.core.text import number_text
from landscape.surface.derived import RISE, bases_of
from landscape.surface.record_entries import (
    EIG_MAX,
    EIG_MIN,
    EIG_MIN_RESIDUAL,
    EIG_NEGATIVE,
    NO,
    UNDECIDED,
    YES,
    ZERO,
    is_negative,
    products_in_float32,
)
from landscape.surface.surface import NOT_FINITE, OK, SAMPLES_KNOWN, Axis, Surface
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare import words
from landscape.views.prepare.paths import (
    DrawnPath,
    Networks,
    OriginMark,
    network_notes,
    path_notes,
    prepare_networks,
    prepare_origin,
    prepare_paths,
)
from landscape.views.prepare.scale import (
    LOG_DECADES,
    NO_SIGN,
    STATES,
    UNRESOLVED,
    Scale,
    choose_scale,
    drawn_values,
    point_states,
    spanned_decades,
)
from landscape.views.prepare.uncertainty import (
    Extrema,
    SeedBand,
    difference_in_errors,
    evaluated_text,
    prepare_extrema,
    prepare_seeds,
    rise_over_origin,
    standard_error,
)
from landscape.views.prepare.words import resolution

# ----------------------------------------------------------------------------------------------------
# Observables whose values stand for names, and points with known layers although the loss is not finite.


def status_of(surface: Surface, observable: str) -> NDArray[np.uint8]:
    """The status of the points; observables of layers are known even if the loss is not finite."""
    layers = surface.record.layers
    if layers is None or observable not in layers.observables:
        return surface.status
    known = (surface.status == NOT_FINITE) & np.isfinite(surface[observable])
    return np.where(known, OK, surface.status).astype(np.uint8)


# ----------------------------------------------------------------------------------------------------
# Thinning surfaces with more points than a screen shows: points are picked, never changed.

MAX_POINTS = {1: 100_001, 2: 1025, 3: 49}  # per axis, by number of axes: more than a screen shows


def thinned(surface: Surface, limit: int) -> Surface:
    """At most `limit` points per axis, evenly picked with both ends; their values are unchanged."""
    picks = picked_of([len(axis.coordinates) for axis in surface.axes], limit, refined=surface.interpolated is not None)
    if all(len(pick) == len(axis.coordinates) for pick, axis in zip(picks, surface.axes, strict=True)):
        return surface
    index = np.ix_(*reversed(picks))
    axes = tuple(
        Axis(axis.name, axis.coordinates[pick], axis.attributes) for axis, pick in zip(surface.axes, picks, strict=True)
    )
    observables = {name: np.asarray(values)[index] for name, values in surface.observables.items()}
    return Surface(
        surface.name, axes, observables, surface.status[index], surface.path, surface.attributes,
        interpolated=None if surface.interpolated is None else levels_picked(surface.interpolated, picks),
        unfinished=surface.unfinished, networks=surface.networks,
    )  # fmt: skip


def picked_of(sizes: Sequence[int], limit: int, *, refined: bool = False) -> list[NDArray[np.intp]]:
    """The indices to draw along each axis of a grid, at most `limit` per axis.

    Args:
        refined: the grid is that of a refined landscape, whose every second point belongs to the next coarser level:
            steps are doubled until they fit, as uneven steps would show as an artificial grid.
    """
    stride = 1
    while refined and max(sizes) > limit * stride and all((size - 1) % (2 * stride) == 0 for size in sizes):
        stride *= 2
    return [np.arange(0, size, stride)[picked(-(-size // stride), limit)] for size in sizes]


def levels_picked(interpolated: NDArray[np.uint8], picks: Sequence[NDArray[np.intp]]) -> NDArray[np.uint8]:
    """`Surface.interpolated` of the picked points, whose finest grid may have longer steps.

    Args:
        picks: the indices along each axis, the first axis first.
    """
    steps = min(int(np.diff(pick).min()) if len(pick) > 1 else 1 for pick in picks)
    kept = interpolated[np.ix_(*reversed(picks))]
    return np.maximum(kept, steps.bit_length() - 1) - np.uint8(steps.bit_length() - 1)


def picked(size: int, limit: int) -> NDArray[np.intp]:
    """At most `limit` of `size` indices, evenly spread, with both ends."""
    if size <= limit:
        return np.arange(size)
    return np.unique(np.round(np.linspace(0, size - 1, limit)).astype(np.intp))


def thinning_note(full: Surface, shown: Surface) -> list[str]:
    """The caption's note on points that are left out."""
    return [] if full is shown else [f"drawn from {resolution(shown)} of them"]


# ----------------------------------------------------------------------------------------------------


EXTREME_RATIO = 5.0
ERRORS_UNKNOWN = "standard errors, or the value at the origin, are not known"


@dataclass(frozen=True, eq=False)
class AxisView:
    """One axis as drawn; `title` fits in one line, `meaning` is the long form."""

    name: str
    title: str
    coordinates: Floats
    meaning: str = ""

    @property
    def span(self) -> float:
        """The last coordinate less the first."""
        return float(self.coordinates[-1] - self.coordinates[0])


@dataclass(frozen=True, eq=False)
class FigureData:
    """One observable of a landscape with 1, 2 or 3 axes, ready to draw: all that a figure shows, and no more.

    Arrays are indexed by the axes in reverse, like those of a surface. `values` are the computed values; `drawn` are
    the values or their log10 as the scale shows them, NaN if there is nothing to draw, with the reason in `states`.
    `error` is the standard error of `values`. `rise` is the loss minus that of the origin and `rise_error` its standard
    error, over the same samples. Each of these three is None if it is not known. `difference` is each value's distance
    from that of the origin in units of two standard errors, if the uncertainty is asked for and the errors are known;
    `unclear` is the legend entry of the region where it is below one. `extrema` are the minima above the noise and
    their saddles, if asked for. `beside` are further observables, each for its own panel. `interpolated` is that of the
    surface: None if every point was evaluated. `samples` says how many samples each evaluated point of a landscape with
    an accuracy knows. `seeds` is the band of lines of other seeds, if a line was checked.
    `categories` are the names that the values 0, 1, 2, … stand for, if they do. `fill` says that the axes take the room
    that there is, whatever their ranges.
    """

    name: str
    observable: str
    title: str
    caption: tuple[str, ...]
    axes: tuple[AxisView, ...]
    values: Floats
    drawn: Floats
    error: Floats | None
    states: NDArray[np.uint8]
    scale: Scale
    paths: tuple[DrawnPath, ...]
    rise: Floats | None = None
    rise_error: Floats | None = None
    origin: OriginMark | None = None
    networks: Networks | None = None
    difference: Floats | None = None
    unclear: str = "within 2 standard errors of the origin"
    extrema: Extrema | None = None
    beside: tuple[FigureData, ...] = ()
    interpolated: NDArray[np.uint8] | None = None
    samples: NDArray[np.int64] | None = None
    seeds: SeedBand | None = None
    categories: tuple[str, ...] | None = None
    fill: bool = False

    @property
    def quantity(self) -> str:
        """The observable in words, for the titles of axes and bars and for the pointer: 'loss above the origin'."""
        return words.observable_title(self.observable)

    @property
    def shape_error(self) -> Floats | None:
        """The error of the shape: that of the rise if known, since a common shift of all points is no shape."""
        return self.error if self.rise_error is None else self.rise_error

    @property
    def ratio(self) -> float:
        """Height over width of the first two axes at equal lengths of their units."""
        return self.axes[1].span / self.axes[0].span

    @property
    def equal(self) -> bool:
        """Whether both axes have one unit length: not if they fill their room, or one would be too short to see."""
        return not self.fill and 1 / EXTREME_RATIO <= self.ratio <= EXTREME_RATIO


def prepare_figure(
    surface: Surface, observable: str = "loss", *, beside: Sequence[str] = (), **options: Any
) -> FigureData:
    """The data of a figure of `observable`.

    Args:
        beside: observables to prepare along with the loss, if the surface has them.
        options: those of `landscape.views.figure`; only options that decide what is shown matter.

    Raises:
        JobError: the surface has no such observable, or zmin, zmax, clip or levels is impossible.

    Example:
        >>> from landscape import Axis
        >>> axis = Axis("alpha", np.array([0.0, 1.0, 2.0]))
        >>> surface = Surface("line", (axis,), {"loss": np.array([0.01, 1.0, np.inf])}, np.array([1, 1, 2], np.uint8))
        >>> data = prepare_figure(surface, log=True)
        >>> data.title, data.drawn, "Logarithmic scale" in data.caption
        ('line: loss', array([-2.,  0., nan]), True)
    """
    return prepare(surface, FigureSpec.of(None, {"observable": observable, **options}), beside)


def prepare(surface: Surface, spec: FigureSpec, beside: Sequence[str] = ()) -> FigureData:
    """The same for a `FigureSpec`."""
    data = _one_observable(surface, spec)
    names = [name for name in beside if spec.observable == "loss" and name in means(surface)]
    # Linear, whatever the loss is: what stands beside it are fractions such as the accuracy.
    linear = replace(spec, log=False, zmin=None, zmax=None, clip=None, extrema=False)
    return replace(data, beside=tuple(_one_observable(surface, replace(linear, observable=name)) for name in names))


def suggests_log(
    surface: Surface, observable: str = "loss", zmin: float | None = None, zmax: float | None = None
) -> bool:
    """Whether a figure is logarithmic by default: its values span more than two decades.

    Fractions such as the accuracy stay linear, and the loss where its errors are stated on a linear scale.

    Args:
        zmin, zmax: the given ends of the range drawn, in real values.

    Raises:
        JobError: the surface has no such observable.
    """
    return _decades(surface, observable, zmin, zmax) > LOG_DECADES


def _decades(surface: Surface, observable: str, zmin: float | None, zmax: float | None) -> float:
    values = np.asarray(surface[observable], np.float64)[surface.status == OK]
    a_fraction = observable != "loss" and not observable.endswith("_stderr") and values.max(initial=0.0) <= 1
    stays_linear = a_fraction or (observable == "loss" and surface.record.has_linear_error)
    return 0.0 if stays_linear else spanned_decades(values, zmin, zmax)


def _one_observable(full: Surface, spec: FigureSpec) -> FigureData:
    observable = spec.observable
    full[observable]  # raises for an unknown name
    categories = full.record.categories(observable)
    decades = 0.0 if categories else _decades(full, observable, spec.zmin, spec.zmax)
    log = decades > LOG_DECADES if spec.log is None or categories else spec.log
    surface = thinned(full, spec.max_points or MAX_POINTS[len(full.axes)])
    values = np.asarray(surface[observable], np.float64)
    states = _with_unresolved(surface, observable, point_states(values, status_of(surface, observable), log))
    drawn = drawn_values(values, states, log)
    scale = choose_scale(
        drawn, log, spec.zmin, spec.zmax, spec.wanted_levels, exact_levels=spec.exact_levels, clip=spec.clip
    )
    signed = not log and _is_signed(surface, observable)
    scale = replace(scale, signed=signed, zero=_counts_as_zero(surface, observable) if signed else 0.0)
    paths = prepare_paths(full, observable, log) if spec.path else ()
    rise, rise_error = rise_over_origin(surface, observable)
    difference = difference_in_errors(surface, observable) if spec.uncertainty else None
    extrema = prepare_extrema(full, observable, log) if spec.extrema else None
    axes = tuple(
        AxisView(axis.name, words.short_axis_title(axis), axis.coordinates, words.axis_title(axis))
        for axis in surface.axes
    )
    notes = [
        *thinning_note(full, surface),
        *_interpolation_note(full),
        *scale.notes,
        *_log_note(full, log, None if spec.log is not None else decades),
        *_sign_notes(full, observable),
        *_axes_notes(axes, spec.proportions == "fill"),
        *(network_notes(surface) if observable == "loss" else ()),
        *path_notes(full, paths, observable, scale),
        *([ERRORS_UNKNOWN] if spec.uncertainty and difference is None else []),
        *(extrema.notes if extrema is not None else ()),
    ]
    return FigureData(
        name=surface.name,
        observable=observable,
        title=f"{surface.name}: {words.observable_title(observable)}",
        caption=words.caption(full, observable, tuple(notes)),
        axes=axes,
        values=values,
        drawn=drawn,
        error=standard_error(surface, observable),
        states=states,
        scale=scale,
        paths=paths,
        rise=rise,
        rise_error=rise_error,
        origin=prepare_origin(surface, observable, drawn, log),
        networks=prepare_networks(surface, drawn, paths),
        difference=difference,
        extrema=extrema,
        interpolated=surface.interpolated if evaluated_text(surface) and full.record.accuracy is None else None,
        samples=_samples_known(surface),
        seeds=prepare_seeds(full, observable),
        categories=categories,
        fill=spec.proportions == "fill",
    )


def slice_nearest(data: FigureData) -> int:
    """The number of the coordinate nearest to 0 on the third axis."""
    return int(np.argmin(np.abs(data.axes[2].coordinates)))


def slice_at(data: FigureData, k: int) -> FigureData:
    """The plane of the first two axes at the `k`-th coordinate of the third, on the scale of the whole grid."""
    return replace(
        data,
        caption=(*data.caption, f"Slices across {data.axes[2].name}"),
        axes=data.axes[:2],
        values=data.values[k],
        drawn=data.drawn[k],
        error=None if data.error is None else data.error[k],
        rise=None if data.rise is None else data.rise[k],
        rise_error=None if data.rise_error is None else data.rise_error[k],
        states=data.states[k],
        difference=None if data.difference is None else data.difference[k],
        extrema=None if data.extrema is None else data.extrema.in_slice(data.axes[2].coordinates, k),
        interpolated=None if data.interpolated is None else data.interpolated[k],
        samples=None if data.samples is None else data.samples[k],
    )


def means(surface: Surface) -> list[str]:
    """The observables that are means, `loss` first: all except standard errors."""
    names = [name for name in surface.observables if not name.endswith("_stderr")]
    return sorted(names, key=lambda name: (name != "loss", name))


def _interpolation_note(surface: Surface) -> list[str]:
    """The note on how many points of a refined landscape were evaluated."""
    if surface.record.accuracy is not None:
        return ["between evaluated points: polynomials of degree 5 along each axis"]
    text = evaluated_text(surface)
    return [f"{text} evaluated, the others bilinear between them"] if text else []


def _samples_known(surface: Surface) -> NDArray[np.int64] | None:
    """How many samples each evaluated point of a landscape with an accuracy knows; None for other landscapes."""
    known = surface.observables.get(SAMPLES_KNOWN)
    return None if known is None or surface.record.accuracy is None else np.nan_to_num(known).astype(np.int64)


def _log_note(surface: Surface, log: bool, decades: float | None) -> list[str]:
    """The note on a logarithmic scale; with `decades`, the span of the values, if it was not asked for."""
    if not log:
        return []
    note, accuracy = "logarithmic scale", surface.record.accuracy
    if accuracy is not None and surface.record.has_linear_error and accuracy.absolute is not None:
        note += f", on which losses below {number_text(accuracy.absolute, 2)}, the stated error, mean little"
    return [note + ("" if decades is None else f", as the values span {decades:.1f} decades")]


def _axes_notes(axes: tuple[AxisView, ...], fill: bool) -> list[str]:
    """Notes on the axes beyond their titles, and on different scales of the axes."""
    return [*(axis.meaning for axis in axes if axis.meaning != axis.title), *scales_note(axes, fill)]


def scales_note(axes: Sequence[AxisView], fill: bool) -> list[str]:
    """The caption's note that the axes have different scales: they fill the figure, or one would be too short."""
    if len(axes) < 2 or not (fill or not 1 / EXTREME_RATIO <= axes[1].span / axes[0].span <= EXTREME_RATIO):
        return []
    *spans, last = (f"{axis.span:.3g}" for axis in axes)
    return [f"axes not to one scale: they span {', '.join(spans)} and {last}"]


# -- signs: which observables have one, and the points where it is open ----------------------------------------------


def _is_signed(surface: Surface, observable: str) -> bool:
    """Whether colours are centred on 0: for smallest eigenvalues, and other signed observables but loss and rise.

    A loss of densities may have both signs, but 0 is no special value for it.
    """
    if surface.record.convexity is not None and observable == EIG_MIN:
        return True
    values = np.asarray(surface[observable], np.float64)[surface.status == OK]
    finite = values[np.isfinite(values)]
    return observable not in ("loss", RISE) and bool(finite.size) and bool(finite.min() < 0 < finite.max())


def _counts_as_zero(surface: Surface, observable: str) -> float:
    """The largest size of a non-negative smallest eigenvalue that counts as zero; 0 for other observables."""
    if surface.record.convexity is None or observable != EIG_MIN:
        return 0.0
    largest, smallest = (np.abs(np.asarray(surface[name], np.float64)) for name in (EIG_MAX, EIG_MIN))
    near = (surface.status == OK) & (_negative(surface) == NO) & (smallest <= ZERO * np.maximum(largest, smallest))
    return float(smallest[near].max(initial=0.0))


def _with_unresolved(surface: Surface, observable: str, states: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The states of the points, with unresolved values marked.

    A value is unresolved if it comes from a smallest eigenvalue whose sign is open, or whose residual exceeds it.
    """
    if surface.record.convexity is None or EIG_MIN not in bases_of(surface.record.derived, observable):
        return states
    negative, known = _negative(surface), states == OK
    marked = np.where(known & (negative == YES) & _is_loose(surface), UNRESOLVED, states)
    return np.where(known & (negative == UNDECIDED), NO_SIGN, marked).astype(np.uint8)


def _sign_notes(surface: Surface, observable: str) -> list[str]:
    """The caption's notes on the sign of a smallest eigenvalue: counts of points, and how they were decided."""
    record = surface.record.convexity
    bases = bases_of(surface.record.derived, observable)
    if record is None or not {EIG_MIN, EIG_NEGATIVE} & set(bases):
        return []
    known = (surface.status == OK) & np.isfinite(surface[EIG_MIN])
    negative = _negative(surface)[known]
    counts = [int((negative == YES).sum()), int((negative == UNDECIDED).sum())]
    total = int(known.sum())
    said = f"a negative eigenvalue at {counts[0]} of {total} points"
    said += f", undecided at {counts[1]}" if counts[1] else ""
    rest = total - sum(counts)
    said += f"; at {rest} none is below -{number_text(ZERO)} of the largest" if rest else ""
    unresolved = int((_is_loose(surface)[known] & (negative == YES)).sum())
    said += f"; at {unresolved} of the negative ones the residual is larger than the value" if unresolved else ""
    return [said]


def _is_loose(surface: Surface) -> NDArray[np.bool_]:
    value, residual = (np.asarray(surface[name], np.float64) for name in (EIG_MIN, EIG_MIN_RESIDUAL))
    return residual >= np.abs(value)


def _negative(surface: Surface) -> NDArray[np.uint8]:
    """Whether there is a negative eigenvalue at each point, as recorded when it was computed.

    Without that record, such as in an imported map, no bound allows the answer "no". At an interpolated point of a
    refined map, "no" is known if it holds at all points that it is interpolated from.
    """
    if EIG_NEGATIVE in surface.observables:
        stored = np.asarray(surface[EIG_NEGATIVE], np.float64)
        codes = np.where(np.isfinite(stored), stored, UNDECIDED).astype(np.uint8)
        if surface.interpolated is None:
            return codes
        # If float64 left a neighbouring point undecided, its float32 value does not decide it.
        negative = (_by_values(surface) == YES) & (stored <= YES)
        between = np.where(negative, YES, np.where(stored == NO, NO, UNDECIDED))
        return np.where(surface.interpolated > 0, between, codes).astype(np.uint8)
    return _by_values(surface)


def _by_values(surface: Surface) -> NDArray[np.uint8]:
    """The same by the drawn eigenvalues only: yes, or undecided."""
    largest, smallest = (np.asarray(surface[name], np.float64) for name in (EIG_MAX, EIG_MIN))
    how = surface.record.convexity.second_derivatives if surface.record.convexity is not None else ""
    in_float32 = products_in_float32(how, surface.record.precision)
    return is_negative(largest, smallest, np.full(smallest.shape, np.nan), in_float32)


# ----------------------------------------------------------------------------------------------------
# Missing points: the grid squares beside them, and their legend entries.

Rectangle = tuple[int, int, int, int]  # first row, row after the last, first column, column after the last


def rectangles(mask: NDArray[np.bool_]) -> list[Rectangle]:
    """Disjoint rectangles that cover exactly the true cells: runs of a row, joined over rows that repeat them."""
    done: list[Rectangle] = []
    open_runs: dict[tuple[int, int], int] = {}
    for row in range(mask.shape[0] + 1):
        runs = _runs(mask[row]) if row < mask.shape[0] else []
        ended = [run for run in open_runs if run not in runs]
        done += [(open_runs.pop(run), row, *run) for run in ended]
        for run in runs:
            open_runs.setdefault(run, row)
    return sorted(done)


def _runs(row: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def square_states(states: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Per square of 2×2 neighbouring points: OK if all four can be drawn, else the reason why one cannot.

    If the corners of a square are missing for several reasons, the last one in `STATES` counts, as it is the rarest.

    Returns:
        [rows − 1, columns − 1] of `states` [rows, columns].
    """
    square = np.full((states.shape[0] - 1, states.shape[1] - 1), OK, np.uint8)
    for code in STATES:
        at = states == code
        square[at[:-1, :-1] | at[1:, :-1] | at[:-1, 1:] | at[1:, 1:]] = code
    return square


def why_empty(states: NDArray[np.uint8]) -> str:
    """A sentence in place of the picture if the known points make no picture; else ''.

    A line needs two neighbouring values, a plane four around a square, a volume eight around a cube.
    """
    whole = states == OK
    for axis in range(states.ndim):
        neighbours = np.moveaxis(whole, axis, 0)
        whole = np.moveaxis(neighbours[:-1] & neighbours[1:], 0, axis)
    if whole.any():
        return ""
    known = int((states == OK).sum())
    reasons = ", ".join(f"{int((states == code).sum())} {STATES[code]}" for code in missing_states(states))
    if known:
        needed = ("no two of them are neighbours", "no four surround a square", "no eight surround a cube")
        others = f": {reasons}" if reasons else ""
        return f"{known} of {states.size} points can be drawn, but {needed[states.ndim - 1]}{others}."
    return f"No point has a value to draw: {reasons}."


def missing_states(states: NDArray[np.uint8]) -> list[int]:
    """The reasons for missing points that occur, as codes of `STATES`."""
    return [code for code in STATES if bool((states == code).any())]


def legend_name(code: int, count: int) -> str:
    """The legend entry of one reason, such as 'not computed: 80 points'."""
    return f"{STATES[code]}: {count} point{'s' * (count != 1)}"


def missing_names(states: NDArray[np.uint8]) -> list[str]:
    """The legend entries of all reasons that occur."""
    return [legend_name(code, int((states == code).sum())) for code in missing_states(states)]
