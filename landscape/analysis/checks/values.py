"""Checks 5, 12, 13 and 15: what the values of the grid say by themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from landscape.analysis.checks.words import NotJudged, check, number, percent
from landscape.core.plan import RECALIBRATE
from landscape.model.history import Stretch
from landscape.surface.record_entries import Check, CheckState

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


@dataclass(frozen=True)
class Sampling:
    """The relief of the grid and the median standard error of its rise over the origin.

    Attributes:
        inspect: the command that goes through the network at the origin.
        most: how many samples the problem has; None where that is not known.
    """

    relief: float
    noise: float
    samples: int
    inspect: str = ""
    most: int | None = None


def sampling(found: Sampling) -> Check:
    """5: S = relief / SE; at least 20 holds, below 5 nothing is seen; fewer than 30 samples do not tell their noise."""
    if found.relief == 0:
        text, remedy = "the relief is 0: nothing that the axes move changes the loss", "does observe use its model?"
        remedy += f" is a layer dead? {found.inspect}" if found.inspect else ""
        return check("5", "sampling", "fails", text, remedy, 0.0)
    if not math.isfinite(found.noise):
        raise NotJudged(NO_NOISE)
    if found.noise == 0:
        return check("5", "sampling", "holds", "sampling makes no noise: all samples rise alike", value=math.inf)
    ratio = found.relief / found.noise
    known = {"relief": found.relief, "noise": found.noise, "lines": LINES * found.noise}
    text = (
        f"noise of sampling ± {number(2 * found.noise)} (two standard errors) in a relief of {number(found.relief)}; "
        f"contour lines nearer than {number(LINES * found.noise)} would mean nothing"
    )
    if ratio >= SURE and 0 < found.samples < FEW:
        text = f"{text}, as far as {found.samples} samples tell: the noise of so few is not known"
        return check("5", "sampling", "reservation", text, "take hundreds of samples", ratio, numbers=known)
    if ratio >= SURE:
        return check("5", "sampling", "holds", text, value=ratio, numbers=known)
    wanted = math.ceil(found.samples * (SURE / ratio) ** 2)
    remedy = "nothing rises: widen the range"
    if found.most is not None and wanted > found.most:
        remedy = f"num_samples: {found.most}, all that the problem has, makes it smaller; so does a wider range"
        if found.samples >= found.most:
            remedy = f"the problem has no more than these {found.most} samples: take more data, or widen the range"
    elif wanted < 1e9:
        remedy = f"num_samples: {wanted} makes it small enough"
        remedy += ", if the data has so many" if found.most is None else ""
    return check("5", "sampling", "reservation" if ratio >= VISIBLE else "fails", text, remedy, ratio, numbers=known)


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


def range_of_axes(found: Range) -> Check:
    """12: not mostly a dead network (80 % of the cells at chance), and a relief of at least 5 standard errors."""
    known = {"dead": math.nan if found.dead is None else found.dead, "within": found.within}
    if found.relief == 0:
        raise NotJudged("the relief is 0: the check of sampling says what to do")
    if found.noise > 0 and found.relief < VISIBLE * found.noise:
        text = f"the relief, {number(found.relief)}, is {number(found.relief / found.noise, 2)} standard errors high"
        return check("12", "range", "reservation", text, "zoom out: widen the range", numbers=known)
    if found.dead is None:
        if not math.isfinite(found.noise):
            raise NotJudged(f"{NO_NOISE}, and {found.why}")
        text = f"the range shows more than noise; {found.why}"
        return check("12", "range", "holds", text, numbers=known)
    text = f"{percent(found.dead)} of the cells lose as much as guessing ({number(found.chance)}) or more"
    if found.dead <= DEAD:
        return check("12", "range", "holds", text, value=found.dead, numbers=known)
    return check("12", "range", "reservation", text, _remedy(found), found.dead, numbers=known)


def _remedy(found: Range) -> str:
    """What to do about a picture that is mostly a dead network; a range that cuts off what it shows is no remedy."""
    cuts = bool(found.held) and found.within < found.reach
    cut = f"a smaller range would cut {found.held} off"
    if found.renewed > MOSTLY_RENEWED:
        return f"stale statistics make most of them so: {RECALIBRATE}{f'; {cut}' if cuts else ''}"
    what = "mostly far worse than guessing" if found.typical > WORSE * found.chance else "mostly a dead network"
    if cuts:
        return f"{what}, and {cut}: a logarithmic scale (--log) shows what is low, too"
    if found.within > 0:
        return f"{what}: take range: [-{number(found.within, 2)}, {number(found.within, 2)}]"
    return f"{what}: take a smaller range"


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
    stretches: tuple[Stretch, ...] = ()
    where: str = "at its end"
    renewed: tuple[float, float] | None = None


def lowest(found: Lowest) -> Check:
    """13: information: z = (L₀ − L) / SE of the lowest cell beyond 3."""
    if math.isnan(found.fall):
        raise NotJudged("the loss at the centre is not known, or not finite")
    if not found.noise > 0 and found.fall > 0:
        raise NotJudged(NO_NOISE)
    z = found.fall / found.noise if found.fall > 0 else 0.0
    if z <= CLEARLY:
        return check("13", "lowest", "information", "no cell is clearly lower than the centre", value=z)
    lower = (
        f"the centre is not the lowest point of this plane: {found.place} is lower by {number(found.fall)} "
        f"({number(z, 2)} standard errors)"
    )
    if found.rounding:
        text = (
            f"{lower}; rounding moves the network by steps, and some near the centre are better by chance: whether "
            "it is so before rounding, the check of that landscape tells"
        )
        return check("13", "lowest", "information", text, value=z, numbers={"fall": found.fall})
    if found.renewed is not None and found.renewed[0] - found.renewed[1] <= CLEARLY * found.noise:
        centre, there = (number(loss) for loss in found.renewed)
        text = f"{lower} by batch norm's statistics alone: taken anew it has {there}, and the centre {centre}"
        return check("13", "lowest", "information", text, RECALIBRATE, value=z, numbers={"fall": found.fall})
    text = (
        f"{lower}, as when the samples are others than those of training, or the network is "
        f"not trained to a minimum{_likelier(found)}"
    )
    return check("13", "lowest", "information", text, value=z, numbers=_known(found))


def _known(found: Lowest) -> dict[str, object]:
    return {"fall": found.fall, "slope": found.slope, "curvature": found.curvature}


def _likelier(found: Lowest) -> str:
    """Which of both causes is the likelier one, as far as the training log or the gradient at the centre tells.

    Of a parabola with its lowest point at the cell, −g·x is twice the fall; at a minimum it is zero.
    """
    if found.ended is not None:
        ended, error = found.ended
        noise = math.hypot(*(each for each in (error, found.stderr) if math.isfinite(each)))
        if found.loss - ended > max(CLEARLY * noise, CHANGE * abs(ended)):
            words = f"{found.ended_in_words} {number(ended)}, the centre has {number(found.loss)}"
            return f"; rather the former: {words}"
    if len(found.stretches) > 1:
        before, last = (number(each.mean) for each in found.stretches[-2:])
        match still_fell(found.stretches):
            case True:
                return f"; rather the latter: {found.log} still fell {found.where}, from {before} to {last}"
            case False:
                return f"; rather the former: {found.log} no longer fell {found.where} ({before}, then {last})"
        return f"; whether {found.log} still fell {found.where}, its noise does not tell ({before}, then {last})"
    if found.slope > found.fall / 2:
        return (
            "; the gradient at the centre is not zero: rather the latter, where the samples are those of training "
            f"(the slope alone makes {number(found.slope)})"
        )
    if abs(found.slope) < found.fall / 10:
        flat, parabola = "; the gradient at the centre is nearly zero along the way", found.curvature / 2
        if parabola < -STRAIGHT * found.fall:
            return f"{flat}, and the loss curves downwards there: the centre is no minimum"
        if parabola > STRAIGHT * found.fall:
            return f"{flat}, and the loss curves upwards there: a minimum, with a lower one beside it"
        return flat
    return ""


def still_fell(stretches: Sequence[Stretch]) -> bool | None:
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


@dataclass(frozen=True)
class Holes:
    """How many of the cells have no finite loss, by what is wrong with them.

    Attributes:
        held: what a smaller range would cut off; '' for nothing.
        renewed: one of the cells that are not finite, which is finite with batch norm's statistics taken anew.
        refused: whether the job cannot be made anew, so that no run goes on with it as it is.
    """

    cells: int
    missing: Mapping[str, int]
    held: str = ""
    renewed: str = ""
    refused: bool = False


def holes(found: Holes) -> Check:
    """15: at most 1 % of the cells without a finite value holds, beyond 10 % it does not."""
    there = {what: count for what, count in found.missing.items() if count}
    share = sum(there.values()) / found.cells
    if not there:
        return check("15", "holes", "holds", f"all {found.cells:,} cells have a finite loss", value=0.0)
    parts = ", ".join(f"{count:,} {what}" for what, count in there.items())
    text = f"{percent(share)} of the cells have no finite loss: {parts}"
    infinite = set(there) == {"not finite"}
    remedy = "run the job again: it goes on with what is missing"
    if found.refused:
        remedy = "the job cannot go on as it is: do first what is said where the network could not be evaluated"
    if infinite:
        remedy = "take a smaller range"
        if found.renewed:
            remedy = f"{found.renewed} is finite with the statistics of its own weights: {RECALIBRATE}"
        elif found.held:
            remedy = (
                f"clamp what the loss takes a logarithm or exponential of; a smaller range would cut {found.held} off"
            )
    state: CheckState = "holds" if share <= WHOLE else "reservation" if share <= MOSTLY else "fails"
    return check("15", "holes", state, text, "" if state == "holds" else remedy, share, there)
