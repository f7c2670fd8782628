"""From a surface to the numbers and words of one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from landscape.surface.derived import bases_of
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
from landscape.surface.surface import OK, Surface
from landscape.views.prepare import words
from landscape.views.prepare.categories import categories_of, status_of
from landscape.views.prepare.comparable import Comparable
from landscape.views.prepare.extrema import Extrema, prepare_extrema
from landscape.views.prepare.finer import evaluated_text
from landscape.views.prepare.levels import number
from landscape.views.prepare.networks import Networks, network_notes, prepare_networks
from landscape.views.prepare.origin import Origin, prepare_origin
from landscape.views.prepare.paths import DrawnPath, path_notes, prepare_paths
from landscape.views.prepare.scale import (
    LOG_DECADES,
    NO_SIGN,
    UNRESOLVED,
    Scale,
    choose_scale,
    drawn_values,
    point_states,
    spanned_decades,
)
from landscape.views.prepare.seeds import SeedBand, prepare_seeds
from landscape.views.prepare.thinning import MAX_POINTS, thinned, thinning_note
from landscape.views.prepare.uncertainty import difference_in_errors, rise_over_origin, standard_error

Floats = NDArray[np.float64]

EXTREME_RATIO = 5.0


@dataclass(frozen=True, eq=False)
class AxisView(Comparable):
    """One axis as drawn; `title` fits in one line, and `meaning` is the same at length."""

    name: str
    title: str
    coordinates: Floats
    meaning: str = ""

    @property
    def span(self) -> float:
        """The last coordinate less the first."""
        return float(self.coordinates[-1] - self.coordinates[0])


@dataclass(frozen=True, eq=False)
class FigureData(Comparable):
    """One observable of a landscape with 1, 2 or 3 axes, ready to draw: all that a figure shows, and no more.

    Arrays are indexed by the axes in reverse, as those of a surface are. `values` are as computed; `drawn` is what the
    scale shows of them: the value or its log10, NaN where there is nothing to draw, for which `states` has the reason.
    `error` is the standard error of `values`. `rise` is the loss over that of the origin and `rise_error` its standard
    error, over the same samples. Each of these three is None where it is not known. `difference` is how many times two
    standard errors each value differs from that at the origin, where the layer of uncertainty is asked for and the
    errors are known, and `unclear` what the legend calls where it is below one. `extrema` are the minima above the
    noise and their saddles, where these are asked for. `beside` are further observables, each for a panel of its
    own. `interpolated` is that of the surface: None where every point was evaluated. `seeds` is what lines of other
    seeds would show, where a line was checked. `categories` are what the values 0, 1, 2, … stand for, where they
    stand for names.
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
    origin: Origin | None = None
    networks: Networks | None = None
    difference: Floats | None = None
    unclear: str = "within 2 standard errors of the origin"
    extrema: Extrema | None = None
    beside: tuple[FigureData, ...] = ()
    interpolated: NDArray[np.uint8] | None = None
    seeds: SeedBand | None = None
    categories: tuple[str, ...] | None = None

    @property
    def shape_error(self) -> Floats | None:
        """The error to judge the shape by: that of the rise, since a shift that all points share is no shape."""
        return self.error if self.rise_error is None else self.rise_error

    @property
    def ratio(self) -> float:
        """Height over width of the first two axes where a unit is equally long on both."""
        return self.axes[1].span / self.axes[0].span

    @property
    def equal(self) -> bool:
        """Whether a unit can be equally long on both axes without one of them being too short to see."""
        return 1 / EXTREME_RATIO <= self.ratio <= EXTREME_RATIO


@dataclass(frozen=True)
class Choice:
    """What a figure is asked to show; the fields are the options of `prepare_figure`."""

    log: bool | None = None
    zmin: float | None = None
    zmax: float | None = None
    clip: float | None = None
    levels: int | None = None
    exact_levels: bool = False
    path: bool = True
    uncertainty: bool = False
    extrema: bool = False
    max_points: int | None = None


def prepare_figure(
    surface: Surface,
    observable: str = "loss",
    *,
    log: bool | None = None,
    zmin: float | None = None,
    zmax: float | None = None,
    clip: float | None = None,
    levels: int | None = None,
    exact_levels: bool = False,
    path: bool = True,
    uncertainty: bool = False,
    extrema: bool = False,
    max_points: int | None = None,
    beside: Sequence[str] = (),
) -> FigureData:
    """Everything that a figure of `observable` shows.

    Args:
        log: draw log10 of the values; default: where `suggests_log` says so.
        zmin, zmax: ends of the range drawn, in real values; default: chosen from the values.
        clip: the percentile of the values at which the range ends, in place of zmax.
        levels: number of contour lines; default about 12. They lie at round values, so there may be a few more or less.
        exact_levels: exactly that number of lines, evenly spaced, whatever their values.
        path: prepare the trajectory as well, where the surface has one.
        uncertainty: prepare where the values cannot be told from that at the origin.
        extrema: prepare the minima above the noise and their saddles, of all points of the surface.
        max_points: points per axis to draw at most; default `MAX_POINTS`.
        beside: observables to prepare along with the loss, as far as the surface has them.

    Raises:
        JobError: the surface has no such observable, or zmin, zmax, clip or levels is impossible.

    Example:
        >>> from landscape import Axis
        >>> axis = Axis("alpha", np.array([0.0, 1.0, 2.0]))
        >>> surface = Surface("line", (axis,), {"loss": np.array([0.01, 1.0, np.inf])}, np.array([1, 1, 2], np.uint8))
        >>> data = prepare_figure(surface, log=True)
        >>> data.title, data.drawn, data.caption[-1]
        ('line: loss', array([-2.,  0., nan]), 'Logarithmic scale')
    """
    choice = Choice(log, zmin, zmax, clip, levels, exact_levels, path, uncertainty, extrema, max_points)
    data = _one_observable(surface, observable, choice)
    names = [name for name in beside if observable == "loss" and name in means(surface)]
    # Linear, whatever the loss is: what stands beside it are fractions such as the accuracy.
    plain = replace(choice, log=False, zmin=None, zmax=None, clip=None, extrema=False)
    return replace(data, beside=tuple(_one_observable(surface, name, plain) for name in names))


def suggests_log(
    surface: Surface, observable: str = "loss", zmin: float | None = None, zmax: float | None = None
) -> bool:
    """Whether a figure is logarithmic unless the reader asks for another scale: its values span over two decades.

    Fractions such as the accuracy stay linear.

    Args:
        zmin, zmax: ends of the range drawn, in real values, where they are given.

    Raises:
        JobError: the surface has no such observable.
    """
    return _decades(surface, observable, zmin, zmax) > LOG_DECADES


def _decades(surface: Surface, observable: str, zmin: float | None, zmax: float | None) -> float:
    values = np.asarray(surface[observable], np.float64)[surface.status == OK]
    a_fraction = observable != "loss" and not observable.endswith("_stderr") and values.max(initial=0.0) <= 1
    return 0.0 if a_fraction else spanned_decades(values, zmin, zmax)


def _one_observable(full: Surface, observable: str, choice: Choice) -> FigureData:
    full[observable]  # refuses an unknown name
    categories = categories_of(full, observable)
    decades = 0.0 if categories else _decades(full, observable, choice.zmin, choice.zmax)
    log = decades > LOG_DECADES if choice.log is None or categories else choice.log
    surface = thinned(full, choice.max_points or MAX_POINTS[len(full.axes)])
    values = np.asarray(surface[observable], np.float64)
    states = _with_unresolved(surface, observable, point_states(values, status_of(surface, observable), log))
    drawn = drawn_values(values, states, log)
    scale = choose_scale(
        drawn, log, choice.zmin, choice.zmax, choice.levels, exact_levels=choice.exact_levels, clip=choice.clip
    )
    signed = not log and _is_signed(surface, observable)
    scale = replace(scale, signed=signed, zero=_counts_as_zero(surface, observable) if signed else 0.0)
    paths = prepare_paths(full, observable, log) if choice.path else ()
    rise, rise_error = rise_over_origin(surface, observable)
    difference = difference_in_errors(surface, observable) if choice.uncertainty else None
    extrema = prepare_extrema(full, observable, log) if choice.extrema else None
    axes = tuple(
        AxisView(axis.name, words.short_axis_title(axis), axis.coordinates, words.axis_title(axis))
        for axis in surface.axes
    )
    notes = [
        *thinning_note(full, surface),
        *_interpolation_note(full),
        *scale.notes,
        *_log_note(log, None if choice.log is not None else decades),
        *_sign_notes(full, observable),
        *_axes_notes(axes),
        *(network_notes(surface) if observable == "loss" else ()),
        *path_notes(full, paths, observable, scale),
        *(["standard errors, or the value at the origin, are not known"] if _in_vain(choice, difference) else []),
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
        interpolated=surface.interpolated if evaluated_text(surface) else None,
        seeds=prepare_seeds(full, observable),
        categories=categories,
    )


def _in_vain(choice: Choice, difference: Floats | None) -> bool:
    """Whether the uncertainty was asked for and is not known."""
    return choice.uncertainty and difference is None


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
    )


def means(surface: Surface) -> list[str]:
    """The observables that are means, `loss` first: all but the standard errors."""
    names = [name for name in surface.observables if not name.endswith("_stderr")]
    return sorted(names, key=lambda name: (name != "loss", name))


def _interpolation_note(surface: Surface) -> list[str]:
    """Of a refined landscape, how many of its points were evaluated."""
    text = evaluated_text(surface)
    return [f"{text} evaluated, the others bilinear between them"] if text else []


def _log_note(log: bool, decades: float | None) -> list[str]:
    """That the scale is logarithmic, and why where nobody asked for it: `decades` are those that the values span."""
    if not log:
        return []
    return ["logarithmic scale" + ("" if decades is None else f", as the values span {decades:.1f} decades")]


def _axes_notes(axes: tuple[AxisView, ...]) -> list[str]:
    """What the axes are, as far as their titles do not say it, and whether they are to one scale."""
    notes = [axis.meaning for axis in axes if axis.meaning != axis.title]
    if len(axes) > 1 and not 1 / EXTREME_RATIO <= axes[1].span / axes[0].span <= EXTREME_RATIO:
        notes.append(f"axes not to one scale: they span {axes[0].span:.3g} and {axes[1].span:.3g}")
    return notes


# -- signs: which observables have one, and the points where it is open ----------------------------------------------


def _is_signed(surface: Surface, observable: str) -> bool:
    """Whether colours are centred on 0: of smallest eigenvalues, and of what but the loss has values on both sides.

    A loss of densities may be on both sides of 0, too, which is no special value of it.
    """
    if surface.record.convexity is not None and observable == EIG_MIN:
        return True
    values = np.asarray(surface[observable], np.float64)[surface.status == OK]
    finite = values[np.isfinite(values)]
    return observable != "loss" and bool(finite.size) and bool(finite.min() < 0 < finite.max())


def _counts_as_zero(surface: Surface, observable: str) -> float:
    """The largest size of a smallest eigenvalue that is not negative and within what counts as zero; 0 of all else."""
    if surface.record.convexity is None or observable != EIG_MIN:
        return 0.0
    largest, smallest = (np.abs(np.asarray(surface[name], np.float64)) for name in (EIG_MAX, EIG_MIN))
    near = (surface.status == OK) & (_negative(surface) == NO) & (smallest <= ZERO * np.maximum(largest, smallest))
    return float(smallest[near].max(initial=0.0))


def _with_unresolved(surface: Surface, observable: str, states: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The states of the points, with those marked whose value is no number to draw.

    That is one made of a smallest eigenvalue whose sign is open, or whose residual is larger than itself.
    """
    if surface.record.convexity is None or EIG_MIN not in bases_of(surface.record.derived, observable):
        return states
    negative, known = _negative(surface), states == OK
    marked = np.where(known & (negative == YES) & _is_loose(surface), UNRESOLVED, states)
    return np.where(known & (negative == UNDECIDED), NO_SIGN, marked).astype(np.uint8)


def _sign_notes(surface: Surface, observable: str) -> list[str]:
    """What the caption of a smallest eigenvalue says of its sign: at how many points which, and what that rests on."""
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
    said += f"; at {rest} none is below -{number(ZERO)} of the largest" if rest else ""
    unresolved = int((_is_loose(surface)[known] & (negative == YES)).sum())
    said += f"; at {unresolved} of the negative ones the residual is larger than the value" if unresolved else ""
    return [said]


def _is_loose(surface: Surface) -> NDArray[np.bool_]:
    value, residual = (np.asarray(surface[name], np.float64) for name in (EIG_MIN, EIG_MIN_RESIDUAL))
    return residual >= np.abs(value)


def _negative(surface: Surface) -> NDArray[np.uint8]:
    """Whether there is a negative eigenvalue at each point, as was found when it was computed.

    Maps of earlier versions do not hold it, and have no bound to say no by. Nor is there one at a point between those
    of a refined map: no is known there if it holds at all points that its value is interpolated from.
    """
    if EIG_NEGATIVE in surface.observables:
        stored = np.asarray(surface[EIG_NEGATIVE], np.float64)
        codes = np.where(np.isfinite(stored), stored, UNDECIDED).astype(np.uint8)
        if surface.interpolated is None:
            return codes
        # What float64 has left undecided at the points around is not decided by their values in float32.
        negative = (_by_values(surface) == YES) & (stored <= YES)
        between = np.where(negative, YES, np.where(stored == NO, NO, UNDECIDED))
        return np.where(surface.interpolated > 0, between, codes).astype(np.uint8)
    return _by_values(surface)


def _by_values(surface: Surface) -> NDArray[np.uint8]:
    """The same by the eigenvalues that are drawn alone: yes, or undecided."""
    largest, smallest = (np.asarray(surface[name], np.float64) for name in (EIG_MAX, EIG_MIN))
    how = surface.record.convexity.second_derivatives if surface.record.convexity is not None else ""
    in_float32 = products_in_float32(how, surface.record.precision)
    return is_negative(largest, smallest, np.full(smallest.shape, np.nan), in_float32)
