"""The words around a figure: axis titles, caption, state. Plain text, which the drawing or the page escapes."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from landscape.core.grid import Floats, remedy_of_target
from landscape.core.text import count_text, finite_or_none, number_text, percent_text, plus_minus
from landscape.model.layer_rules import inspect_command
from landscape.surface.barriers import STABLE, Barrier, has_point
from landscape.surface.derived import RISE, bases_of
from landscape.surface.record import Record
from landscape.surface.record_entries import BREAKING, EIGENVALUES, AxisEnd, FoundAxis, LayersRecord, TargetRule
from landscape.surface.record_parts import AccuracyRecord
from landscape.surface.surface import (
    INTERPOLATION_ERROR,
    NOT_COMPUTED,
    NOT_FINITE,
    OK,
    QUARANTINED,
    RISE_STDERR,
    Axis,
    Surface,
)
from landscape.views.prepare.scale import count_statuses, point_counts

# ----------------------------------------------------------------------------------------------------
# The values of an observable in words: a mean of samples, of weighted samples, a sum of terms, a constant.


def mean_in_words(record: Record, observable: str, title: str) -> str:
    """The meaning of an observable's values, as far as known, such as 'mean loss of 512 samples'.

    Args:
        title: the name of the observable in words.

    >>> from landscape.surface.record_entries import ConvexityRecord
    >>> from landscape.surface.record_parts import TermRecord as Term
    >>> terms = {"interior": Term(weight=1.0, samples=700), "boundary": Term(weight=10.0, samples=90)}
    >>> record = Record(num_samples=700, terms=terms)
    >>> mean_in_words(record, "boundary", "boundary"), mean_in_words(record, "loss", "loss")
    ('mean boundary of 90 points', 'loss: weighted sum of 2 means, over 700 and 90 points')
    >>> mapped = Record(terms=terms, convexity=ConvexityRecord(steps=9, parameters=9, second_derivatives="autograd"))
    >>> mean_in_words(mapped, "eig_max", "eig max")
    'eig max of the Hessian of the loss, a weighted sum of 2 means, over 700 and 90 points'
    """
    name = "loss" if observable == RISE_STDERR else observable.removesuffix("_stderr")
    base = bases_of(record.derived, name)[0]
    if record.convexity is not None and base in EIGENVALUES:  # not a mean: the mean loss is differentiated
        formula = f" = {record.derived[name]}" if name in record.derived else ""
        mean = _mean_of(record, "loss")
        loss = mean.replace("mean", "mean loss", 1) if mean.startswith("mean") else f"loss, a {mean}"
        return f"{title}{formula} of the Hessian of the {loss}"
    if record.layers is not None and base in record.layers.observables:
        return _of_layers(record.layers, base, title)
    mean = _mean_of(record, base)
    if not mean:
        return title
    if name != observable:
        return title + (mean.removeprefix("mean") if mean.startswith("mean") else f", a {mean}")
    if name in record.derived:  # such as the perplexity, which is not a mean of perplexities
        return f"{title} = {record.derived[name]} with the {mean}"
    return f"{title}: {mean}" if mean.startswith("weighted sum") else mean.replace("mean", f"mean {title}", 1)


def _of_layers(layers: LayersRecord, observable: str, title: str) -> str:
    """The meaning of an observable of layers, such as 'abs mean of fc2'."""
    known = layers.layer_of(observable)
    if known is not None:
        return f"{known[1].replace('_', ' ')} of {known[0]}"
    return f"{title} that breaks" if observable == BREAKING[0] else f"{title} that fires"


def _mean_of(record: Record, observable: str) -> str:
    """The kind of mean that an observable is; '' if unknown, as for one that other software computed."""
    terms = record.terms
    if observable == "loss" and len(terms) > 1:
        return _sum_of([term.samples for term in terms.values()])
    if record.accuracy is not None and not terms:
        return ("weighted " if record.weighted else "") + _mean(record.num_samples, "samples") + " (estimated)"
    if not terms:
        if record.num_samples is None and record.is_imported:
            return ""
        return ("weighted " if record.weighted else "") + _mean(record.num_samples, "samples")
    term = next(iter(terms.values())) if observable == "loss" else terms.get(observable)
    mean = _mean(None if term is None else term.samples, "points")
    scaled = term is not None and observable == "loss" and term.weight not in (None, 1.0)
    return f"{mean}, times {term.weight:g}" if scaled and term is not None else mean


def _mean(count: int | None, noun: str) -> str:
    return "mean" if count is None else f"mean of {count} {noun}"


def _sum_of(counts: list[int | None]) -> str:
    text = f"weighted sum of {len(counts)} means"
    if None in counts:
        return text
    *rest, last = map(str, counts)
    return f"{text}, over {', '.join(rest)} and {last} points"


def constant_in_words(values: Floats, name: str, imported: bool = False) -> str:
    """The note that all values of a landscape are the same, which is rarely intended; '' if they differ.

    Args:
        name: of the landscape, for the command that inspects it.
        imported: whether other software computed it, so that there is no network to inspect.

    >>> constant_in_words(np.ones(3), "line").partition("; ")[2]
    '`landscape inspect RUN line --at=0` says whether a layer is dead'
    >>> constant_in_words(np.ones(1), "line")
    ''
    """
    if values.size < 2 or not np.isfinite(values.flat[0]) or not (values == values.flat[0]).all():
        return ""
    said = "the same loss at all points shown: nothing that the directions move changes it"
    command = inspect_command("RUN", name, values.ndim)
    return said if imported else f"{said}; `{command}` says whether a layer is dead"


# ----------------------------------------------------------------------------------------------------
# The range of the axes in words, if it was found by the loss.

RULES: dict[TargetRule, str] = {
    "guessing": "a third of the loss of guessing",
    "origin": "the loss at the origin",
    "least": "the least change that is looked for",
}
SHORT_OF_IT: dict[AxisEnd, str] = {
    "finite": "{name} only by {change}, beyond which it is not finite",
    "farthest": "{name} only by {change}, as far as it was looked at",
}


def range_in_words(surface: Surface) -> str:
    """How the range was found; '' if it was given, or the axes were widened since.

    Such as 'range: found, where the loss along an axis has changed by 0.77 (a third of the loss of guessing)'.
    """
    found = surface.record.found_range
    if found is None or not all(map(_ends_there, surface.axes, found.axes)) or len(found.axes) != len(surface.axes):
        return ""
    change = f"{number_text(found.target, 2)} ({RULES[found.rule]})"
    text = f"range: found, where the loss along an axis has changed by {change}"
    short = [
        SHORT_OF_IT[shortfall.end].format(name=axis.name, change=number_text(shortfall.change, 2))
        for axis, shortfall in zip(surface.axes, found.axes, strict=True)
        if shortfall.end in SHORT_OF_IT
    ]
    return "; along ".join([text, *short])


def _ends_there(axis: Axis, found: FoundAxis) -> bool:
    return (float(axis.coordinates[0]), float(axis.coordinates[-1])) == (-found.radius, found.radius)


# ----------------------------------------------------------------------------------------------------

SMALLEST = 0.7  # of its font, to which the title of an axis shrinks before it loses words
PARENTHESES = re.compile(r" \([^()]*\)")
BEGINNING = re.compile(r"(?<= · ).+ (?=to \S)")  # of "α · the first network to the second"


def axis_title(axis: Axis) -> str:
    """The title of an axis, such as 'alpha: PCA component 1, 62.0 % of the variance (random walk: 60.8 %)'."""
    label = axis.label
    title = axis.name if label == axis.name else f"{axis.name}: {label}"
    explained, walk = axis.record.explained_variance, axis.record.random_walk_variance
    if percent_text(explained):
        title += f", {percent_text(explained)} of the variance"
        title += f" ({walk_in_words(axis)}: {percent_text(walk)})" if percent_text(walk) else ""
    return title


def walk_in_words(axis: Axis) -> str:
    """The name of the random walk: for several paths, one walk from the start of each."""
    return "random walks from the same starts" if axis.attributes.get("trajectory") == "paths" else "random walk"


SYMBOLS = {"alpha": "α", "beta": "β", "gamma": "γ"}
BETWEEN = " · "  # the symbol of an axis and what it is


def short_axis_title(axis: Axis) -> str:
    """The same in a few words that fit beside every plot of the plane, also its narrow side: 'PC 1 (62.0 %)'.

    The only naming of axes in pictures: 'PC 1 (62.0 %)', 'α · random direction, filter-normalised (seed 1)',
    'α · epoch 10 (0) to epoch 1 (1)', 'α' for an axis of which nothing is known.
    """
    label, kind, symbol = axis.label, axis.record.kind, SYMBOLS.get(axis.name, axis.name)
    if label == axis.name:
        return symbol
    share = percent_text(axis.record.explained_variance)
    if kind == "pca":
        words = label.partition(" of ")[0]
        words = re.sub("^(principal component|PCA component)", "PC", words)
        return f"{words} ({share})" if share else words
    if kind in ("towards", "plane"):
        label = label.replace("from that line to ", "towards ")
        label = label.removeprefix("from ").replace(" towards ", " to ")
    else:
        label, _, more = label.partition(" (")
        label = label.removesuffix(" of the Hessian")
        parts = more.rstrip(")").split(", ") if kind == "random" else []
        label += "".join(f", {part}" for part in parts if part.endswith("-normalised"))
        label += "".join(f" ({part})" for part in parts if part.startswith("seed "))
    return f"{symbol}{BETWEEN}{label}" if label else symbol


def axis_name(title: str) -> str:
    """The shortest name of an axis: what a short title begins with.

    >>> axis_name("PC 1 (62.0 %)"), axis_name("α · random direction, filter-normalised (seed 1)")
    ('PC 1', 'α')
    """
    return PARENTHESES.sub("", title.partition(BETWEEN)[0])


def fitting_title(title: str, most: int, smallest: float = SMALLEST) -> tuple[str, float]:
    """The words of an axis title that fit in one line, and the share of its font's size at which they do.

    They are never cut off: a long title becomes smaller, then loses what is in parentheses, then what follows a comma,
    then the beginning of "… to …", then all but the name of the axis. The caption has it in full.

    Args:
        most: letters in one line at the whole size.
        smallest: the least share; 1 for words that keep their size.

    >>> [fitting_title("PC 1 (81.7 %)", most)[0] for most in (13, 10, 6)]
    ['PC 1 (81.7 %)', 'PC 1 (81.7 %)', 'PC 1']
    >>> title = "α · random direction, filter-normalised (seed 1)"
    >>> [fitting_title(title, most)[0] for most in (28, 20, 9)]
    ['α · random direction, filter-normalised', 'α · random direction', 'α']
    >>> [fitting_title("α · one.pt to two.pt", 16, smallest) for smallest in (0.8, 1.0)]
    [('α · one.pt to two.pt', 0.8), ('α · to two.pt', 1.0)]
    """
    if len(title) <= most:
        return title, 1.0
    plain = PARENTHESES.sub("", title)
    for words in (title, plain, plain.partition(", ")[0], BEGINNING.sub("", plain)):
        if smallest * len(words) <= most:
            return words, min(1.0, most / len(words))
    return axis_name(title), 1.0


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis if it has more than `most` letters.

    >>> shortened("direction", 9), shortened("directions", 9)
    ('direction', 'directio…')
    """
    return text if len(text) <= most else text[: max(most - 1, 1)].rstrip() + "…"


def capitalised(text: str) -> str:
    """The text with a capital first letter; the rest is unchanged."""
    return text[:1].upper() + text[1:]


LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\u00a0": "~",
    "\u202f": r"\,",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "…": r"\ldots{}",
    "–": "--",
    "—": "---",
    "·": r"$\cdot$",
    "°": r"$^\circ$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "\u2212": "$-$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "√": r"$\surd$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "θ": r"$\theta$",
    "Δ": r"$\Delta$",
    "₀": "$_0$",
    "₁": "$_1$",
    "₂": "$_2$",
    "²": "$^2$",
    "→": r"$\to$",
    "∞": r"$\infty$",
}


def latex_text(text: str) -> str:
    """The text in LaTeX, its special characters escaped; letters of other scripts stay, which UTF-8 input takes.

    >>> latex_text("86.2\u00a0% of α_1: 0.5 ± 0.1")
    '86.2~\\\\% of $\\\\alpha$\\\\_1: 0.5 $\\\\pm$ 0.1'
    """
    return "".join(LATEX.get(sign, sign) for sign in text)


def observable_title(observable: str) -> str:
    """The name of an observable in words.

    >>> observable_title("accuracy"), observable_title("accuracy_stderr")
    ('accuracy', 'standard error of the accuracy')
    """
    if observable == INTERPOLATION_ERROR:
        return "expected error of interpolation of the loss"
    if observable in (RISE, RISE_STDERR):
        return "loss above the origin" if observable == RISE else "standard error of the loss above the origin"
    if observable.endswith("_stderr"):
        return f"standard error of the {observable.removesuffix('_stderr')}"
    return observable.replace("_", " ")


def resolution(surface: Surface) -> str:
    """The size of the grid in the order of the axes, such as '40 × 30 points'."""
    return " × ".join(str(len(axis.coordinates)) for axis in surface.axes) + " points"


def state_of(surface: Surface) -> str:
    """The state of a landscape, counted from its points as `landscape status` does.

    Returns:
        'running', 'waiting', 'interrupted', 'partial' or 'complete'; 'damaged' if the page has found it damaged.
    """
    states = [surface.status, *(points.status for points in (surface.path, surface.networks) if points is not None)]
    accuracy = surface.record.accuracy
    if accuracy is not None and accuracy.stopped == "given up":
        return "partial"
    going_on = accuracy is not None and not accuracy.stopped
    if not (surface.unfinished or going_on or any((status == NOT_COMPUTED).any() for status in states)):
        return "partial" if any((status == QUARANTINED).any() for status in states) else "complete"
    recorded = surface.record.progress.state
    return recorded if recorded in ("running", "waiting", "interrupted", "damaged") else "partial"


def of_driver(surface: Surface, alive: bool) -> Surface:
    """The surface as its run's driver leaves it: what is not computed yet waits for a living one, else is interrupted.

    Args:
        alive: whether the run has a driver.
    """
    surface = replace(surface, levels=tuple(of_driver(level, alive) for level in surface.levels))
    progress = surface.record.progress
    if progress.state in ("complete", "partial") or (alive and progress.state == "running"):
        return surface
    record = surface.record.changed(progress=replace(progress, state="waiting" if alive else "interrupted"))
    return replace(surface, attributes=record.attributes)


def state_text(surface: Surface) -> str:
    """The state of a landscape in words, with the counts of what is missing.

    Such as 'complete', or 'interrupted: 210 of 441 points, 4 of 6 snapshots of the path, 3 points not finite'.
    """
    return state_words(state_of(surface), point_counts(surface), path_counts(surface))


def path_counts(surface: Surface) -> tuple[int, ...] | None:
    """How many snapshots of the path, or networks of a plane, have each status, 0 to 3; None if there are none."""
    counts = [count_statuses(points.status) for points in (surface.path, surface.networks) if points is not None]
    return tuple(map(sum, zip(*counts, strict=True))) if counts else None


def state_words(state: str, points: Sequence[int], path: Sequence[int] | None = None) -> str:
    """The words of `state_text`, from the numbers of points and of path snapshots per status, 0 to 3."""
    grid = "points" if path is None else "points of the grid"  # a status counts two evaluations per snapshot too
    counted = [(points, grid), *([(path, "snapshots of the path")] if path is not None else [])]
    parts = [
        f"{count_text(counts[OK] + counts[NOT_FINITE])} of {count_text(sum(counts))} {what}"
        for counts, what in counted if counts[NOT_COMPUTED]
    ]  # fmt: skip
    text = state + (f": {', '.join(parts)}" if parts else "")
    for code, word in ((NOT_FINITE, "not finite"), (QUARANTINED, "quarantined")):
        text += f", {points[code]} point{'s' * (points[code] != 1)} {word}" if points[code] else ""
    return text


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sampling(surface: Surface, observable: str) -> str:
    """How every value is computed, as far as known: 'mean loss of 512 samples, float32, batch norm batch'.

    With batch norm in mode eval it names the statistics, which may shape the landscape.
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
    """A note on random data, such as 'one random draw of inputs (field 0)'; '' if the data are not random.

    Data are random if they are augmented at every reading.
    """
    random = surface.record.random_data
    fields = [] if random is None else [*random.fields, *random.unseeded]
    return f"one random draw of {', '.join(fields)}" if fields else ""


def batch_norm_text(surface: Surface) -> str:
    """The batch-norm mode, such as 'eval'; '' if it is not recorded or the model has no batch norm."""
    layers = surface.record.provenance.batch_norm_layers
    return "" if layers == 0 else surface.record.batch_norm or ""


def has_fixed_statistics(surface: Surface) -> bool:
    """Whether batch norm keeps running statistics of training, which do not fit other weights."""
    return bool(surface.record.provenance.batch_norm_layers) and surface.record.batch_norm == "eval"


def mixes_networks(surface: Surface) -> bool:
    """Whether an axis leads to other networks: batch norm's running statistics move along it with the weights."""
    return not {axis.record.kind for axis in surface.axes}.isdisjoint(("towards", "plane"))


def precision_text(surface: Surface) -> str:
    """The precision, with its error at the probe points if that was measured.

    Such as 'float32', or 'bfloat16 (up to 0.0021 or 0.12 % off float32)'; weights in bfloat16 are told apart.
    """
    error, moving = surface.record.precision_error, surface.record.moving_weights
    precision, plan = surface.record.precision or "not recorded", surface.record.plan
    if plan is not None and plan.whole.get("bfloat16_weights") is True:
        precision += ", weights included"
    if moving:
        precision += f", {number_text(100 * min(moving.values()), 3)}\u00a0% of them move from point to point"
    if error is None:
        return precision
    absolute, relative = finite_or_none(error.max_abs_error), finite_or_none(error.max_rel_error)
    if absolute is None or relative is None:
        return precision
    return f"{precision} (up to {number_text(absolute, 2)} or {number_text(100 * relative, 2)}\u00a0% off float32)"


OF_THE_LOSS = ("loss", RISE, "loss_stderr", RISE_STDERR, INTERPOLATION_ERROR)  # what an accuracy is stated of


def _accuracy(record: AccuracyRecord, observable: str) -> tuple[str, ...]:
    """How true the picture of the loss is, and with what; of another observable only with what."""
    if observable in OF_THE_LOSS:
        return record.text, record.ending
    return f"{record.cost}, chosen for the loss; the error of this is not stated, see its standard error", ""


def caption(surface: Surface, observable: str, notes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The caption of a figure: sentences without full stops, `notes` last."""
    place = "there" if surface.record.origin_in_words else "at the origin"
    at_origin = origin_text(surface) if observable in ("loss", RISE) else ""
    accuracy = surface.record.accuracy
    parts = [
        sampling(surface, observable),
        *(() if accuracy is None else _accuracy(accuracy, observable)),
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
        *(() if surface.record.imported is None else surface.record.imported.notes),
        state_text(surface),
        *notes,
    ]
    return tuple(part[:1].upper() + part[1:] for part in parts if part)


def own_model_text(surface: Surface) -> str:
    """The note that the user's own model gave other losses, which was accepted, or why it was not compared; else ''."""
    known = surface.record.own_model
    if known is None or known.state == "agrees":
        return ""
    return known.text if known.state == "accepted" else f"not compared: {known.text}"


def imported_from(surface: Surface) -> str:
    """The file that a landscape of other software was imported from; '' for one that a job computed."""
    imported = surface.record.imported
    return (imported.file or "a file") if imported is not None and surface.record.is_imported else ""


def origin_text(surface: Surface) -> str:
    """The loss at the origin ± two standard errors, such as '0.8845 ± 0.021 (2 s.e.)'; '' if it is not known."""
    loss = surface.origin_loss
    return value_with_error(loss, surface.origin_loss_stderr) if math.isfinite(loss) else ""


def barrier_text(surface: Surface) -> str:
    """Entezari's barrier of a line between networks, as '0.43 ± 0.02 (2 s.e.) at alpha 0.5'; '' for others.

    The number after ± is an upper bound of two standard errors. If the barrier is not known, the text says why.
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
    return f"{value_with_error(barrier.height, barrier.stderr)} at alpha {number_text(barrier.alpha, 3)}"


def wrap(text: str, width_px: float, font_px: float = 12) -> list[str]:
    """The text in lines of about `width_px` pixels; plotly does not wrap text itself."""
    return textwrap.wrap(text, max(20, int(width_px / (0.52 * font_px))), break_long_words=True) or [""]


def value_with_error(value: float, error: float) -> str:
    """A value ± two standard errors, which it names; the value alone if the error is not finite.

    >>> value_with_error(0.88451, 0.0105), value_with_error(0.5, math.nan)
    ('0.885 ± 0.021 (2 s.e.)', '0.5')
    """
    return plus_minus(value, error) + (" (2 s.e.)" if math.isfinite(2 * error) else "")


def usual_digits(values: Floats, error: Floats | None, most: int) -> int:
    """The digits of most of these values down to the second one of two standard errors; `most` without errors.

    For texts that plotly fills in, with one format for all points.

    >>> usual_digits(np.array([0.88451, 0.5, 12.25]), np.array([0.0105, 0.006, 0.15]), 5)
    3
    """
    if error is None:
        return most
    known = np.isfinite(values) & np.isfinite(error) & (values != 0) & (error > 0)
    if not known.any():
        return most
    digits = np.floor(np.log10(np.abs(values[known]))) - np.floor(np.log10(2 * error[known])) + 2
    return int(np.clip(np.median(digits), 3, most))


# ----------------------------------------------------------------------------------------------------
# The barriers of a line between two networks in words, by several definitions.

ENTEZARI, GIT_RE_BASIN, FRANKLE = (
    "barrier between 0 and 1, Entezari et al. 2022",
    "over the mean of the ends, Git Re-Basin",
    "of the error over that mean, Frankle et al. 2020",
)


def barrier_rows(surface: Surface) -> list[tuple[str, str]]:
    """A row per definition of the barrier of a line; empty for other landscapes.

    The number after ± is two standard errors, resampled if the losses of the samples were kept, else an upper bound.
    """
    text = barrier_text(surface)
    if not text:
        return []
    barriers = surface.find_barriers()
    if barriers is None:
        return [(ENTEZARI, text)]
    above = "" if barriers.entezari.alpha in (0.0, 1.0) else _rise(barriers.entezari)
    rows = [(ENTEZARI, above or text), (GIT_RE_BASIN, _rise(barriers.git_re_basin))]
    if barriers.frankle is None and "accuracy" in surface.observables:
        rows.append((FRANKLE, "not known, as 0 is no point of the grid"))
    if barriers.frankle is not None:
        side = "below" if barriers.frankle.height < STABLE else "at least"
        rows.append((FRANKLE, f"{_rise(barriers.frankle)}, {side} {percent_text(STABLE)}"))
    return rows


def _rise(barrier: Barrier) -> str:
    """Such as '0.43 ± 0.02 at alpha 0.5'."""
    if barrier.height == 0:
        return "0"
    return f"{value_with_error(barrier.height, barrier.stderr)} at alpha {number_text(barrier.alpha, 3)}"
