"""The words around a figure: axis titles, caption, state. Plain text, which the drawing or the page escapes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from landscape.core.grid import remedy_of_target
from landscape.surface.barriers import has_point
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED, Axis, Surface
from landscape.views.prepare.levels import number
from landscape.views.prepare.means import constant_in_words, mean_in_words
from landscape.views.prepare.ranges import range_in_words
from landscape.views.prepare.statuses import count_statuses, point_counts

TITLE_LETTERS = 38  # of an axis title, which fits beside a plot of one column of a paper


def percent(fraction: Any) -> str:
    """A fraction in percent, with a space that does not break; '' where `fraction` is no finite number.

    >>> percent(0.6213), percent(None)
    ('62.1\\xa0%', '')
    """
    value = finite(fraction)
    return "" if value is None else f"{100 * value:.1f}\u00a0%"


def finite(value: Any) -> float | None:
    """`value` as a float, None where it is missing or not a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        return None
    return float(value) if math.isfinite(value) else None


def axis_title(axis: Axis) -> str:
    """What an axis is, such as 'alpha: PCA component 1, 62.0 % of the variance (random walk: 60.8 %)'."""
    label = axis.label
    title = axis.name if label == axis.name else f"{axis.name}: {label}"
    explained, walk = axis.record.explained_variance, axis.record.random_walk_variance
    if percent(explained):
        title += f", {percent(explained)} of the variance"
        title += f" ({walk_in_words(axis)}: {percent(walk)})" if percent(walk) else ""
    return title


def walk_in_words(axis: Axis) -> str:
    """What the share of a random walk is of: of several paths, of a walk from the start of each."""
    return "random walks from the same starts" if axis.attributes.get("trajectory") == "paths" else "random walk"


def short_axis_title(axis: Axis) -> str:
    """The same in a few words that fit beside a small plot: 'alpha: PCA component 1 (62.0 %)'."""
    label, kind = axis.label, axis.record.kind
    if label == axis.name:
        return axis.name
    share = percent(axis.record.explained_variance)
    if kind == "towards":
        label = label.removeprefix("from ").replace(" towards ", " to ")
    elif kind == "pca":
        label = label.partition(" of ")[0] + (f" ({share})" if share else "")
    else:
        label = label.partition(" (")[0]
    if kind == "eigen":  # whose label holds no name of a user's, which may be of any length
        return f"{axis.name}: {label}"
    return shortened(f"{axis.name}: {label}", TITLE_LETTERS)


def in_fewer_words(title: str, most: int) -> str:
    """A title of at most `most` characters: in fewer words, then cut off, where it is longer.

    >>> [in_fewer_words("alpha: principal component 1 (81.7 %)", most) for most in (40, 20, 12, 6)]
    ['alpha: principal component 1 (81.7 %)', 'alpha: PC 1 (81.7 %)', 'alpha: PC 1', 'alpha']
    >>> in_fewer_words("alpha: first eigenvector of the Hessian", 30)
    'alpha: first eigenvector'
    """
    brief = title.replace("principal component", "PC").replace(" of the Hessian", "")
    for words in (title, brief, brief.partition(" (")[0], brief.partition(":")[0]):
        if len(words) <= most:
            return words
    return shortened(title, most)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis where it has more than `most` letters.

    >>> shortened("direction", 9), shortened("directions", 9)
    ('direction', 'directio…')
    """
    return text if len(text) <= most else text[: max(most - 1, 1)].rstrip() + "…"


def capitalised(text: str) -> str:
    """The text with a capital at its beginning; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def observable_title(observable: str) -> str:
    """The name of an observable in words.

    >>> observable_title("accuracy"), observable_title("accuracy_stderr")
    ('accuracy', 'standard error of the accuracy')
    """
    if observable == "loss_rise_stderr":
        return "standard error of the rise over the origin"
    if observable.endswith("_stderr"):
        return f"standard error of the {observable.removesuffix('_stderr')}"
    return observable.replace("_", " ")


def resolution(surface: Surface) -> str:
    """The size of the grid in the order of the axes, such as '40 × 30 points'."""
    return " × ".join(str(len(axis.coordinates)) for axis in surface.axes) + " points"


def state_of(surface: Surface) -> str:
    """The state of a landscape, counted from its points as `landscape status` does.

    Returns:
        'running', 'interrupted', 'partial' or 'complete'; 'damaged' where the page has found that of it.
    """
    states = [surface.status, *(each.status for each in (surface.path, surface.networks) if each is not None)]
    if not (surface.unfinished or any((status == NOT_COMPUTED).any() for status in states)):
        return "partial" if any((status == QUARANTINED).any() for status in states) else "complete"
    recorded = surface.record.progress.state
    return recorded if recorded in ("running", "interrupted", "damaged") else "partial"


def stopped(surface: Surface) -> Surface:
    """The surface of a run without a driver: where its record still says "running", its state is "interrupted"."""
    surface = replace(surface, levels=tuple(stopped(level) for level in surface.levels))
    progress = surface.record.progress
    if progress.state != "running":
        return surface
    record = surface.record.changed(progress=replace(progress, state="interrupted"))
    return replace(surface, attributes=record.attributes)


def state_text(surface: Surface) -> str:
    """The state of a landscape in words, with the counts of what is missing.

    Such as 'complete', or 'interrupted: 210 of 441 points, 4 of 6 snapshots of the path, 3 points not finite'.
    """
    path = None if surface.path is None else count_statuses(surface.path.status)
    return state_words(state_of(surface), point_counts(surface), path)


def state_words(state: str, points: Sequence[int], path: Sequence[int] | None = None) -> str:
    """The words of `state_text`, from how many points and how many snapshots of the path have each status, 0 to 3."""
    counted = [(points, "points"), *([(path, "snapshots of the path")] if path is not None else [])]
    parts = [
        f"{whole(counts[OK] + counts[NOT_FINITE])} of {whole(sum(counts))} {what}"
        for counts, what in counted if counts[NOT_COMPUTED]
    ]  # fmt: skip
    text = state + (f": {', '.join(parts)}" if parts else "")
    for code, word in ((NOT_FINITE, "not finite"), (QUARANTINED, "quarantined")):
        text += f", {points[code]} point{'s' * (points[code] != 1)} {word}" if points[code] else ""
    return text


def whole(count: int) -> str:
    """A count with narrow spaces between thousands.

    >>> whole(1681)
    '1\\u202f681'
    """
    return f"{int(count):,}".replace(",", "\u202f")


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` where it is a mapping, an empty one where not."""
    return value if isinstance(value, Mapping) else {}


def sampling(surface: Surface, observable: str) -> str:
    """What every value is the mean of, as far as known: 'mean loss of 512 samples, float32, batch norm batch'.

    Of batch norm in mode eval it says whose statistics hold, as the shape of the landscape may come from them.
    """
    text = mean_in_words(surface.record, observable, observable_title(observable))
    text += f", {precision_text(surface)}" if surface.record.precision else ""
    text += f", {surface.record.rounding_in_words}" if surface.record.rounding_in_words else ""
    text += f", batch norm {batch_norm_text(surface)}" if batch_norm_text(surface) else ""
    fixed = has_fixed_statistics(surface) and not mixes_networks(surface)
    text += " (the origin's statistics at every point)" if fixed else ""
    text += f", {randomness_text(surface)}" if randomness_text(surface) else ""
    return text


def randomness_text(surface: Surface) -> str:
    """A note where the data were seen to be random, such as 'one random draw of inputs (field 0)'; '' elsewhere.

    Data are random where they are augmented whenever they are read.
    """
    random = surface.record.random_data
    fields = [] if random is None else [*random.fields, *random.unseeded]
    return f"one random draw of {', '.join(fields)}" if fields else ""


def batch_norm_text(surface: Surface) -> str:
    """The batch-norm mode, such as 'eval'; '' where it is not recorded or the model is known to have no batch norm."""
    layers = surface.record.provenance.batch_norm_layers
    return "" if layers == 0 else surface.record.batch_norm or ""


def has_fixed_statistics(surface: Surface) -> bool:
    """Whether batch norm has running statistics of training, which elsewhere are those of other weights."""
    return bool(surface.record.provenance.batch_norm_layers) and surface.record.batch_norm == "eval"


def mixes_networks(surface: Surface) -> bool:
    """Whether an axis leads to other networks, along which running statistics of batch norm move with the weights."""
    return not {axis.record.kind for axis in surface.axes}.isdisjoint(("towards", "plane"))


def precision_text(surface: Surface) -> str:
    """The precision, with its error at the probe points where that was measured.

    Such as 'float32', or 'bfloat16 (up to 0.0021 or 0.12 % off float32)'; 'bfloat16, weights included' where they are
    held in it.
    """
    error = surface.record.precision_error
    precision, plan = surface.record.precision or "not recorded", surface.record.plan
    if plan is not None and plan.whole.get("bfloat16_weights") is True:
        precision += ", weights included"
    if error is None:
        return precision
    absolute, relative = finite(error.max_abs_error), finite(error.max_rel_error)
    if absolute is None or relative is None:
        return precision
    return f"{precision} (up to {number(absolute, 2)} or {number(100 * relative, 2)}\u00a0% off float32)"


def caption(surface: Surface, observable: str, notes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """What a reader must know to judge the figure: sentences without full stops, `notes` being the last of them."""
    place = "there" if surface.record.origin_in_words else "at the origin"
    at_origin = origin_text(surface) if observable == "loss" else ""
    parts = [
        sampling(surface, observable),
        resolution(surface),
        range_in_words(surface),
        f"origin: {surface.record.origin_in_words}" if surface.record.origin_in_words else "",
        f"imported from {imported_from(surface)}" if imported_from(surface) else "",
        f"loss {place}: {at_origin}{surface.record.guessing_in_words}" if at_origin else "",
        f"Entezari's barrier: {barrier_text(surface)}" if observable == "loss" and barrier_text(surface) else "",
        constant_in_words(surface.loss, surface.name, surface.record.is_imported) if observable == "loss" else "",
        surface.record.accepted_in_words,
        surface.record.not_compared_in_words,
        *surface.record.points_found_wrong,
        state_text(surface),
        *notes,
    ]
    return tuple(part[:1].upper() + part[1:] for part in parts if part)


def own_model_text(surface: Surface) -> str:
    """That the user's own model gave other losses, which was accepted, or why it was not asked; '' elsewhere."""
    known = surface.record.own_model
    if known is None or known.state == "agrees":
        return ""
    return known.text if known.state == "accepted" else f"not compared: {known.text}"


def imported_from(surface: Surface) -> str:
    """The file that a landscape of other software was imported from; '' for one that a job computed."""
    imported = surface.record.imported
    return (imported.file or "a file") if imported is not None and surface.record.is_imported else ""


def origin_text(surface: Surface) -> str:
    """The loss at the origin ± two standard errors, such as '0.8845 ± 0.021 (2 s.e.)'; '' where it is not known."""
    loss = surface.origin_loss
    return value_with_error(loss, surface.origin_loss_stderr) if math.isfinite(loss) else ""


def barrier_text(surface: Surface) -> str:
    """Entezari's barrier of a line between networks, as '0.43 ± 0.02 (2 s.e.) at alpha 0.5'; '' for any other.

    The number after ± is an upper bound of two standard errors. Where the barrier is not known, it says why.
    """
    if len(surface.axes) != 1 or surface.axes[0].record.kind != "towards":
        return ""
    coordinates = surface.axes[0].coordinates
    if coordinates[0] > 0 or coordinates[-1] < 1:
        return ""
    barrier = surface.find_barrier()
    if barrier is None and not has_point(coordinates, 1.0):
        return f"not known, as 1 is no point of the grid; {remedy_of_target(coordinates)}"
    if barrier is None and not (has_point(coordinates, 0.0) or math.isfinite(surface.origin_loss)):
        return "not known, as 0 is no point of the grid and the loss at the origin is not known"
    if barrier is None:
        return "not known before all of [0, 1] is computed and finite"
    if barrier.alpha in (0.0, 1.0):
        return "none, no point between is above the straight line between the losses at 0 and 1"
    return f"{value_with_error(barrier.height, barrier.stderr)} at alpha {number(barrier.alpha, 3)}"


def wrap(text: str, width_px: float, font_px: float = 12) -> list[str]:
    """The text in lines of about `width_px` pixels; plotly does not wrap text itself."""
    return textwrap.wrap(text, max(20, int(width_px / (0.52 * font_px))), break_long_words=True) or [""]


def file_name(*parts: str) -> str:
    """The parts that are not empty, joined to a file name, without characters that a file system may refuse.

    >>> file_name("my run", "contour", "", "log")
    'my_run-contour-log'
    """
    joined = "-".join(part for part in parts if part)
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in joined)[:120] or "landscape"


def value_with_error(value: float, error: float) -> str:
    """A value ± two standard errors; the value alone where the error is not finite.

    >>> value_with_error(0.88451, 0.0105), value_with_error(0.5, math.nan)
    ('0.88451 ± 0.021 (2 s.e.)', '0.5')
    """
    text = number(value, 5)
    return f"{text} ± {number(2 * error, 2)} (2 s.e.)" if math.isfinite(error) else text
