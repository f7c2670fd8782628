"""Checks 5, 12, 13 and 15: what the values of the grid say by themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from landscape.analysis.checks.check import CheckContext, cut_off, refuse_few_points, refuse_no_values
from landscape.analysis.checks.curvature import along_axes, hessian_of_axes
from landscape.analysis.checks.evidence import Judgement, NotJudged, held_by, number, percent
from landscape.analysis.checks.paths import renewed_corners, uses_centres_statistics
from landscape.core.errors import JobError
from landscape.core.grid import Index
from landscape.core.plan import RECALIBRATE
from landscape.model.history import LossStretch
from landscape.model.layer_rules import inspect_command
from landscape.surface.record_entries import CheckState
from landscape.surface.surface import NOT_FINITE

SURE = 20.0  # relief in standard errors: the band of ± one error is then a tenth of the relief, a contour line's worth
# Samples: a standard error that n of them give is itself known to 1/√(2(n − 1)), 13 % of 30. Losses have long tails:
# the few samples that are hard, and make most of a loss, are often in none of so few.
FEW = 30
VISIBLE = 5.0  # below it a band of ± two errors is 80 % of the relief
LINES = 2 * math.sqrt(2)  # in standard errors: the difference of two values has √2 of them, and two of these are noise
MOSTLY_RENEWED = 0.5  # of the cells that are looked at
DEAD = 0.8  # of the cells: what is left is a spot in the middle of the picture
CLEARLY = 3.0  # standard errors
CHANGE = 0.02  # relative: a log rounds to two digits
STRAIGHT = 1e-3  # of the fall: below it the sign of what a parabola makes may be that of rounding
WORSE = 2.0  # times the loss of guessing: a network that answers nothing loses about as much as guessing
NO_NOISE = "the standard error of the rise is not known"
WHOLE, MOSTLY = 0.01, 0.1  # of the cells may be holes: beyond a tenth the relief is that of the cells which are left


Logged = tuple[float, float]  # a mean of losses and its standard error


# -- 5: sampling ---------------------------------------------------------------------------------------------


def check_sampling(context: CheckContext) -> Judgement:
    """The relief of the grid beside the noise of sampling."""
    evidence = context.evidence
    command = inspect_command(evidence.run, evidence.surface.name, len(evidence.surface.axes))
    command = "" if evidence.record.is_imported else command
    refuse_few_points(context)
    most = None if context.extra is None else context.extra.samples_of_problem
    return judge_sampling(evidence.relief, evidence.noise, evidence.record.num_samples or 0, command, most)


def judge_sampling(relief: float, noise: float, samples: int, inspect: str = "", most: int | None = None) -> Judgement:
    """5: S = relief / SE; at least 20 holds, below 5 nothing is seen; fewer than 30 samples do not tell their noise.

    Args:
        noise: the median standard error of the rise over the origin.
        inspect: the command that goes through the network at the origin.
        most: how many samples the problem has; None where that is not known.
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
    known = {"relief": relief, "noise": noise, "lines": LINES * noise}
    text = (
        f"noise of sampling ± {number(2 * noise)} (two standard errors) in a relief of {number(relief)}; "
        f"contour lines nearer than {number(LINES * noise)} would mean nothing"
    )
    if ratio >= SURE and 0 < samples < FEW:
        text = f"{text}, as far as {samples} samples tell: the noise of so few is not known"
        return Judgement("reservation", text, "take hundreds of samples", ratio, numbers=known)
    if ratio >= SURE:
        return Judgement("holds", text, value=ratio, numbers=known)
    wanted = math.ceil(samples * (SURE / ratio) ** 2)
    remedy = "nothing rises: widen the range"
    if most is not None and wanted > most:
        remedy = f"num_samples: {most}, all that the problem has, makes it smaller; so does a wider range"
        if samples >= most:
            remedy = f"the problem has no more than these {most} samples: take more data, or widen the range"
    elif wanted < 1e9:
        remedy = f"num_samples: {wanted} makes it small enough"
        remedy += ", if the data has so many" if most is None else ""
    return Judgement("reservation" if ratio >= VISIBLE else "fails", text, remedy, ratio, numbers=known)


# -- 12: the range -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """How far the grid reaches.

    Attributes:
        dead: the share of the finite cells whose loss is that of guessing or worse; None where that says nothing.
        chance: the loss of guessing.
        within: the distance from the origin, in units of the axes, within which most cells are better than guessing.
        noise: the median standard error of the rise; NaN where it is not known.
        why: `dead` says nothing.
        held: what the picture is to hold and a smaller range may cut off, such as 'the path'; '' where there is none.
        reach: how far that lies from the origin, along an axis.
        renewed: of some cells at the loss of guessing the share that is better with batch norm's statistics taken
            anew; 0 where they are taken anew already, or it is not known.
        typical: the median loss of the cells; NaN where it is not known.
    """

    relief: float
    noise: float
    dead: float | None
    chance: float
    within: float = 0.0
    why: str = "the loss of guessing, which a dead network has, is not known"
    held: str = ""
    reach: float = 0.0
    renewed: float = 0.0
    typical: float = math.nan


def check_range(context: CheckContext) -> Judgement:
    """How much of the grid loses as much as guessing, and how far from the origin it does not."""
    evidence, chance = context.evidence, context.chance
    refuse_no_values(context)
    refuse_few_points(context)
    finite = np.isfinite(evidence.values)
    found = Range(evidence.relief, evidence.noise, None, math.nan)
    if chance is not None and not context.origin_loss < chance:
        found = replace(found, why="the centre itself loses as much as guessing")
    elif chance is not None:
        alive = finite & (evidence.values < chance)
        dead = 1 - float(alive.sum() / finite.sum())
        held = held_by(evidence.surface)
        found = replace(
            found, dead=dead, chance=chance, within=_alive_within(context, alive, finite), held=held.name,
            reach=held.reach, renewed=_renewed_spots(context, chance) if dead > DEAD else 0.0,
            typical=float(np.median(evidence.values[finite])),
        )  # fmt: skip
    return judge_range(found)


def _renewed_spots(context: CheckContext, chance: float) -> float:
    """Of the corners and some cells that lose as much as guessing the share that does not with statistics taken anew.

    The corners alone would not do: furthest from the origin, they may lose so much with any statistics.
    """
    if not uses_centres_statistics(context):
        return 0.0
    dead = [each for each in context.spots if context.evidence.values[each] >= chance]
    others = [context.evidence.point(each) for each in dead if each not in set(context.corners)]
    try:
        anew = dict(zip(context.corners, renewed_corners(context), strict=True))
        known = [anew[each] for each in dead if each in anew]
        if others:
            known += context.evaluations.losses(context.evaluations.other_statistics, others).tolist()
        return float((np.array(known) < chance).mean()) if known else 0.0
    except JobError:  # check 10 says why
        return 0.0


def _alive_within(context: CheckContext, alive: np.ndarray, finite: np.ndarray) -> float:
    """The largest distance, along an axis, within which most cells lose less than guessing."""
    grids = np.meshgrid(*(np.abs(axis.coordinates) for axis in reversed(context.evidence.surface.axes)), indexing="ij")
    distance = np.max(grids, axis=0)
    radii = [radius for radius in np.unique(distance[finite]) if alive[(distance <= radius) & finite].mean() > 0.5]
    return float(max(radii, default=0.0))


def judge_range(reach: Range) -> Judgement:
    """12: not mostly a dead network (80 % of the cells at chance), and a relief of at least 5 standard errors."""
    known = {"dead": math.nan if reach.dead is None else reach.dead, "within": reach.within}
    if reach.relief == 0:
        raise NotJudged("the relief is 0: the check of sampling says what to do")
    if reach.noise > 0 and reach.relief < VISIBLE * reach.noise:
        text = f"the relief, {number(reach.relief)}, is {number(reach.relief / reach.noise, 2)} standard errors high"
        return Judgement("reservation", text, "zoom out: widen the range", numbers=known)
    if reach.dead is None:
        if not math.isfinite(reach.noise):
            raise NotJudged(f"{NO_NOISE}, and {reach.why}")
        text = f"the range shows more than noise; {reach.why}"
        return Judgement("holds", text, numbers=known)
    text = f"{percent(reach.dead)} of the cells lose as much as guessing ({number(reach.chance)}) or more"
    if reach.dead <= DEAD:
        return Judgement("holds", text, value=reach.dead, numbers=known)
    return Judgement("reservation", text, _remedy(reach), reach.dead, numbers=known)


def _remedy(reach: Range) -> str:
    """What to do about a picture that is mostly a dead network; a range that cuts off what it shows is no remedy."""
    cuts = bool(reach.held) and reach.within < reach.reach
    cut = f"a smaller range would cut {reach.held} off"
    if reach.renewed > MOSTLY_RENEWED:
        return f"stale statistics make most of them so: {RECALIBRATE}{f'; {cut}' if cuts else ''}"
    what = "mostly far worse than guessing" if reach.typical > WORSE * reach.chance else "mostly a dead network"
    if cuts:
        return f"{what}, and {cut}: a logarithmic scale (--log) shows what is low, too"
    if reach.within > 0:
        return f"{what}: take range: [-{number(reach.within, 2)}, {number(reach.within, 2)}]"
    return f"{what}: take a smaller range"


# -- 13: the lowest cell -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lowest:
    """The cell of the lowest loss.

    Attributes:
        fall: L₀ less its loss.
        noise: the standard error of its rise; NaN where it is not known.
        place: its coordinates in words.
        loss, stderr: L₀ and its standard error.
        log: whose training log the next ones are of, as a subject of sentences.
        ended: the mean of the losses that it had last by then, and its standard error; None where there is no log.
        ended_in_words: what stands before that number: `your training log ended at`.
        stretches: the log's last ones by then, such as epochs, the oldest first.
        where: they lie: `at its end`, or `at epoch 10` where the log goes on.
        slope: −g·x, x the coordinates of the cell, to compare with the fall; NaN where it is not known.
        rounding: how weights and activations are rounded, in words; '' where they are not.
        curvature: xᵀHx, H the Hessian at the centre; NaN where it is not known.
        renewed: L₀ and the loss of the cell with batch norm's statistics taken anew; None where that says nothing.
    """

    fall: float
    noise: float
    place: str
    loss: float = math.nan
    stderr: float = math.nan
    log: str = ""
    ended: Logged | None = None
    slope: float = math.nan
    curvature: float = math.nan
    rounding: str = ""
    ended_in_words: str = ""
    stretches: tuple[LossStretch, ...] = ()
    where: str = "at its end"
    renewed: tuple[float, float] | None = None


def check_lowest(context: CheckContext) -> Judgement:
    """The lowest cell, and, where it is clearly lower than the centre, what may be the reason."""
    evidence = context.evidence
    refuse_no_values(context)
    index = tuple(map(int, np.unravel_index(np.nanargmin(evidence.values), evidence.values.shape)))
    noise = math.nan if evidence.rise_errors is None else float(evidence.rise_errors[index])
    fall = context.origin_loss - float(evidence.values[index])
    found = Lowest(fall, noise, evidence.place(index), context.origin_loss, evidence.origin_stderr)
    if noise > 0 and fall > CLEARLY * noise:
        logged, stretches = evidence.logged, evidence.last_stretches
        slope, curvature = (math.nan, math.nan) if logged is not None else _towards(context, evidence.point(index))
        found = replace(
            found, log=evidence.log_in_words, stretches=tuple(stretches), slope=slope, curvature=curvature
        )  # fmt: skip
        if logged is not None:
            unit, number = evidence.until
            where = f"at {unit} {number}" if evidence.origin_went_on_to else "at its end"
            found = replace(found, ended=(logged.loss, logged.stderr), ended_in_words=logged.words, where=where)
        found = replace(found, rounding=evidence.record.rounding_in_words, renewed=_renewed_lowest(context, index))
    return judge_lowest(found)


def _renewed_lowest(context: CheckContext, index: Index) -> tuple[float, float] | None:
    """The losses at the centre and at a cell with batch norm's statistics taken anew; None where they are already.

    None, too, where the cell is not lower as evaluated now: the value on disk is then what needs a reason.
    """
    try:
        if not uses_centres_statistics(context):
            return None
        zero = [0.0] * len(context.evidence.surface.axes)
        pairs = context.evaluations.by_statistics([zero, list(context.evidence.point(index))])
    except (NotJudged, JobError):  # check 10 says why
        return None
    return (float(pairs.second[0]), float(pairs.second[1])) if pairs.first[1] < pairs.first[0] else None


def _towards(context: CheckContext, point: Sequence[float]) -> tuple[float, float]:
    """−g·x of a point x by the derivatives of the first few samples, and xᵀHx of all; NaN where there are none."""
    try:
        along, _ = along_axes(context)
        curvature = float(np.array(point) @ hessian_of_axes(context) @ np.array(point))
    except (NotJudged, JobError):
        return math.nan, math.nan
    return -sum(each.slope * coordinate for each, coordinate in zip(along, point, strict=True)), curvature


def judge_lowest(cell: Lowest) -> Judgement:
    """13: information: z = (L₀ − L) / SE of the lowest cell beyond 3."""
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
            f"{lower}; rounding moves the network by steps, and some near the centre are better by chance: whether "
            "it is so before rounding, the check of that landscape tells"
        )
        return Judgement("information", text, value=z, numbers={"fall": cell.fall})
    if cell.renewed is not None and cell.renewed[0] - cell.renewed[1] <= CLEARLY * cell.noise:
        centre, there = (number(loss) for loss in cell.renewed)
        text = f"{lower} by batch norm's statistics alone: taken anew it has {there}, and the centre {centre}"
        return Judgement("information", text, RECALIBRATE, value=z, numbers={"fall": cell.fall})
    text = (
        f"{lower}, as when the samples are others than those of training, or the network is "
        f"not trained to a minimum{_likelier(cell)}"
    )
    return Judgement(
        "information",
        text,
        value=z,
        numbers={"fall": cell.fall, "slope": cell.slope, "curvature": cell.curvature},
    )


def _likelier(cell: Lowest) -> str:
    """Which of both causes is the likelier one, as far as the training log or the gradient at the centre tells.

    Of a parabola with its lowest point at the cell, −g·x is twice the fall; at a minimum it is zero.
    """
    if cell.ended is not None:
        ended, error = cell.ended
        noise = math.hypot(*(each for each in (error, cell.stderr) if math.isfinite(each)))
        if cell.loss - ended > max(CLEARLY * noise, CHANGE * abs(ended)):
            words = f"{cell.ended_in_words} {number(ended)}, the centre has {number(cell.loss)}"
            return f"; rather the former: {words}"
    if len(cell.stretches) > 1:
        before, last = (number(each.mean) for each in cell.stretches[-2:])
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
    """Whether a loss still fell in the last of at least two stretches of its log; None where they do not tell.

    A fall of more than 2 % counts: of whole epochs, over whose samples there is no noise of sampling, where it goes on
    through all of them; of other stretches where it is beyond two standard errors.
    """
    before, last = stretches[-2:]
    fall = before.mean - last.mean
    if fall <= CHANGE * abs(before.mean):
        return False
    if last.whole:
        goes_on = all(one.mean > other.mean for one, other in pairwise(stretches))
    else:
        goes_on = fall > 2 * math.hypot(before.stderr, last.stderr)
    return True if goes_on else None


# -- 15: holes -----------------------------------------------------------------------------------------------


def check_holes(context: CheckContext) -> Judgement:
    """How many cells have no finite loss, and why."""
    evidence = context.evidence
    return judge_holes(
        evidence.values.size,
        evidence.missing,
        cut_off(context),
        _renewed_hole(context),
        refused=context.extra is None and not evidence.record.is_imported,
    )


def _renewed_hole(context: CheckContext) -> str:
    """A cell that is not finite but with batch norm's statistics taken anew; '' where there is none.

    Running variances that move along a line between networks are negative beyond its ends.
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
    cells: int, missing: Mapping[str, int], held: str = "", renewed: str = "", *, refused: bool = False
) -> Judgement:
    """15: at most 1 % of the cells without a finite value holds, beyond 10 % it does not.

    Args:
        missing: how many cells have no finite loss, by what is wrong with them.
        held: what a smaller range would cut off; '' for nothing.
        renewed: one of the cells that are not finite, which is finite with batch norm's statistics taken anew.
        refused: whether the job cannot be made anew, so that no run goes on with it as it is.
    """
    there = {what: count for what, count in missing.items() if count}
    share = sum(there.values()) / cells
    if not there:
        return Judgement("holds", f"all {cells:,} cells have a finite loss", value=0.0)
    parts = ", ".join(f"{count:,} {what}" for what, count in there.items())
    text = f"{percent(share)} of the cells have no finite loss: {parts}"
    infinite = set(there) == {"not finite"}
    remedy = "run the job again: it goes on with what is missing"
    if refused:
        remedy = "the job cannot go on as it is: do first what is said where the network could not be evaluated"
    if infinite:
        remedy = "take a smaller range"
        if renewed:
            remedy = f"{renewed} is finite with the statistics of its own weights: {RECALIBRATE}"
        elif held:
            remedy = f"clamp what the loss takes a logarithm or exponential of; a smaller range would cut {held} off"
    state: CheckState = "holds" if share <= WHOLE else "reservation" if share <= MOSTLY else "fails"
    return Judgement(state, text, "" if state == "holds" else remedy, share, there)
