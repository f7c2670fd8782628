"""Several landscapes beside or over one another: how they are called, what they can share, and what sets them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from landscape.core.errors import JobError, nearest, shown
from landscape.core.folders import run_labels
from landscape.surface.surface import Axis, Surface, check_observable
from landscape.views.prepare import words
from landscape.views.prepare.comparable import Comparable

MODES = ("overlay", "difference", "tiled")
FEWEST = {"overlay": 2, "difference": 2, "tiled": 1}
MOST_OVERLAID = 12  # more lines over one another cannot be told apart


@dataclass(frozen=True, eq=False)
class Compared(Comparable):
    """One of the landscapes that are compared; `label` names its run and itself in legends and titles."""

    label: str
    surface: Surface


Given = Surface | tuple[str, Surface]


def compared(landscapes: Sequence[Given]) -> tuple[Compared, ...]:
    """The landscapes with labels that differ, each with all its levels as one grid.

    Args:
        landscapes: surfaces, or pairs of a label and a surface.

    Returns:
        The landscapes with the labels given. A surface without one is called by its name, with its run where another
        has that name as well.

    Raises:
        JobError: an element is neither.
    """
    pairs = [_pair(given) for given in landscapes]
    names = [label if label is not None else surface.name for label, surface in pairs]
    with_runs = [
        label if label is not None else f"{_run_of(surface)}: {surface.name}" if _run_of(surface) else surface.name
        for label, surface in pairs
    ]
    labels = [run if names.count(name) > 1 else name for name, run in zip(names, with_runs, strict=True)]
    return tuple(Compared(label, surface.merged()) for label, (_, surface) in zip(numbered(labels), pairs, strict=True))


def _pair(given: Given) -> tuple[str | None, Surface]:
    if isinstance(given, Surface):
        return None, given
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], Surface):
        return given[0], given[1]
    raise JobError(f"compare: takes surfaces, or pairs (label, surface), not {shown(given)}")


def _run_of(surface: Surface) -> str:
    """The last part of the run's name, as the landscape's job has it; '' where it is not recorded."""
    job = surface.record.job
    run = job.whole.get("run") if job is not None else None
    return str(run).rstrip("/").rpartition("/")[2] if isinstance(run, str) else ""


def numbered(labels: Sequence[str]) -> list[str]:
    """The labels, each that stands there already with a number.

    >>> numbered(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    return [
        label if label not in labels[:k] else f"{label} ({1 + labels[:k].count(label)})"
        for k, label in enumerate(labels)
    ]


def item_labels(items: Sequence[tuple[str, str]]) -> list[str]:
    """A label for each pair of a run's path and a landscape's name: what all of them share is left out.

    >>> item_labels([("runs/sgd", "minimum"), ("runs/adam", "minimum")])
    ['sgd: minimum', 'adam: minimum']
    >>> item_labels([("runs/sgd", "minimum"), ("runs/sgd", "line")])
    ['minimum', 'line']
    """
    runs = run_labels([run for run, _ in items])
    if len(set(runs)) == 1:
        return numbered([name for _, name in items])
    return numbered([f"{run}: {name}" for run, (_, name) in zip(runs, items, strict=True)])


def check_mode(mode: str, items: Sequence[Compared], observable: str) -> None:
    """Refuse a comparison that cannot be drawn.

    Raises:
        JobError: an unknown mode, too few landscapes or too many, other numbers of axes, or no such observable.
    """
    if mode not in MODES:
        raise JobError(f"mode: unknown {shown(mode)}; {nearest(str(mode), MODES)}")
    if len(items) < FEWEST[mode]:
        count = "one landscape" if FEWEST[mode] == 1 else "two landscapes"
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


def _axes(item: Compared) -> str:
    count = len(item.surface.axes)
    return f"{count} ({shown(item.label)})"


def contrasts(items: Sequence[Compared]) -> list[str]:
    """What a reader must know before trusting the comparison: other samples, other directions, other modes.

    Sentences without full stops. Landscapes of other samples differ by chance as well, and an axis of other
    directions is another axis.
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
    pairs = zip(*(surface.axes for surface in surfaces), strict=False)
    others = [axes[0].name for axes in pairs if _directions_differ(axes)]
    return [*notes, *(f"{name} is another direction in each" for name in others)]


def _origins(surfaces: Sequence[Surface]) -> list[str]:
    """The names of the origins; none where all are the same weights, which may have a name in each run."""
    records = [surface.record for surface in surfaces]
    known = {record.identity.origin for record in records if record.identity is not None}
    return [record.origin_name for record in records] if len(known) > 1 else []


def _directions_differ(axes: Sequence[Axis]) -> bool:
    """Whether an axis means another direction in each landscape, and not only one that each network scales to itself.

    A random direction of one seed is the same draw, which the normalisation scales to the weights. A principal
    component of another training is another direction, though it has the same label.
    """
    records = [axis.record for axis in axes]
    if len({record.digest for record in records}) == 1 and records[0].digest:
        return False
    if len({axis.label for axis in axes}) > 1:
        return True
    return any(record.kind != "random" for record in records) and len({record.digest for record in records}) > 1


def _samples_differ(surfaces: Sequence[Surface]) -> bool:
    digests = {identity.samples for surface in surfaces if (identity := surface.record.identity) and identity.samples}
    counts = {surface.record.num_samples for surface in surfaces if surface.record.num_samples is not None}
    return len(digests) > 1 or len(counts) > 1


def same_samples(one: Surface, other: Surface) -> bool:
    """Whether both are known to be means over the same samples."""
    return _recorded_equal(one, other, "samples")


def same_origin(one: Surface, other: Surface) -> bool:
    """Whether both are known to lie around the same weights, rounded in the same way."""
    return _recorded_equal(one, other, "origin") and one.record.quantisation == other.record.quantisation


def _recorded_equal(one: Surface, other: Surface, field: str) -> bool:
    values = [getattr(surface.record.identity, field, None) for surface in (one, other)]
    return values[0] is not None and values[0] == values[1]


def finite_ends(arrays: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The lowest and the highest finite value of all arrays; None where there is none."""
    finite = [array[np.isfinite(array)] for array in arrays]
    values = np.concatenate(finite) if finite else np.empty(0)
    return (float(values.min()), float(values.max())) if values.size else None
