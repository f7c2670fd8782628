"""Compare two landscapes of one plane: their difference, the loss at the origin by bits, the steps of rounding."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.analysis.paired import Pairs, answers_at, evaluated, of_pair
from landscape.compute.callback_place import Callback
from landscape.compute.executor import AtPoints, EvaluationSetting, Executor, Executors, local_executors, setting_of
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob
from landscape.compute.recorded_job import recorded_job
from landscape.core.errors import JobError, LandscapeError, NotFoundError, nearest, quoted
from landscape.core.folders import open_folder
from landscape.core.grid import Floats
from landscape.core.plan import Engine
from landscape.core.quantisation import MOST_BITS, Quantisation
from landscape.core.text import seconds_text
from landscape.evaluation.model_rounding import WeightRounding
from landscape.evaluation.reduction import terms_of
from landscape.model.parameters import State
from landscape.problem.terms import Problem
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names
from landscape.surface.surface import NOT_COMPUTED, Surface, stored_stderr

# ----------------------------------------------------------------------------------------------------
# The two compared landscapes, named by `RUN:NAME`, and when they are incomparable.


@dataclass(frozen=True)
class Side:
    """One landscape of a run; `run` is as written by the user, `path` the run's place."""

    run: str
    path: str
    store: LandscapeStore

    @property
    def name(self) -> str:
        """The name of the landscape."""
        return self.store.name

    @property
    def label(self) -> str:
        """Its name in texts: RUN:NAME."""
        return f"{self.run}:{self.name}"

    @cached_property
    def surface(self) -> Surface:
        """Its values, without levels."""
        return self.store.read_surface()

    @property
    def rounding(self) -> str:
        """Its quantisation in words."""
        return self.store.record.rounding_in_words or "nothing rounded"


def sides_of(first: str, second: str) -> tuple[Side, Side] | None:
    """Both landscapes; None if neither text names one, since texts may also name measures of weights.

    Raises:
        JobError, NotFoundError: one of them names a landscape, and the other one does not.
    """
    sides = [_side_of(text) for text in (first, second)]
    if sides[0] is None and sides[1] is None:
        return None
    for text, side in zip((first, second), sides, strict=True):
        if side is None:
            raise _missing(text)
    assert sides[0] is not None
    assert sides[1] is not None
    return sides[0], sides[1]


def _side_of(text: str) -> Side | None:
    run, colon, name = text.rpartition(":")
    if not colon or not run or not open_folder(run).exists() or name not in landscape_names(open_folder(run).name):
        return None
    path = open_folder(run).name
    return Side(run, path, LandscapeStore.open(path, name))


def _missing(text: str) -> LandscapeError:
    """The error of a text that names no landscape, beside one that does."""
    run, colon, name = text.rpartition(":")
    known = landscape_names(open_folder(run).name) if colon and run and open_folder(run).exists() else []
    if known:
        return NotFoundError(f"landscape {quoted(name)} is not in run {quoted(run)}; {nearest(name, known)}")
    return JobError(f"compare: must be two landscapes or two sets of weights, RUN:NAME each, not {quoted(text)}")


def refuse_apart(first: Side, second: Side) -> None:
    """Refuse landscapes of different planes or samples.

    Raises:
        JobError: lists all differences.
        LandscapeError: the coordinates of one are damaged.
    """
    records = [side.store.record for side in (first, second)]
    for side, record in zip((first, second), records, strict=True):
        if record.is_imported or record.identity is None:
            raise JobError(
                f"landscape {quoted(side.name)} was not computed by a job, so its network and data are unknown"
            )
    one, two = (record.identity for record in records if record.identity is not None)
    like = f"compute the second one with `like: {first.name}`"
    like += "" if first.path == second.path else f", in the run {first.run}"
    both = "" if first.path == second.path else ", a report of both runs"
    shows = f"`landscape.views.compare`{both} or the comparison on the page of `landscape view` shows them as they are"
    samples = "take the same data, num_samples and seed in both jobs"
    same = first.store.record.has_samples_of(second.store.record)
    # Batches that share statistics are made in the order in which the samples were drawn.
    ordered = one.seed == two.seed or (same and one.batch_norm == two.batch_norm == "eval")
    differ = [
        (f"{name} ({other})", remedy)
        for name, other, remedy, agrees in (
            ("origin", "other weights", "", one.origin == two.origin),
            ("samples", "other data", samples, same),
            ("num_samples", f"{one.num_samples} and {two.num_samples}", samples, one.num_samples == two.num_samples),
            ("seed", f"{one.seed} and {two.seed}", samples, ordered),
            ("batch_norm", f"{one.batch_norm} and {two.batch_norm}", "give both jobs the same batch_norm",
             one.batch_norm == two.batch_norm),
            ("directions", "other axes", like, first.store.direction_digests() == second.store.direction_digests()),
            ("coordinates", "other points", like, _same_points(first, second)),
        )
        if not agrees
    ]  # fmt: skip
    if differ:
        fields, remedies = ", ".join(field for field, _ in differ), dict.fromkeys(remedy for _, remedy in differ)
        # Two networks can be shown together, but not be subtracted sample by sample.
        way = "these are two networks, and" if one.origin != two.origin else f"{' and '.join(remedies)}; or"
        raise JobError(
            f"compare: {first.label} and {second.label} must have one plane and the same samples; they differ in "
            f"{fields}; {way} {shows}"
        )


def _same_points(first: Side, second: Side) -> bool:
    grids = []
    for side in (first, second):
        grid = side.store.grid()
        if grid is None:
            raise LandscapeError(f"landscape {quoted(side.name)}: its coordinates are damaged; its job mends them")
        grids.append(grid.coordinates)
    return len(grids[0]) == len(grids[1]) and all(map(np.array_equal, *grids))


# ----------------------------------------------------------------------------------------------------
# The steps of rounded weights are visible near the origin, on a line or a patch on which few weights change level.
#
# Along a direction d, weight j changes its level whenever t·dⱼ passes a whole step sⱼ of its rounding. A line of length
# ℓ has about ℓ·Σⱼ abs(dⱼ)/sⱼ such changes, so ℓ = K / Σⱼ abs(dⱼ)/sⱼ shows about K of them. If scales are taken at each
# point, all weights of a row also stretch with the largest one between the changes.
#
# On a patch each side is such a line along its axis. A change of level is a straight cut through the patch, across
# which weight j passes from one level to the next; between the cuts lie the treads.

CHANGES = 24  # of single weights on the line
FLOAT32_ERROR = 2.0**-24  # of a weight, relative
RESOLVED = 8  # times that error, so that cuts shifted by it stay between their points
PATCH_CHANGES = 10  # on each side of the patch: the cuts of both sides cross, and more would leave no visible tread


@dataclass(frozen=True)
class Steps:
    """Both losses along a short line through the origin; the first one is of the unrounded network."""

    axis: str
    at: Floats
    plain: Floats
    rounded: Floats


@dataclass(frozen=True)
class LossPatch:
    """Both losses on a small patch of the plane around the origin; the first is of the unrounded network.

    Attributes:
        axes: names of the first and the second axis.
        at: coordinates along each.
        plain, rounded: [second axis, first axis].
        origin: both losses at the origin itself.
        precision: of the computation.
    """

    axes: tuple[str, str]
    at: tuple[Floats, Floats]
    plain: Floats
    rounded: Floats
    origin: tuple[float, float]
    precision: str


def length_with_changes(
    problem: Problem, origin: State, direction: State, quantise: Quantisation, changes: int = CHANGES,
    *, option: str = "steps", which: str = "first",
) -> float:  # fmt: skip
    """The length of a line along a direction on which about so many weights change their level.

    Args:
        option, which: the names of the option and of the axis in messages.

    Raises:
        JobError: the direction moves no rounded weight.
    """
    rounding = WeightRounding.of(problem.model, quantise)
    per_length = sum(
        rounding.changes_per_length(name, origin[name], direction[name]) for name in rounding.infos if name in direction
    )
    if not per_length:
        raise JobError(
            f"{option}: the {which} axis must move weights that are rounded, to show their steps; leave {option} out"
        )
    return changes / per_length


def places_on(length: float, count: int) -> Floats:
    """Coordinates symmetric around the origin, which is among them if the count is odd."""
    return np.linspace(-length / 2, length / 2, count)


def points_of_line(length: float, count: int, axes: int) -> Floats:
    """Points [count, axes] along the first axis."""
    points = np.zeros((count, axes))
    points[:, 0] = places_on(length, count)
    return points


def rows_of_patch(at: tuple[Floats, Floats], axes: int) -> list[Floats]:
    """The points of the patch, one array [count, axes] per coordinate of the second axis."""
    rows = []
    for second in at[1]:
        points = np.zeros((len(at[0]), axes))
        points[:, 0], points[:, 1] = at[0], second
        rows.append(points)
    return rows


def fine_enough(
    problem: Problem, setting: EvaluationSetting, quantise: Quantisation, at: Sequence[Floats]
) -> EvaluationSetting:
    """The setting itself if its arithmetic resolves neighbouring points of a patch, else the same in float64.

    In float32 every weight has an error of up to 2⁻²⁴ of itself, which shifts a cut; a step between two points must
    move weights by much more. float64 takes several times as long, for convolutions ten times.
    """
    names = list(WeightRounding.of(problem.model, quantise).infos)
    error = FLOAT32_ERROR * _total(setting.origin, names)
    moved = (
        float(places[1] - places[0]) * _total(direction.tensors, names)
        for places, direction in zip(at, setting.directions, strict=False)
    )
    if setting.plan.precision == "float32" and all(step >= RESOLVED * error for step in moved):
        return setting
    return in_double(setting)


def _total(state: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """Σ abs(w) over the named tensors that exist."""
    return sum(float(state[name].abs().sum(dtype=torch.float64)) for name in names if name in state)


def in_double(setting: EvaluationSetting) -> EvaluationSetting:
    """The setting in float64 and eager, so that single changes of level exceed rounding errors."""
    plan = replace(setting.plan, precision="float64", bfloat16_weights=False, engine=Engine())
    return replace(setting, plan=plan)


# ----------------------------------------------------------------------------------------------------
# The comparison: its options, cost and result.

ALL_BITS = tuple(range(1, MOST_BITS + 1))
HERE = local_executors()


@dataclass(frozen=True)
class Compare:
    """The options of a comparison of two landscapes.

    Args:
        points: the most grid points at which the paired error is evaluated if the losses of samples are not stored.
        bits: widths for the curve of the loss at the origin; empty: no curve.
        steps: points of the line that shows the steps of rounding; 0: no line.
        patch: points per side of the patch that shows them; 0: no patch. Two evaluations of all samples per point.
    """

    points: int = 25
    bits: tuple[int, ...] = ALL_BITS
    steps: int = 61
    patch: int = 0


@dataclass(frozen=True)
class AtBits:
    """The loss at the origin with so many bits, and its difference from that of the unrounded network."""

    bits: int
    values: Mapping[str, float]  # observables
    difference: float
    stderr: float


@dataclass(frozen=True)
class QuantisedComparison:
    """The result of a comparison; arrays over the grid, NaN if not known.

    Attributes:
        stderr: the paired error of the difference at each point, with what landscapes with an accuracy state.
        stored: whether that comes from stored losses, at every point.
        origin: both losses evaluated at the origin.
        evaluations: the number of evaluations of all samples.
    """

    first: Side
    second: Side
    difference: Floats
    stderr: Floats
    unpaired: Floats
    stored: bool
    origin: Pairs
    plain: Mapping[str, float] = field(default_factory=dict)
    bits: tuple[AtBits, ...] = ()
    quantise: Quantisation | None = None
    steps: Steps | None = None
    patch: LossPatch | None = None
    evaluations: int = 0

    @property
    def ratio(self) -> float:
        """The unpaired error over the paired one, the median over points where both are known."""
        known = np.isfinite(self.stderr) & (self.stderr > 0) & np.isfinite(self.unpaired)
        return float(np.median(self.unpaired[known] / self.stderr[known])) if known.any() else math.nan


def compare_landscapes(
    first: Side,
    second: Side,
    asked: Compare | None = None,
    *,
    problem: Callback | None = None,
    folders: tuple[Path | None, Path | None] = (None, None),
    executor: Executors = HERE,
    tell: Callable[[str], None] = lambda line: None,
) -> QuantisedComparison:
    """Compare two landscapes of one plane and the same samples; reads both runs, and writes nothing.

    Args:
        problem: the callback; default: the one that the first landscape was computed with, by its name.
        folders: for each landscape, where its callback is looked up first; default: as `find_callback` finds it.
        tell: is called with a line on the cost of a patch before it begins, and one on the time left.

    Raises:
        JobError: they have different planes or samples; the message lists the differences. Or an option does not fit.
    """
    asked = asked or Compare()
    refuse_apart(first, second)
    prepared = [_prepare(side, problem, folder) for side, folder in zip((first, second), folders, strict=True)]
    landscapes = [job.landscapes[0] for job in prepared]
    quantise = landscapes[1].plan.quantise or landscapes[0].plan.quantise
    kept = _stored_errors(first.surface, second.surface)
    stored = kept is not None
    spots = np.empty((0, len(first.store.shape)), np.int64) if stored else _spots(first, second, asked.points)
    lines = asked.steps if quantise is not None and quantise.weights else 0
    widths = asked.bits if quantise is not None else ()
    if asked.patch:
        _refuse_patch(quantise, len(first.store.shape))
    # Each also evaluates the origin, for the rise; a patch does so once for all its points.
    cost = 4 * len(spots) + 4 + 2 * len(widths) + 4 * lines + 2 + 2 * asked.patch**2
    names = [axis.name for axis in first.surface.axes]
    with executor(prepared[0], landscapes[0], cost) as answers:
        extra = _Evaluations(prepared[0], answers, [setting_of(landscape) for landscape in landscapes], tell)
        stderr = extra.errors_at(first.surface, spots) if kept is None else kept
        origin = extra.pairs(np.zeros((1, len(names))))
        plain, curve = extra.curve(quantise, widths, len(names)) if quantise and widths else ({}, ())
        steps = extra.steps(quantise, lines, names[0]) if quantise and lines else None
        patch = extra.patch(quantise, asked.patch, names) if quantise and asked.patch else None
    losses = [np.asarray(side.surface.loss, np.float64) for side in (first, second)]
    stderr = np.hypot(stderr, np.hypot(first.surface.stated_error, second.surface.stated_error))
    errors = [np.asarray(side.surface.observables["loss_stderr"], np.float64) for side in (first, second)]
    return QuantisedComparison(
        first, second, losses[1] - losses[0], stderr, np.hypot(*errors), stored, origin, plain, curve, quantise, steps,
        patch, extra.count,
    )  # fmt: skip


def _stored_errors(one: Surface, two: Surface) -> Floats | None:
    """The paired error from stored losses at every common point; None if not both landscapes store them."""
    stderr = stored_stderr(one, two)
    if stderr is not None:
        stderr[(one.status == NOT_COMPUTED) | (two.status == NOT_COMPUTED)] = np.nan
    return stderr


def _refuse_patch(quantise: Quantisation | None, axes: int) -> None:
    if quantise is None or not quantise.weights:
        raise JobError("patch: must be of landscapes one of which has its weights rounded; leave patch out")
    if axes < 2:
        raise JobError("patch: must lie in a plane, and these landscapes have one axis; leave patch out")


def _prepare(side: Side, problem: Callback | None, folder: Path | None) -> PreparedJob:
    return prepare(recorded_job(side.path, side.store, problem, folder), reading=True)


def _spots(first: Side, second: Side, most: int) -> NDArray[np.int64]:
    """At most so many places where both landscapes have values: evenly spaced with both ends, or only the middle."""
    shape = first.store.shape
    per_axis = math.floor(most ** (1 / len(shape)) + 1e-9)
    if not per_axis:
        return np.empty((0, len(shape)), np.int64)
    if per_axis == 1:  # too few for both ends: the middle
        places = [np.array([n // 2]) for n in shape]
    else:
        places = [np.unique(np.linspace(0, n - 1, min(n, per_axis)).round().astype(int)) for n in shape]
    table = np.stack(np.meshgrid(*places, indexing="ij"), -1).reshape(-1, len(shape))
    there = (first.surface.status != NOT_COMPUTED) & (second.surface.status != NOT_COMPUTED)
    return np.asarray(table[there[tuple(table.T)]], np.int64)


@dataclass
class _Evaluations:
    """Additional evaluations of both landscapes, and their number."""

    prepared: PreparedJob
    executor: Executor
    settings: Sequence[EvaluationSetting]
    tell: Callable[[str], None]
    count: int = 0

    def errors_at(self, surface: Surface, spots: NDArray[np.int64]) -> Floats:
        """The paired error over the grid: NaN except at these places."""
        stderr = np.full(surface.loss.shape, np.nan)
        if len(spots):
            grid = np.stack([surface.axes[k].coordinates[spots[:, -1 - k]] for k in range(len(surface.axes))], -1)
            stderr[tuple(spots.T)] = self.pairs(grid).stderr
        return stderr

    def pairs(self, points: Floats) -> Pairs:
        self.count += 2 * len(points)
        return evaluated(self.executor, self.settings, points, self.prepared.problem.observe)

    def curve(
        self, quantise: Quantisation, widths: Sequence[int], axes: int
    ) -> tuple[dict[str, float], tuple[AtBits, ...]]:
        """The observables at the origin without rounding, and with each of these widths."""
        origin, factors = np.zeros((1, axes)), terms_of(self.prepared.problem.observe) or {}
        own = self.settings[1] if self.settings[1].plan.quantise is not None else self.settings[0]
        self.count += 1 + len(widths)
        (plain,) = answers_at(self.executor, replace(own, plan=own.plan.rounding(None)), origin)
        found = []
        for bits in widths:
            setting = replace(own, plan=own.plan.rounding(replace(quantise, bits=bits)))
            (values,) = answers_at(self.executor, setting, origin)
            numbers = {name: float(mean[0]) for name, mean in values.mean.items()}
            stderr = float(of_pair(plain, values, factors)[0])
            found.append(AtBits(bits, numbers, numbers["loss"] - float(plain.mean["loss"][0]), stderr))
        return {name: float(mean[0]) for name, mean in plain.mean.items()}, tuple(found)

    def steps(self, quantise: Quantisation, count: int, axis: str) -> Steps:
        own = self._rounded(quantise)
        length = length_with_changes(self.prepared.problem, own.origin, own.directions[0].tensors, quantise)
        points = points_of_line(length, count, len(own.directions))
        self.count += 2 * count
        losses = [
            np.concatenate([values.mean["loss"] for values in answers_at(self.executor, setting, points)])
            for setting in _both(in_double(own))
        ]
        return Steps(axis, points[:, 0], *losses)

    def patch(self, quantise: Quantisation, count: int, names: Sequence[str]) -> LossPatch:
        own, number = self._rounded(quantise), 2 * count**2 + 2
        lengths = [
            length_with_changes(
                self.prepared.problem, own.origin, own.directions[k].tensors, quantise, PATCH_CHANGES,
                option="patch", which=which,
            ) for k, which in enumerate(("first", "second"))
        ]  # fmt: skip
        at = (places_on(lengths[0], count), places_on(lengths[1], count))
        rows = rows_of_patch(at, len(own.directions))
        of = f"all {self.prepared.samples.length} samples"
        setting_of_patch = fine_enough(self.prepared.problem, own, quantise, at)
        precision = setting_of_patch.plan.precision
        self.tell(f"patch: {count} × {count} points in {precision}, {number:,} evaluations of {of}")
        self.count += number
        found, origin = list[Floats](), list[float]()
        for setting in _both(setting_of_patch):
            began = time.monotonic()
            first = self._losses(setting, [np.zeros((1, len(own.directions))), rows[0]])
            if not found:
                left = (time.monotonic() - began) * (number / (count + 1) - 1)
                self.tell(f"patch: about {seconds_text(left, tenths=True)} left")
            found.append(np.stack([first[1], *self._losses(setting, rows[1:])]))
            origin.append(float(first[0][0]))
        return LossPatch((names[0], names[1]), at, found[0], found[1], (origin[0], origin[1]), precision)

    def _losses(self, setting: EvaluationSetting, rows: Sequence[Floats]) -> list[Floats]:
        answers = self.executor.ask(setting, [AtPoints(row) for row in rows])
        return [np.asarray(values.mean["loss"], np.float64) for values in answers]

    def _rounded(self, quantise: Quantisation) -> EvaluationSetting:
        return next(setting for setting in reversed(self.settings) if setting.plan.quantise == quantise)


def _both(rounded: EvaluationSetting) -> tuple[EvaluationSetting, EvaluationSetting]:
    """The settings of the unrounded and of the rounded network."""
    return replace(rounded, plan=rounded.plan.rounding(None)), rounded


def asked_bits(text: str) -> tuple[int, ...]:
    """The widths in a text such as `1-16` or `2,4,8`; `none` for none.

    Raises:
        JobError: the text is no such list, or a width is not from 1 to 16.

    >>> asked_bits("1-3,8")
    (1, 2, 3, 8)
    """
    if text == "none":
        return ()
    found: set[int] = set()
    for part in text.split(","):
        ends = part.split("-")
        if not 1 <= len(ends) <= 2 or not all(end.strip().isdecimal() for end in ends):
            raise JobError(f"bits: must be such as 1-16, 2,4,8 or none, not {text!r}")
        low, high = int(ends[0]), int(ends[-1])
        if not 1 <= low <= high <= MOST_BITS:
            raise JobError(f"bits: must be from 1 to {MOST_BITS}, the smaller first, not {part.strip()!r}")
        found.update(range(low, high + 1))
    return tuple(sorted(found))
