"""Checks 5, 12, 13 and 15: what the values of the grid say by themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from landscape.core.plan import RECALIBRATE, BatchNorm
from landscape.model.history import LossStretch
from landscape.surface.record import CHANCE
from landscape.surface.record_entries import Check, CheckState

# ----------------------------------------------------------------------------------------------------
# Numbers as the checks say them, and what is not judged.


class NotJudged(Exception):
    """A check cannot be judged; its text says why."""


def check(
    number: str,
    name: str,
    state: CheckState,
    text: str,
    remedy: str = "",
    value: float = math.nan,
    numbers: Mapping[str, object] | None = None,
) -> Check:
    """A check with its numbers as JSON holds them: those that are not finite are None."""
    kept = {key: _finite(each) for key, each in (numbers or {}).items()}
    judged = float(value) if math.isfinite(value) else None
    return Check(number=number, name=name, state=state, text=text, remedy=remedy, value=judged, numbers=kept)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return value


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent where it is readable without one.

    >>> number(0.08714), number(1234567.0), number(99.7, 2), number(2e-7)
    ('0.0871', '1.23e+06', '100', '2e-07')
    """
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e6 else text


def percent(share: float) -> str:
    """A share in percent, two digits of it; whole numbers from 10 % on.

    >>> percent(0.0123), percent(0.4), percent(3e-6)
    ('1.2 %', '40 %', '0.0003 %')
    """
    size = abs(100 * share)
    if size >= 10 or size == 0:
        return f"{100 * share:.0f} %"
    places = max(1, -math.floor(math.log10(size)) + (size >= 0.1)) if size < 1 else 1
    return f"{100 * share:.{places}f} %"


# ----------------------------------------------------------------------------------------------------

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
    stretches: tuple[LossStretch, ...] = ()
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


# ----------------------------------------------------------------------------------------------------
# Checks 1 and 2: whether the centre is the caller's model, and whether its loss is what is expected of it.

SAME_BATCHES = 1e-6  # relative: the rounding of a mean of losses in float32, summed in float64
OTHER_ARITHMETIC = 1e-5  # relative: what engines promise against plain evaluation
LOW_PRECISION = 1e-2  # relative: bfloat16 has 8 bits, tf32 has 11
STANDARD_ERRORS = 3.0  # a difference beyond three is seen once in 370 times where there is none
CLOSE = 0.02  # relative: a log rounds to two digits
NAN_SOMEWHERE = "is a weight or a sample not finite? does observe take the logarithm or the root of 0, or divide by it?"


@dataclass(frozen=True)
class Centre:
    """The loss at the origin as the landscape has it, and by the model's own forward pass.

    Attributes:
        plain: whether it was evaluated eagerly in float32 or float64; else engines and precision round otherwise.
        low_precision: whether it was evaluated in bfloat16 or tf32.
        stderr: the standard error of the recorded loss.
        rounding: how weights are rounded, in words; '' where they are not.
        accepted: that the user's own model had other losses, and `--accept-origin` went on; '' where it had not.
    """

    recorded: float
    own: float
    samples: int
    plain: bool
    low_precision: bool
    batch_norm: BatchNorm
    stderr: float
    rounding: str = ""
    accepted: str = ""


def centre(found: Centre) -> Check:
    """1: |Δ| / max(1, L₀) ≤ 1e-6 in the same arithmetic, 1e-5 in another engine's, 1e-2 in bfloat16 or tf32."""
    difference = abs(found.recorded - found.own)
    relative = difference / max(1.0, abs(found.own))
    allowed = LOW_PRECISION if found.low_precision else SAME_BATCHES if found.plain else OTHER_ARITHMETIC
    pair = f"loss {number(found.recorded, 4)}, and {number(found.own, 4)} by its own forward pass"
    known = {"recorded": found.recorded, "own": found.own, "allowed": allowed}
    if found.accepted:
        text, remedy = f"{found.accepted}; that was accepted", "mend the model, and compute it anew under another name"
        return check("1", "centre", "fails", text, remedy, relative, numbers=known)
    neither = not (math.isfinite(found.recorded) or math.isfinite(found.own))  # of which check 2 says more
    if neither:
        raise NotJudged(f"neither the landscape's loss there is finite nor that of your model: {pair}")
    if relative <= allowed:
        count = "sample" if found.samples == 1 else f"{found.samples:,} samples"
        rounded = f" with {found.rounding}" if found.rounding else ""
        text = f"the centre is your model{rounded}: {pair} on the same {count}"
        return check("1", "centre", "holds", text, value=relative, numbers=known)
    if found.batch_norm == "recalibrate":
        # Renewed statistics are meant to give another loss; by how much, check 10 judges.
        text = f"the centre is your model with the statistics of batch norm taken anew: {pair}"
        within = difference <= STANDARD_ERRORS * found.stderr
        return check(
            "1", "centre", "holds" if within else "reservation", text,
            "" if within else "batch_norm: eval shows the network as it is used", relative, numbers=known,
        )  # fmt: skip
    remedy = "has the callback, its data or this software changed since? compute it anew under another name"
    if found.batch_norm == "batch":
        remedy = (
            "batch norm uses the statistics of each batch, which training does and no user of the model: "
            "batch_norm: eval shows the network as it is used"
        )
    return check("1", "centre", "fails", f"the centre is not your model: {pair}", remedy, relative, numbers=known)


@dataclass(frozen=True)
class Expectation:
    """The loss at the origin, what is known of it from elsewhere, and the loss of guessing.

    Attributes:
        expected: None where nobody says.
        expected_stderr: 0 where it is not known.
        source: the words before its number: `your training log ended at`, or `at epoch 10 your training log had`.
        ended: where that log ended, if not there, or that it has no finite loss there; else empty.
        diverged: whether the log has no finite loss there.
        chance: the loss of the best constant guess; None where that is not known.
        untrained: whether the origin is the beginning of a training.
        rounding: how the network is rounded, in words, which neither expectation nor log knew of; '' where it is not.
    """

    loss: float
    stderr: float
    expected: float | None
    expected_stderr: float
    source: str
    chance: float | None
    untrained: bool = False
    rounding: str = ""
    ended: str = ""
    diverged: bool = False


def expectation(found: Expectation) -> Check:
    """2: |L₀ − E| ≤ 3·√(SE₀² + SE_E²) or 2 % of E; a loss of 0.95 times that of guessing is no trained network's."""
    loss, chance, expected = found.loss, found.chance, found.expected
    known = {"loss": loss, "expected": math.nan if expected is None else expected}
    known |= {"chance": math.nan if chance is None else chance}
    if not math.isfinite(loss):
        text = "the loss at the centre is not finite" + (f"; {found.ended}" if found.ended else "")
        remedy = "train with a smaller step" if found.diverged else NAN_SOMEWHERE
        return check("2", "expectation", "fails", text, remedy)
    if chance is not None and loss >= CHANCE * chance:
        text = f"the loss at the centre, {number(loss, 4)}, is no better than guessing ({number(chance, 4)})"
        if found.untrained:
            return check(
                "2", "expectation", "reservation", text, "the origin is an untrained network", loss, numbers=known
            )
        if found.rounding:
            remedy = f"{found.rounding}: take more bits, unless the network is as bad before"
            return check("2", "expectation", "reservation", text, remedy, loss, numbers=known)
        remedy = "is the origin the trained network? are the samples prepared as in training, and the labels theirs?"
        return check("2", "expectation", "fails", text, remedy, loss, numbers=known)
    if expected is None:
        text = f"the loss at the centre is {number(loss, 4)}" + (f" ({found.ended})" if found.ended else "")
        remedy = "Problem(expected={'loss': …}) or the log of a training says what it should be"
        if chance is None:
            return check(
                "2", "expectation", "unjudged", f"{text}; nothing says what it should be", remedy, numbers=known
            )
        return check(
            "2", "expectation", "holds", f"{text}, that of guessing {number(chance, 4)}", value=loss, numbers=known
        )
    difference = abs(loss - expected)
    noise = math.hypot(*(each for each in (found.stderr, found.expected_stderr) if math.isfinite(each)), 0.0)
    text = f"{found.source} {number(expected, 4)}, the centre has {number(loss, 4)}"
    text += f"; {found.ended}" if found.ended else ""
    if difference <= max(STANDARD_ERRORS * noise, CLOSE * abs(expected)):
        return check("2", "expectation", "holds", text, value=difference, numbers=known)
    if found.rounding:
        remedy = f"{found.rounding}, of which that knew nothing: landscape compare says by how much the loss differs"
        return check("2", "expectation", "information", text, remedy, difference, numbers=known)
    remedy = (
        "is dropout, augmentation or weight decay in the first number? other samples? batch norm in training mode?"
        if expected > loss
        else "other samples or preprocessing? batch norm in training mode?"
    )
    return check("2", "expectation", "reservation", text, remedy, difference, numbers=known)


# ----------------------------------------------------------------------------------------------------
# Check 6: whether the grid is fine enough for what it shows, by leaving out every second point of it.

FINE, COARSE = 0.04, 0.2  # of the relief: the grid's own error is then a quarter of it, 1 % and 5 %
ORDER_OF_LINEAR = 2  # the error of bilinear interpolation goes with h²: halving the step takes three quarters away
LEAST_ORDER = 1.0  # below it a finer grid is not approached as by a surface that is smooth at this scale
WORTH_AN_ORDER = 0.01  # of the relief: below it an order is that of rounding and of kinks


@dataclass(frozen=True)
class Resolution:
    """How well a grid with points left out predicts those.

    Attributes:
        half: the 95th percentile of |interpolated − there| over the relief, every second point left out.
        quarter: the same with every fourth kept; NaN where the grid is too small.
        minima: how many minima stand above the noise, of the whole grid and of every second point; None where the grid
            is too large to tell.
        size: points of every axis, the first one first.
        refined: whether `half` is what the levels of a refined landscape have added, and the others are not known.
    """

    half: float
    quarter: float
    minima: tuple[int, int] | None
    size: tuple[int, ...]
    refined: bool = False
    held: str = ""  # what a smaller range would cut off, such as 'the path'; '' for nothing


def resolution(found: Resolution) -> Check:
    """6: e ≤ 4 % of the relief holds, beyond 20 % it does not; the order log₂(e₄/e₂) ≥ 1; the same minima on both."""
    own = found.half / 2**ORDER_OF_LINEAR
    order = math.log2(found.quarter / found.half) if found.half > 0 and found.quarter > 0 else math.nan
    finer, better = _finer(found.size), own / 2**ORDER_OF_LINEAR
    known = {"quarter": found.quarter, "order": order, "minima": found.minima and list(found.minima)}
    text = (
        f"every second point left out changes the picture by {percent(found.half)} of its relief, so the grid itself "
        f"is off by about {percent(own)}"
    )
    remedy = f"size: {finer} gives {percent(better)}"
    if found.refined:
        text = (
            f"each level of the refinement changed the picture by {percent(found.half)} of its relief where it is the "
            f"last one, so the picture itself is off by about {percent(own)}"
        )
        remedy = "landscape refine makes it finer"
    if found.half > COARSE:
        return check("6", "resolution", "fails", text, remedy, found.half, numbers=known)
    if found.half > WORTH_AN_ORDER and order < LEAST_ORDER:
        text = (
            f"{text}; every fourth kept instead changes it by {percent(found.quarter)}: finer structure than the grid"
        )
        remedy = f"size: {finer}" + ("" if found.held else ", or a smaller range")
        return check("6", "resolution", "reservation", text, remedy, found.half, numbers=known)
    if found.half > FINE:
        return check("6", "resolution", "reservation", text, remedy, found.half, numbers=known)
    if found.minima is not None and found.minima[0] != found.minima[1]:
        text = f"{text}; the grid shows {found.minima[0]} minima above its noise, every second point {found.minima[1]}"
        return check("6", "resolution", "reservation", text, f"size: {finer} says which", found.half, numbers=known)
    return check("6", "resolution", "holds", text, value=found.half, numbers=known)


def _finer(size: tuple[int, ...]) -> int | list[int]:
    """`size` in a job at half the step; one number where all axes have it."""
    sizes = [2 * points - 1 for points in size]
    return sizes[0] if len(set(sizes)) == 1 else sizes
