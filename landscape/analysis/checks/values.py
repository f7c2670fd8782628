"""Checks 5, 12, 13 and 15: what the values of the grid say by themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from landscape.analysis.checks.check import CheckContext, features_beyond_half, refuse_few_points, refuse_no_values
from landscape.analysis.checks.curvature import along_axes, hessian_of_axes
from landscape.analysis.checks.evidence import Judgement, NotJudged, number, percent, shown_features
from landscape.analysis.checks.paths import renewed_corners, uses_centres_statistics
from landscape.core.errors import JobError
from landscape.core.grid import Index
from landscape.core.plan import RECALIBRATE
from landscape.model.history import LossStretch
from landscape.model.layer_rules import inspect_command
from landscape.surface.record_entries import CheckState
from landscape.surface.surface import NOT_FINITE

SURE = 20.0  # relief in standard errors: the band of ± one error is then a tenth of the relief, a contour interval
# A standard error from n samples is itself known to 1/√(2(n − 1)) of its value, 13 % for 30. Losses have long tails:
# fewer samples often contain none of the few hard ones that make most of the loss.
FEW = 30
VISIBLE = 5.0  # relief in standard errors: the band of ± two errors is then 80 % of the relief
LINES = 2 * math.sqrt(2)  # standard errors: the difference of two values has an error of √2, and twice that is noise
MOSTLY_RENEWED = 0.5  # share of the cells that are evaluated again
DEAD = 0.8  # share of the cells: the others are a spot in the middle of the picture
CLEARLY = 3.0  # standard errors
CHANGE = 0.02  # relative: a log rounds to two digits
STRAIGHT = 1e-3  # share of the fall: the sign of a smaller quadratic term may come from rounding
WORSE = 2.0  # times the loss of guessing, which a network with a constant output has about
NO_NOISE = "the standard error of the rise is not known"
WHOLE, MOSTLY = 0.01, 0.1  # shares of the cells that are holes: with more than a tenth the relief is that of the rest


MeanLoss = tuple[float, float]  # a mean of losses and its standard error


# -- 5: sampling ---------------------------------------------------------------------------------------------


def check_sampling(context: CheckContext) -> Judgement:
    """Compare the relief of the grid with the noise of sampling."""
    evidence = context.evidence
    command = inspect_command(evidence.run, evidence.surface.name, len(evidence.surface.axes))
    command = "" if evidence.record.is_imported else command
    refuse_few_points(context)
    most = None if context.extra is None else context.extra.samples_of_problem
    return judge_sampling(evidence.relief, evidence.noise, evidence.record.num_samples or 0, command, most)


def judge_sampling(relief: float, noise: float, samples: int, inspect: str = "", most: int | None = None) -> Judgement:
    """5: S = relief / SE; at least 20 holds, below 5 fails; fewer than 30 samples are a reservation.

    Args:
        noise: SE, the median standard error of the rise.
        samples: how many samples every value is the mean of.
        inspect: the command that inspects the layers at the origin.
        most: how many samples the problem has; None if unknown.

    Raises:
        NotJudged: the standard error is unknown.
    """
    if relief == 0:
        text, remedy = "the relief is 0: nothing that the axes move changes the loss", "does observe use its model?"
        remedy += f" is a layer dead? {inspect}" if inspect else ""
        return Judgement("fails", text, remedy, 0.0)
    if not math.isfinite(noise):
        raise NotJudged(NO_NOISE)
    if noise == 0:
        return Judgement("holds", "sampling makes no noise: all samples rise alike", value=math.inf)
    ratio = relief / noise
    numbers = {"relief": relief, "noise": noise, "lines": LINES * noise}
    text = (
        f"noise of sampling ± {number(2 * noise)} (two standard errors) in a relief of {number(relief)}; "
        f"contour lines nearer than {number(LINES * noise)} would mean nothing"
    )
    if ratio >= SURE and 0 < samples < FEW:
        text = f"{text}, as far as {samples} samples tell: the noise of so few is not known"
        return Judgement("reservation", text, "take hundreds of samples", ratio, numbers=numbers)
    if ratio >= SURE:
        return Judgement("holds", text, value=ratio, numbers=numbers)
    needed = max(FEW, math.ceil(samples * (SURE / ratio) ** 2))  # fewer are a reservation themselves
    remedy = "nothing rises: widen the range"
    if most is not None and needed > most:
        remedy = f"num_samples: {most}, all that the problem has, makes it smaller; so does a wider range"
        if samples >= most:
            remedy = f"the problem has no more than these {most} samples: take more data, or widen the range"
    elif needed < 1e9:
        remedy = f"num_samples: {needed} makes it small enough"
        remedy += ", if the data has so many" if most is None else ""
    return Judgement("reservation" if ratio >= VISIBLE else "fails", text, remedy, ratio, numbers=numbers)


# -- 12: the range -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """How much of the grid is no better than guessing.

    Attributes:
        relief: the relief of the landscape.
        noise: the median standard error of the rise; NaN if unknown.
        dead: the share of the finite cells whose loss is that of guessing or worse; None if unknown.
        chance: the loss of guessing.
        within: the distance from the origin, in units of the axes, within which most cells are better than guessing.
        why: why `dead` is unknown.
        shown: the features that a smaller range may cut off, such as 'the path'; '' for none.
        reach: the largest coordinate of these features, by absolute value.
        renewed: the share of some dead cells that are better than guessing with batch norm statistics taken anew; 0 if
            the landscape takes them anew, or if unknown.
        typical: the median loss of the cells; NaN if unknown.
    """

    relief: float
    noise: float
    dead: float | None
    chance: float
    within: float = 0.0
    why: str = "the loss of guessing, which a dead network has, is not known"
    shown: str = ""
    reach: float = 0.0
    renewed: float = 0.0
    typical: float = math.nan


def check_range(context: CheckContext) -> Judgement:
    """Judge how much of the grid is no better than guessing."""
    evidence, chance = context.evidence, context.chance
    refuse_no_values(context)
    refuse_few_points(context)
    finite = np.isfinite(evidence.values)
    reach = Range(evidence.relief, evidence.noise, None, math.nan)
    if chance is not None and not context.origin_loss < chance:
        reach = replace(reach, why="the centre itself loses as much as guessing")
    elif chance is not None:
        alive = finite & (evidence.values < chance)
        dead = 1 - float(alive.sum() / finite.sum())
        shown = shown_features(evidence.surface)
        reach = replace(
            reach, dead=dead, chance=chance, within=_alive_within(context, alive, finite), shown=shown.name,
            reach=shown.reach, renewed=_renewed_spots(context, chance) if dead > DEAD else 0.0,
            typical=float(np.median(evidence.values[finite])),
        )  # fmt: skip
    return judge_range(reach)


def _renewed_spots(context: CheckContext, chance: float) -> float:
    """The share of the dead corners and some other dead cells that are better than guessing with renewed statistics.

    The corners alone do not suffice: furthest from the origin, they may be dead with any statistics.
    """
    if not uses_centres_statistics(context):
        return 0.0
    dead = [index for index in context.spots if context.evidence.values[index] >= chance]
    others = [context.evidence.point(index) for index in dead if index not in set(context.corners)]
    try:
        of_corners = dict(zip(context.corners, renewed_corners(context), strict=True))
        losses = [of_corners[index] for index in dead if index in of_corners]
        if others:
            losses += context.evaluations.losses(context.evaluations.other_statistics, others).tolist()
        return float((np.array(losses) < chance).mean()) if losses else 0.0
    except JobError:  # check 10 says why
        return 0.0


def _alive_within(context: CheckContext, alive: np.ndarray, finite: np.ndarray) -> float:
    """The largest distance, in the maximum norm, within which most cells are better than guessing."""
    grids = np.meshgrid(*(np.abs(axis.coordinates) for axis in reversed(context.evidence.surface.axes)), indexing="ij")
    distance = np.max(grids, axis=0)
    radii = [radius for radius in np.unique(distance[finite]) if alive[(distance <= radius) & finite].mean() > 0.5]
    return float(max(radii, default=0.0))


def judge_range(reach: Range) -> Judgement:
    """12: at most 80 % of the cells have the loss of guessing or more, and the relief is at least 5 standard errors.

    Raises:
        NotJudged: there is no relief, or neither the noise nor the loss of guessing is known.
    """
    numbers = {"dead": math.nan if reach.dead is None else reach.dead, "within": reach.within}
    if reach.relief == 0:
        raise NotJudged("the relief is 0: the check of sampling says what to do")
    if reach.noise > 0 and reach.relief < VISIBLE * reach.noise:
        text = f"the relief, {number(reach.relief)}, is {number(reach.relief / reach.noise, 2)} standard errors high"
        return Judgement("reservation", text, "zoom out: widen the range", numbers=numbers)
    if reach.dead is None:
        if not math.isfinite(reach.noise):
            raise NotJudged(f"{NO_NOISE}, and {reach.why}")
        text = f"the range shows more than noise; {reach.why}"
        return Judgement("holds", text, numbers=numbers)
    text = f"{percent(reach.dead)} of the cells lose as much as guessing ({number(reach.chance)}) or more"
    if reach.dead <= DEAD:
        return Judgement("holds", text, value=reach.dead, numbers=numbers)
    return Judgement("reservation", text, _range_remedy(reach), reach.dead, numbers=numbers)


def _range_remedy(reach: Range) -> str:
    """The remedy for a picture of mostly dead cells; never a range that cuts off what the picture shows."""
    cuts = bool(reach.shown) and reach.within < reach.reach
    cut = f"a smaller range would cut {reach.shown} off"
    if reach.renewed > MOSTLY_RENEWED:
        return f"stale statistics make most of them so: {RECALIBRATE}{f'; {cut}' if cuts else ''}"
    most = "mostly far worse than guessing" if reach.typical > WORSE * reach.chance else "mostly a dead network"
    if cuts:
        return f"{most}, and {cut}: a logarithmic scale (--log) shows what is low, too"
    if reach.within > 0:
        return f"{most}: take range: [-{number(reach.within, 2)}, {number(reach.within, 2)}]"
    return f"{most}: take a smaller range"


# -- 13: the lowest cell -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lowest:
    """The cell of the lowest loss.

    Attributes:
        fall: L₀ less the loss of the cell.
        noise: the standard error of the cell's rise; NaN if unknown.
        place: the cell's coordinates x, in words.
        loss, stderr: L₀ and its standard error.
        log: the name of the training log, as the subject of a sentence.
        ended: the mean of the log's last losses up to the origin, and its standard error; None if there is no log.
        slope: −g·x, g the gradient at the centre, to compare with the fall; NaN if unknown.
        curvature: xᵀHx, H the Hessian at the centre; NaN if unknown.
        rounding: how weights and activations are rounded, in words; '' if they are not.
        ended_in_words: the words before the number in `ended`: `your training log ended at`.
        stretches: the log's last stretches up to the origin, such as epochs, the oldest first.
        where: where the last stretch lies: `at its end`, or `at epoch 10` if the log goes on.
        renewed: L₀ and the loss of the cell with batch norm statistics taken anew; None if these say nothing.
    """

    fall: float
    noise: float
    place: str
    loss: float = math.nan
    stderr: float = math.nan
    log: str = ""
    ended: MeanLoss | None = None
    slope: float = math.nan
    curvature: float = math.nan
    rounding: str = ""
    ended_in_words: str = ""
    stretches: tuple[LossStretch, ...] = ()
    where: str = "at its end"
    renewed: tuple[float, float] | None = None


def check_lowest(context: CheckContext) -> Judgement:
    """Find the lowest cell, and the likely reason if it is clearly lower than the centre."""
    evidence = context.evidence
    refuse_no_values(context)
    index = tuple(map(int, np.unravel_index(np.nanargmin(evidence.values), evidence.values.shape)))
    noise = math.nan if evidence.rise_errors is None else float(evidence.rise_errors[index])
    fall = context.origin_loss - float(evidence.values[index])
    cell = Lowest(fall, noise, evidence.place(index), context.origin_loss, evidence.origin_stderr)
    if noise > 0 and fall > CLEARLY * noise:
        logged, stretches = evidence.logged, evidence.last_stretches
        slope, curvature = math.nan, math.nan
        if logged is None:
            slope, curvature = _slope_and_curvature(context, evidence.point(index))
        cell = replace(
            cell, log=evidence.log_in_words, stretches=tuple(stretches), slope=slope, curvature=curvature
        )  # fmt: skip
        if logged is not None:
            unit, number = evidence.until
            where = f"at {unit} {number}" if evidence.origin_went_on_to else "at its end"
            cell = replace(cell, ended=(logged.loss, logged.stderr), ended_in_words=logged.words, where=where)
        cell = replace(cell, rounding=evidence.record.rounding_in_words, renewed=_renewed_lowest(context, index))
    return judge_lowest(cell)


def _renewed_lowest(context: CheckContext, index: Index) -> tuple[float, float] | None:
    """The losses at the centre and at a cell with batch norm statistics taken anew.

    None if the landscape takes them anew, or if the cell evaluated again is not lower than the centre: then it is the
    value on disk that needs a reason.
    """
    try:
        if not uses_centres_statistics(context):
            return None
        zero = [0.0] * len(context.evidence.surface.axes)
        pairs = context.evaluations.losses_by_statistics([zero, list(context.evidence.point(index))])
    except (NotJudged, JobError):  # check 10 says why
        return None
    return (float(pairs.second[0]), float(pairs.second[1])) if pairs.first[1] < pairs.first[0] else None


def _slope_and_curvature(context: CheckContext, point: Sequence[float]) -> tuple[float, float]:
    """−g·x at a point x over the first few samples, and xᵀHx over all samples; NaN if there are no derivatives."""
    try:
        along, _ = along_axes(context)
        curvature = float(np.array(point) @ hessian_of_axes(context) @ np.array(point))
    except (NotJudged, JobError):
        return math.nan, math.nan
    return -sum(axis.slope * coordinate for axis, coordinate in zip(along, point, strict=True)), curvature


def judge_lowest(cell: Lowest) -> Judgement:
    """13: information: the lowest cell is lower than the centre if z = (L₀ − L) / SE > 3.

    Raises:
        NotJudged: L₀ or SE is unknown.
    """
    if math.isnan(cell.fall):
        raise NotJudged("the loss at the centre is not known, or not finite")
    if not cell.noise > 0 and cell.fall > 0:
        raise NotJudged(NO_NOISE)
    z = cell.fall / cell.noise if cell.fall > 0 else 0.0
    if z <= CLEARLY:
        return Judgement("information", "no cell is clearly lower than the centre", value=z)
    lower = (
        f"the centre is not the lowest point of this plane: {cell.place} is lower by {number(cell.fall)} "
        f"({number(z, 2)} standard errors)"
    )
    if cell.rounding:
        text = (
            f"{lower}; rounding moves the network by steps, and some near the centre are better by chance: check a "
            "landscape of the network before rounding"
        )
        return Judgement("information", text, value=z, numbers={"fall": cell.fall})
    if cell.renewed is not None and cell.renewed[0] - cell.renewed[1] <= CLEARLY * cell.noise:
        centre, there = (number(loss) for loss in cell.renewed)
        text = f"{lower} by batch norm's statistics alone: taken anew it has {there}, and the centre {centre}"
        return Judgement("information", text, RECALIBRATE, value=z, numbers={"fall": cell.fall})
    text = (
        f"{lower}, as when the samples are others than those of training, or the network is "
        f"not trained to a minimum{_likelier_cause(cell)}"
    )
    return Judgement(
        "information",
        text,
        value=z,
        numbers={"fall": cell.fall, "slope": cell.slope, "curvature": cell.curvature},
    )


def _likelier_cause(cell: Lowest) -> str:
    """The likelier one of both causes by the training log, else by the gradient at the centre; '' if neither tells.

    −g·x is twice the fall of a parabola with its lowest point at the cell; at a minimum it is zero.
    """
    if cell.ended is not None:
        ended, error = cell.ended
        noise = math.hypot(*(stderr for stderr in (error, cell.stderr) if math.isfinite(stderr)))
        if cell.loss - ended > max(CLEARLY * noise, CHANGE * abs(ended)):
            words = f"{cell.ended_in_words} {number(ended)}, the centre has {number(cell.loss)}"
            return f"; rather the former: {words}"
    if len(cell.stretches) > 1:
        before, last = (number(stretch.mean) for stretch in cell.stretches[-2:])
        match still_fell(cell.stretches):
            case True:
                return f"; rather the latter: {cell.log} still fell {cell.where}, from {before} to {last}"
            case False:
                return f"; rather the former: {cell.log} no longer fell {cell.where} ({before}, then {last})"
        return f"; whether {cell.log} still fell {cell.where}, its noise does not tell ({before}, then {last})"
    if cell.slope > cell.fall / 2:
        return (
            "; the gradient at the centre is not zero: rather the latter, where the samples are those of training "
            f"(the slope alone makes {number(cell.slope)})"
        )
    if abs(cell.slope) < cell.fall / 10:
        flat, parabola = "; the gradient at the centre is nearly zero along the way", cell.curvature / 2
        if parabola < -STRAIGHT * cell.fall:
            return f"{flat}, and the loss curves downwards there: the centre is no minimum"
        if parabola > STRAIGHT * cell.fall:
            return f"{flat}, and the loss curves upwards there: a minimum, with a lower one beside it"
        return flat
    return ""


def still_fell(stretches: Sequence[LossStretch]) -> bool | None:
    """Whether a loss still fell in the last of at least two stretches of its log; None if they do not tell.

    A fall of more than 2 % counts. Whole epochs have no noise of sampling, and the loss must fall through all of them;
    between other stretches it must fall by more than two standard errors.
    """
    before, last = stretches[-2:]
    fall = before.mean - last.mean
    if fall <= CHANGE * abs(before.mean):
        return False
    if last.whole:
        goes_on = all(earlier.mean > later.mean for earlier, later in pairwise(stretches))
    else:
        goes_on = fall > 2 * math.hypot(before.stderr, last.stderr)
    return True if goes_on else None


# -- 15: holes -----------------------------------------------------------------------------------------------


def check_holes(context: CheckContext) -> Judgement:
    """Count the cells without a finite loss, by the reason."""
    evidence = context.evidence
    return judge_holes(
        evidence.values.size,
        evidence.missing,
        features_beyond_half(context),
        _renewed_hole(context),
        refused=context.extra is None and not evidence.record.is_imported,
    )


def _renewed_hole(context: CheckContext) -> str:
    """A hole that is finite with batch norm statistics taken anew, by its coordinates in words; '' if there is none.

    Running variances that move along a line between networks may be negative beyond its ends.
    """
    holes = np.argwhere(context.evidence.surface.status == NOT_FINITE)
    if context.extra is None or not len(holes) or not uses_centres_statistics(context):
        return ""
    hole = tuple(map(int, holes[0]))
    try:
        loss = float(
            context.evaluations.losses(context.evaluations.other_statistics, [context.evidence.point(hole)])[0]
        )
    except JobError:  # check 10 says why
        return ""
    return context.evidence.place(hole) if math.isfinite(loss) else ""


def judge_holes(
    cells: int, missing: Mapping[str, int], shown: str = "", renewed: str = "", *, refused: bool = False
) -> Judgement:
    """15: at most 1 % of the cells without a finite loss holds, more than 10 % fails.

    Args:
        cells: how many cells the grid has.
        missing: how many cells have no finite loss, by the reason.
        shown: the features that a smaller range would cut off; '' for none.
        renewed: a hole that is finite with batch norm statistics taken anew, by its coordinates in words; else ''.
        refused: whether the job cannot be prepared again, so that no run can continue it.
    """
    holes = {reason: count for reason, count in missing.items() if count}
    share = sum(holes.values()) / cells
    if not holes:
        return Judgement("holds", f"all {cells:,} cells have a finite loss", value=0.0)
    parts = ", ".join(f"{count:,} {reason}" for reason, count in holes.items())
    text = f"{percent(share)} of the cells have no finite loss: {parts}"
    remedy = "run the job again: it goes on with what is missing"
    if refused:
        remedy = "the job cannot go on as it is: first do what the checks that could not evaluate the network say"
    if set(holes) == {"not finite"}:
        remedy = "take a smaller range"
        if renewed:
            remedy = f"{renewed} is finite with the statistics of its own weights: {RECALIBRATE}"
        elif shown:
            remedy = f"clamp what the loss takes a logarithm or exponential of; a smaller range would cut {shown} off"
    state: CheckState = "holds" if share <= WHOLE else "reservation" if share <= MOSTLY else "fails"
    return Judgement(state, text, "" if state == "holds" else remedy, share, holes)
