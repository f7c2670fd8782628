"""Two landscapes of one plane compared: their difference, the loss at the origin by bits, the steps of rounding."""

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
from landscape.compute.executor import AtPoints, EvaluationSetting, Executor, Executors, local_executors, setting_of
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob
from landscape.compute.recorded_job import Callback, recorded_job
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
# The two landscapes that are compared, found by `RUN:NAME`, and what keeps them apart.


@dataclass(frozen=True)
class Side:
    """One landscape of a run, `run` as it was written and `path` where it lies."""

    run: str
    path: str
    store: LandscapeStore

    @property
    def name(self) -> str:
        """The name of the landscape."""
        return self.store.name

    @property
    def label(self) -> str:
        """What texts call it: RUN:NAME."""
        return f"{self.run}:{self.name}"

    @cached_property
    def surface(self) -> Surface:
        """Its values, without its levels."""
        return self.store.read_surface()

    @property
    def rounding(self) -> str:
        """What is rounded there, in words."""
        return self.store.record.rounding_in_words or "nothing rounded"


def sides_of(first: str, second: str) -> tuple[Side, Side] | None:
    """Both landscapes; None where neither text names one, as it may name the measures of weights.

    Raises:
        JobError, NotFoundError: one of them names a landscape, and the other one does not.
    """
    found = [_side_of(text) for text in (first, second)]
    if found[0] is None and found[1] is None:
        return None
    for text, side in zip((first, second), found, strict=True):
        if side is None:
            raise _missing(text)
    assert found[0] is not None
    assert found[1] is not None
    return found[0], found[1]


def _side_of(text: str) -> Side | None:
    run, colon, name = text.rpartition(":")
    if not colon or not run or not open_folder(run).exists() or name not in landscape_names(open_folder(run).name):
        return None
    path = open_folder(run).name
    return Side(run, path, LandscapeStore.open(path, name))


def _missing(text: str) -> LandscapeError:
    """What a text that names no landscape is told, beside one that does."""
    run, colon, name = text.rpartition(":")
    known = landscape_names(open_folder(run).name) if colon and run and open_folder(run).exists() else []
    if known:
        return NotFoundError(f"landscape {quoted(name)} is not in run {quoted(run)}; {nearest(name, known)}")
    return JobError(f"compare: must be two landscapes or two sets of weights, RUN:NAME each, not {quoted(text)}")


def refuse_apart(first: Side, second: Side) -> None:
    """Refuse landscapes that are not of one plane and the same samples.

    Raises:
        JobError: says everything in which they differ.
        LandscapeError: the coordinates of one are damaged.
    """
    records = [side.store.record for side in (first, second)]
    for side, record in zip((first, second), records, strict=True):
        if record.is_imported or record.identity is None:
            raise JobError(f"landscape {quoted(side.name)} was computed by no job, and what it is of is not known")
    one, two = (record.identity for record in records if record.identity is not None)
    like = f"compute the second one with `like: {first.name}`"
    like += "" if first.path == second.path else f", in the run {first.run}"
    both = "" if first.path == second.path else ", a report of both runs"
    shows = f"`landscape.views.compare`{both} or the comparison on the page of `landscape view` shows them as they are"
    samples = "take the same data, num_samples and seed in both jobs"
    differ = [
        (f"{name} ({other})", remedy)
        for name, other, remedy, same in (
            ("origin", "other weights", "", one.origin == two.origin),
            ("samples", "other data", samples, one.samples == two.samples),
            ("num_samples", f"{one.num_samples} and {two.num_samples}", samples, one.num_samples == two.num_samples),
            ("seed", f"{one.seed} and {two.seed}", samples, one.seed == two.seed),
            ("batch_norm", f"{one.batch_norm} and {two.batch_norm}", "give both jobs the same batch_norm",
             one.batch_norm == two.batch_norm),
            ("directions", "other axes", like, first.store.direction_digests() == second.store.direction_digests()),
            ("coordinates", "other points", like, _same_points(first, second)),
        )
        if not same
    ]  # fmt: skip
    if differ:
        fields, remedies = ", ".join(field for field, _ in differ), dict.fromkeys(remedy for _, remedy in differ)
        # No job makes two networks one; they can be shown, and not subtracted sample by sample.
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
# Where the steps of rounded weights can be seen: near the origin, on a line or a patch where few weights change level.
#
# Along a direction d, weight j goes to another level whenever t·dⱼ passes a whole step sⱼ of its rounding. On a line
# of length ℓ there are about ℓ·Σⱼ abs(dⱼ)/sⱼ such changes, so that ℓ = K / Σⱼ abs(dⱼ)/sⱼ shows about K of them. With
# scales that are taken at each point, all weights of a row also stretch with the largest one between the changes.
#
# On a patch each side is such a line of its own axis. A change of level is a straight cut through the patch, across
# which weight j passes from one level to the next; between the cuts lie the treads.

CHANGES = 24  # of single weights on the line
FLOAT32_ERROR = 2.0**-24  # of a weight, relative
RESOLVED = 8  # times that error, so that cuts which are off by it stay between their points
PATCH_CHANGES = 10  # on each side of the patch: the cuts of both sides cross, and more would leave no tread to be seen


@dataclass(frozen=True)
class Steps:
    """Both losses along a short line through the origin; the first one is the network before it is rounded."""

    axis: str
    at: Floats
    plain: Floats
    rounded: Floats


@dataclass(frozen=True)
class LossPatch:
    """Both losses on a small patch of the plane around the origin; the first is the network before it is rounded.

    Attributes:
        axes: names of the first and the second axis.
        at: coordinates along each.
        plain, rounded: [second axis, first axis].
        origin: both losses at the origin itself.
        precision: in which they were computed.
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
    """How long a line along a direction is on which about so many weights change their level.

    Args:
        option, which: what a refusal calls what is asked for, and the axis.

    Raises:
        JobError: the direction moves nothing that is rounded.
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
    """Coordinates as far on either side of the origin, which is one of an odd count."""
    return np.linspace(-length / 2, length / 2, count)


def points_of_line(length: float, count: int, axes: int) -> Floats:
    """Points [count, axes] along the first axis."""
    points = np.zeros((count, axes))
    points[:, 0] = places_on(length, count)
    return points


def rows_of_patch(at: tuple[Floats, Floats], axes: int) -> list[Floats]:
    """The points of the patch, a row of one coordinate of the second axis each: [count, axes]."""
    rows = []
    for second in at[1]:
        points = np.zeros((len(at[0]), axes))
        points[:, 0], points[:, 1] = at[0], second
        rows.append(points)
    return rows


def fine_enough(
    problem: Problem, setting: EvaluationSetting, quantise: Quantisation, at: Sequence[Floats]
) -> EvaluationSetting:
    """The setting itself where its arithmetic tells neighbouring points of a patch apart, else that in float64.

    In float32 every weight is off by up to 2⁻²⁴ of itself, by which a cut moves; a step between two points has to move
    weights by much more. float64 takes several times as long, of convolutions ten times.
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
    """Σ abs(w) over tensors, those of them that there are."""
    return sum(float(state[name].abs().sum(dtype=torch.float64)) for name in names if name in state)


def in_double(setting: EvaluationSetting) -> EvaluationSetting:
    """The setting in float64 and eagerly, in which single changes of level are not lost among rounding errors."""
    plan = replace(setting.plan, precision="float64", bfloat16_weights=False, engine=Engine())
    return replace(setting, plan=plan)


# ----------------------------------------------------------------------------------------------------
# The comparison: what is asked for, what it costs, what is found.

ALL_BITS = tuple(range(1, MOST_BITS + 1))
HERE = local_executors()


@dataclass(frozen=True)
class Compare:
    """What is asked of two landscapes.

    Args:
        points: of the grid, at most, at which the paired error is evaluated where the losses of samples are not stored.
        bits: widths for the curve of the loss at the origin; none: no curve.
        steps: points of the line on which the steps of rounding are shown; 0: none.
        patch: points per side of the patch on which they are; 0: none. Two evaluations of all samples each.
    """

    points: int = 25
    bits: tuple[int, ...] = ALL_BITS
    steps: int = 61
    patch: int = 0


@dataclass(frozen=True)
class AtBits:
    """The loss at the origin with so many bits, and how far it is from that of the network before it is rounded."""

    bits: int
    values: Mapping[str, float]  # observables
    difference: float
    stderr: float


@dataclass(frozen=True)
class QuantisedComparison:
    """What was found; arrays over the grid, NaN where not known.

    Attributes:
        stderr: the paired error of the difference at each point.
        stored: whether that comes from stored losses, at every point.
        origin: at the origin, both evaluated.
        evaluations: of all samples, which it took.
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
        """How many times smaller the paired error is than the unpaired one: the median where both are known."""
        known = np.isfinite(self.stderr) & (self.stderr > 0) & np.isfinite(self.unpaired)
        return float(np.median(self.unpaired[known] / self.stderr[known])) if known.any() else math.nan


def compare_landscapes(
    first: Side,
    second: Side,
    asked: Compare | None = None,
    *,
    problem: Callback | None = None,
    folder: Path | None = None,
    executor: Executors = HERE,
    tell: Callable[[str], None] = lambda line: None,
) -> QuantisedComparison:
    """Compare two landscapes of one plane and the same samples; reads both runs, and writes nothing.

    Args:
        problem: the callback; default: the one that the first landscape was computed with, by its name.
        folder: where the callback is looked up first; default: where it was then.
        tell: gets a line on what a patch costs before it is begun, and one on how long it still takes.

    Raises:
        JobError: they have other planes or samples, with a list of what differs; or nothing that is asked for.
    """
    asked = asked or Compare()
    refuse_apart(first, second)
    prepared = [_prepared(side, problem, folder) for side in (first, second)]
    landscapes = [job.landscapes[0] for job in prepared]
    quantise = landscapes[1].plan.quantise or landscapes[0].plan.quantise
    stored = None not in (first.surface.loss_samples, second.surface.loss_samples)
    spots = np.empty((0, len(first.store.shape)), np.int64) if stored else _spots(first, second, asked.points)
    lines = asked.steps if quantise is not None and quantise.weights else 0
    widths = asked.bits if quantise is not None else ()
    if asked.patch:
        _refuse_patch(quantise, len(first.store.shape))
    # Of each the origin too, for the rise; of a patch once for all of its points.
    cost = 4 * len(spots) + 4 + 2 * len(widths) + 4 * lines + 2 + 2 * asked.patch**2
    names = [axis.name for axis in first.surface.axes]
    with executor(prepared[0], landscapes[0], cost) as answers:
        extra = _Evaluations(prepared[0], answers, [setting_of(landscape) for landscape in landscapes], tell)
        stderr = _stored_errors(first.surface, second.surface) if stored else extra.errors_at(first.surface, spots)
        origin = extra.pairs(np.zeros((1, len(names))))
        plain, curve = extra.curve(quantise, widths, len(names)) if quantise and widths else ({}, ())
        steps = extra.steps(quantise, lines, names[0]) if quantise and lines else None
        patch = extra.patch(quantise, asked.patch, names) if quantise and asked.patch else None
    losses = [np.asarray(side.surface.loss, np.float64) for side in (first, second)]
    errors = [np.asarray(side.surface.observables["loss_stderr"], np.float64) for side in (first, second)]
    return QuantisedComparison(
        first, second, losses[1] - losses[0], stderr, np.hypot(*errors), stored, origin, plain, curve, quantise, steps,
        patch, extra.count,
    )  # fmt: skip


def _stored_errors(one: Surface, two: Surface) -> Floats:
    """The paired error at every point that both have."""
    assert one.loss_samples is not None
    assert two.loss_samples is not None
    stderr = stored_stderr(one.loss_samples, two.loss_samples)
    stderr[(one.status == NOT_COMPUTED) | (two.status == NOT_COMPUTED)] = np.nan
    return stderr


def _refuse_patch(quantise: Quantisation | None, axes: int) -> None:
    if quantise is None or not quantise.weights:
        raise JobError("patch: must be of landscapes one of which has its weights rounded; leave patch out")
    if axes < 2:
        raise JobError("patch: must lie in a plane, and these landscapes have one axis; leave patch out")


def _prepared(side: Side, problem: Callback | None, folder: Path | None) -> PreparedJob:
    return prepare(recorded_job(side.path, side.store, problem, folder), reading=True)


def _spots(first: Side, second: Side, most: int) -> NDArray[np.int64]:
    """Places at which both landscapes have values: at most so many, evenly spaced with both ends, or the middle."""
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
    """What is evaluated of both landscapes beside their values, and how many evaluations of all samples that takes."""

    prepared: PreparedJob
    executor: Executor
    settings: Sequence[EvaluationSetting]
    tell: Callable[[str], None]
    count: int = 0

    def errors_at(self, surface: Surface, spots: NDArray[np.int64]) -> Floats:
        """The paired error over the grid: NaN but at these places."""
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
    """That of the network before it is rounded, and after."""
    return replace(rounded, plan=rounded.plan.rounding(None)), rounded


def asked_bits(text: str) -> tuple[int, ...]:
    """The widths that a text names, such as `1-16`, `2,4,8`; `none` for none.

    Raises:
        JobError: it is no such list, or a width is not from 1 to 16.

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
