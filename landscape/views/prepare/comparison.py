"""Comparisons of landscapes: their labels, their common scale, and notes on their differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.folders import run_labels
from landscape.core.grid import Floats
from landscape.surface.derived import RISE, derive
from landscape.surface.surface import OK, Axis, Surface, check_observable
from landscape.views.figure_spec import MODE_TABLE, ComparisonSpec
from landscape.views.prepare import words
from landscape.views.prepare.figure import AxisView, FigureData, prepare, scales_note
from landscape.views.prepare.paths import path_notes
from landscape.views.prepare.scale import LOG_DECADES, Scale, choose_scale, drawn_values, point_states, spanned_decades

MOST_OVERLAID = 12  # more overlaid lines cannot be told apart


@dataclass(frozen=True, eq=False)
class ComparedLandscape:
    """A landscape of a comparison; `label` names its run and itself in legends and titles."""

    label: str
    surface: Surface


Given = Surface | tuple[str, Surface]


def compared(landscapes: Sequence[Given]) -> tuple[ComparedLandscape, ...]:
    """The landscapes with distinct labels, each with all its levels merged into one grid.

    Args:
        landscapes: surfaces, or pairs of a label and a surface.

    Returns:
        The landscapes with the given labels. A surface without a label gets its name, with its run if another one has
        the same name.

    Raises:
        JobError: an element is neither a surface nor a pair.
    """
    pairs = [_pair(item) for item in landscapes]
    names = [label if label is not None else surface.name for label, surface in pairs]
    with_runs = [
        label if label is not None else f"{_run_of(surface)}: {surface.name}" if _run_of(surface) else surface.name
        for label, surface in pairs
    ]
    labels = [run if names.count(name) > 1 else name for name, run in zip(names, with_runs, strict=True)]
    return tuple(
        ComparedLandscape(label, surface.merged()) for label, (_, surface) in zip(numbered(labels), pairs, strict=True)
    )


def _pair(given: Given) -> tuple[str | None, Surface]:
    if isinstance(given, Surface):
        return None, given
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], Surface):
        return given[0], given[1]
    raise JobError(f"compare: takes surfaces, or pairs (label, surface), not {quoted(given)}")


def _run_of(surface: Surface) -> str:
    """The last part of the run's name in the landscape's job; '' if it is not recorded."""
    job = surface.record.job
    run = job.whole.get("run") if job is not None else None
    return str(run).rstrip("/").rpartition("/")[2] if isinstance(run, str) else ""


def numbered(labels: Sequence[str]) -> list[str]:
    """The labels, with a number after each repetition.

    >>> numbered(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    return [
        label if label not in labels[:k] else f"{label} ({1 + labels[:k].count(label)})"
        for k, label in enumerate(labels)
    ]


def item_labels(items: Sequence[tuple[str, str]]) -> list[str]:
    """A label for each pair of a run's path and a landscape's name, without the parts that all share.

    >>> item_labels([("runs/sgd", "minimum"), ("runs/adam", "minimum")])
    ['sgd: minimum', 'adam: minimum']
    >>> item_labels([("runs/sgd", "minimum"), ("runs/sgd", "line")])
    ['minimum', 'line']
    """
    runs = run_labels([run for run, _ in items])
    if len(set(runs)) == 1:
        return numbered([name for _, name in items])
    return numbered([f"{run}: {name}" for run, (_, name) in zip(runs, items, strict=True)])


def check_mode(mode: str, items: Sequence[ComparedLandscape], observable: str) -> None:
    """Refuse a comparison that cannot be drawn.

    Raises:
        JobError: an unknown mode, too few or too many landscapes, different numbers of axes, or no such observable.
    """
    if mode not in MODE_TABLE:
        raise JobError(f"mode: unknown {quoted(mode)}; {nearest(str(mode), MODE_TABLE)}")
    if len(items) < MODE_TABLE[mode].fewest:
        count = "one landscape" if MODE_TABLE[mode].fewest == 1 else "two landscapes"
        raise JobError(f"compare: needs at least {count} for {mode}, not {len(items)}; name another")
    for item in items:
        check_observable(item.label, observable, item.surface.observables)
    if mode == "tiled":
        return
    if mode == "overlay" and len(items) > MOST_OVERLAID:
        raise JobError(f"compare: overlays at most {MOST_OVERLAID} landscapes, not {len(items)}; tile them")
    first = items[0]
    for item in items[1:]:
        if len(item.surface.axes) != len(first.surface.axes):
            raise JobError(
                f"compare: must have the same number of axes, not {_axes(first)} and {_axes(item)}; tile them instead"
            )
    if mode == "overlay" and len(first.surface.axes) == 3:
        raise JobError(
            "compare: volumes of three axes hide one another in an overlay; tile them, or take the difference"
        )


def with_rise(
    items: Sequence[ComparedLandscape], spec: ComparisonSpec
) -> tuple[tuple[ComparedLandscape, ...], ComparisonSpec]:
    """What is drawn of a comparison of the loss: with the rise, the loss of each landscape above that at its origin.

    By default the rise is drawn on one linear scale, where all losses at the origin are known: on a logarithmic scale
    the origin itself would be missing.

    Raises:
        JobError: the rise is asked for and not known, or asked for of another observable.
    """
    if spec.rise and spec.observable not in ("loss", RISE):
        raise JobError(f"rise: must go with the observable loss, not {quoted(spec.observable)}; leave one of them out")
    if spec.observable != "loss" or spec.rise is False or (spec.rise is None and (spec.log or not spec.lock)):
        return tuple(items), spec
    raised = tuple(replace(item, surface=_with_rise(item.surface)) for item in items)
    unknown = [item.label for item in raised if RISE not in item.surface.observables]
    if spec.rise and unknown:
        raise JobError(f"rise: the loss at the origin of {quoted(unknown[0])} is not known; leave the option out")
    return (tuple(items), spec) if unknown else (raised, replace(spec, observable=RISE))


def _with_rise(surface: Surface) -> Surface:
    """The surface with `loss_rise`, which one that was not read from a run does not have."""
    found = {} if RISE in surface.observables else derive({}, surface.observables, surface.origin_loss)
    return replace(surface, observables={**surface.observables, **found}) if found else surface


def _axes(item: ComparedLandscape) -> str:
    count = len(item.surface.axes)
    return f"{count} ({quoted(item.label)})"


def contrasts(items: Sequence[ComparedLandscape]) -> list[str]:
    """Notes that a reader needs before trusting the comparison: different samples, directions or modes.

    Sentences without full stops. Landscapes over different samples also differ by chance.
    """
    surfaces = [item.surface for item in items]
    notes = []
    if _samples_differ(surfaces):
        notes.append("the landscapes have other samples")
    for what, values in (
        ("origin", _origins(surfaces)),
        ("batch norm", [words.batch_norm_text(surface) for surface in surfaces]),
        ("precision", [surface.record.precision or "" for surface in surfaces]),
        ("rounding", [surface.record.rounding_in_words or "nothing rounded" for surface in surfaces]),
    ):
        known = list(dict.fromkeys(value for value in values if value))
        if len(known) > 1:
            notes.append(f"{what} differs: {', '.join(known)}")
    return [*notes, *(f"{name} is another direction in each" for name in directions_differ(surfaces))]


def directions_differ(surfaces: Sequence[Surface]) -> list[str]:
    """The names of the axes that are other directions in each landscape: what lies at one place has no relation."""
    pairs = zip(*(surface.axes for surface in surfaces), strict=False)
    return [axes[0].name for axes in pairs if _directions_differ(axes)]


def _origins(surfaces: Sequence[Surface]) -> list[str]:
    """The names of the origins; empty if all are the same weights, even under different names."""
    records = [surface.record for surface in surfaces]
    known = {record.identity.origin for record in records if record.identity is not None}
    return [record.origin_name for record in records] if len(known) > 1 else []


def _directions_differ(axes: Sequence[Axis]) -> bool:
    """Whether an axis means a different direction in each landscape, beyond the scaling by each network's weights.

    A random direction of one seed is the same draw, scaled to the weights by the normalisation. A principal component
    of another training is another direction, although it has the same label.
    """
    records = [axis.record for axis in axes]
    if len({record.digest for record in records}) == 1 and records[0].digest:
        return False
    if len({axis.label for axis in axes}) > 1:
        return True
    return any(record.kind != "random" for record in records) and len({record.digest for record in records}) > 1


def _samples_differ(surfaces: Sequence[Surface]) -> bool:
    records = [surface.record for surface in surfaces]
    known = [record for record in records if record.identity and record.identity.samples]
    counts = {record.num_samples for record in records if record.num_samples is not None}
    return any(not known[0].has_samples_of(record) for record in known[1:]) or len(counts) > 1


def same_samples(one: Surface, other: Surface) -> bool:
    """Whether both are known to be means over the same samples, in whatever order these were drawn."""
    return one.record.has_samples_of(other.record)


def same_origin(one: Surface, other: Surface) -> bool:
    """Whether both are known to have the same origin, rounded in the same way."""
    origins = [getattr(surface.record.identity, "origin", None) for surface in (one, other)]
    known = origins[0] is not None and origins[0] == origins[1]
    return known and one.record.quantisation == other.record.quantisation


# ----------------------------------------------------------------------------------------------------
# Several landscapes overlaid, or side by side on one scale: the data of each, and the common scale.


NAMED_IN_TITLE = 3
OVERLAY_LEVELS = 8  # contour lines per landscape: fewer than for a single one


@dataclass(frozen=True)
class SharedScale:
    """The common scale of several figures: the ends of the range in real values, or None, and `log`."""

    log: bool
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class OverlayData:
    """Several landscapes in one figure: `fields` are their data, and `labels` their names in the legend.

    `frame` has the title, the caption, and axes that cover all of them, but no values.
    """

    labels: tuple[str, ...]
    fields: tuple[FigureData, ...]
    frame: FigureData


def share_scale(
    items: Sequence[ComparedLandscape],
    observable: str = "loss",
    log: bool | None = None,
    *,
    zmin: float | None = None,
    zmax: float | None = None,
) -> SharedScale:
    """A scale for comparing all landscapes: that of all their values together.

    Args:
        log: logarithmic; by default if the values span more than two decades and all have a logarithm.
        zmin, zmax: the given ends of the range, in real values.

    Raises:
        JobError: zmin or zmax is impossible, or a landscape has no such observable.
    """
    values = [np.asarray(item.surface[observable], np.float64) for item in items]
    if log is None:
        log = _suggests_log(items, values, observable)
    drawn = []
    for item, one in zip(items, values, strict=True):
        states = point_states(one, item.surface.status, log)
        drawn.append(drawn_values(one, states, log).ravel())
    together = np.concatenate(drawn) if drawn else np.empty(0)
    scale = choose_scale(together, log, zmin, zmax)
    if not np.isfinite(together).any():
        return SharedScale(log, zmin, zmax)
    low, high = scale.real(scale.low), scale.real(scale.high)
    return SharedScale(log, low if zmin is None else zmin, high if zmax is None else zmax)


def _suggests_log(items: Sequence[ComparedLandscape], values: Sequence[Floats], observable: str) -> bool:
    """Whether all values together span over two decades.

    Fractions do not, nor the rise, which is 0 at the origin, nor losses whose errors are stated on a linear scale.
    """
    known = np.concatenate([one[item.surface.status == OK] for item, one in zip(items, values, strict=True)])
    a_fraction = observable != "loss" and not observable.endswith("_stderr") and known.max(initial=0.0) <= 1
    if observable == "loss" and any(item.surface.record.has_linear_error for item in items):
        return False
    return observable != RISE and not a_fraction and spanned_decades(known) > LOG_DECADES


def prepare_overlay(items: Sequence[ComparedLandscape], spec: ComparisonSpec) -> OverlayData:
    """The data of a figure of overlaid landscapes.

    Raises:
        JobError: the landscapes cannot be overlaid, or zmin, zmax or levels is impossible.
    """
    check_mode("overlay", items, spec.observable)
    shared = share_scale(items, spec.observable, spec.log, zmin=spec.zmin, zmax=spec.zmax)
    low, high = (shared.low, shared.high) if spec.lock else (spec.zmin, spec.zmax)
    levels = OVERLAY_LEVELS if spec.levels is None else spec.levels
    of_each = replace(spec, log=shared.log, zmin=low, zmax=high, levels=levels, uncertainty=False)
    fields = tuple(prepare(item.surface, of_each) for item in items)
    return OverlayData(tuple(item.label for item in items), fields, _frame(items, fields, spec.observable))


def _frame(items: Sequence[ComparedLandscape], fields: Sequence[FigureData], observable: str) -> FigureData:
    axes = tuple(_common_axis(fields, k) for k in range(len(fields[0].axes)))
    nothing = np.full((2,) * len(axes), np.nan)
    return replace(
        fields[0],
        name=", ".join(item.label for item in items),
        title=f"{words.capitalised(words.observable_title(observable))} of {_names(items)}",
        caption=tuple(_caption(items, fields, axes, observable)),
        axes=axes,
        values=nothing,
        drawn=nothing,
        states=np.full(nothing.shape, OK, np.uint8),
        scale=_common_scale(fields),
        origin=next((field.origin for field in fields if field.origin is not None), None),
        error=None,
        paths=(),
        rise=None,
        rise_error=None,
        difference=None,
        interpolated=None,
    )


def _common_scale(fields: Sequence[FigureData]) -> Scale:
    """The scale of the first landscape, with the lowest and the highest end of all."""
    scales = [field.scale for field in fields]
    low, high = min(scale.low for scale in scales), max(scale.high for scale in scales)
    return replace(scales[0], low=low, high=high)


def _names(items: Sequence[ComparedLandscape]) -> str:
    labels = [item.label for item in items]
    if len(labels) > NAMED_IN_TITLE:
        return f"{len(labels)} landscapes"
    return f"{', '.join(labels[:-1])} and {labels[-1]}"


def _common_axis(fields: Sequence[FigureData], k: int) -> AxisView:
    """An axis from the lowest to the highest coordinate of all; titled if all have the same title."""
    axes = [field.axes[k] for field in fields]
    ends = np.array([min(axis.coordinates[0] for axis in axes), max(axis.coordinates[-1] for axis in axes)])
    same = len({axis.meaning for axis in axes}) == 1
    title, meaning = (
        (axes[0].title, axes[0].meaning) if same else (words.SYMBOLS.get(axes[0].name, axes[0].name), axes[0].name)
    )
    return AxisView(axes[0].name, title, ends, meaning)


def _bands_note(fields: Sequence[FigureData]) -> list[str]:
    """The caption's note on the bands around curves; for planes, which have none, and without errors, no note."""
    known = [field for field in fields if len(field.axes) == 1 and field.shape_error is not None]
    of_rise = any(field.rise_error is not None or field.observable == RISE for field in known)
    return ["shaded: ± 2 standard errors" + of_rise * " of the loss above the origin"] if known else []


def _caption(
    items: Sequence[ComparedLandscape], fields: Sequence[FigureData], axes: Sequence[AxisView], observable: str
) -> list[str]:
    """The caption: what all have in common, how they differ, then a sentence per landscape."""
    samplings = list(dict.fromkeys(words.sampling(item.surface, observable) for item in items))
    facts = [samplings[0]] if len(samplings) == 1 else []
    facts += contrasts(items)
    facts += [axis.meaning for axis in axes if axis.meaning != axis.title]
    facts += scales_note(axes, fields[0].fill)
    facts += ["logarithmic scale"] if fields[0].scale.log else []
    facts += _bands_note(fields)
    sentences = [words.capitalised(fact) for fact in facts]
    for item, field in zip(items, fields, strict=True):
        parts = [words.resolution(item.surface)]
        parts += [words.sampling(item.surface, observable)] if len(samplings) > 1 else []
        parts += ["standard errors are not known"] if len(axes) == 1 and field.shape_error is None else []
        at_origin = words.origin_text(item.surface) if observable in ("loss", RISE) else ""
        parts += [f"loss at the origin {at_origin}"] if at_origin else []
        parts += [words.state_text(item.surface), *field.scale.notes]
        parts += path_notes(item.surface, field.paths, observable, field.scale)
        sentences.append(f"{item.label}: {', '.join(parts)}")
    return sentences
