"""Checks 1 to 4: whether the values are those of the user's network, also when they are computed again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from landscape.analysis.checks.check import CheckContext, refuse_no_values
from landscape.analysis.checks.evidence import Judgement, NotJudged, number, percent
from landscape.core.grid import Floats
from landscape.core.plan import BatchNorm
from landscape.surface.record import CHANCE

SAME_BATCHES = 1e-6  # relative: the rounding of a mean of float32 losses that is summed in float64
OTHER_ARITHMETIC = 1e-5  # relative: the largest difference of an engine from plain evaluation
LOW_PRECISION = 1e-2  # relative: bfloat16 has 8 bits, tf32 has 11
STANDARD_ERRORS = 3.0  # equal means differ by more than three once in 370 times
CLOSE = 0.02  # relative: a log rounds to two digits
NAN_SOMEWHERE = "is a weight or a sample not finite? does observe take the logarithm or the root of 0, or divide by it?"
AS_USED = "batch_norm: eval shows the network as it is used"

DOUBLE = 2  # points computed again in float64, if not all; its convolutions take twenty times as long on a CPU
SHARE_OF_RELIEF = 1e-3  # a figure of 256 colours shows 4e-3
LOW_SHARE_OF_RELIEF = 1e-2  # in bfloat16 and tf32, whose jitter is 3e-3 of a loss
FAR_OFF = 4.0  # stated standard errors by which the value of an estimate may be off
SHARE_OF_NOISE = 0.5  # of the standard error of the rise: losses must be more exact than the noise
# Shares of the loss: its largest rounding in float32, and in bfloat16 or tf32. A larger difference has another cause.
ROUNDING = 1e-5
LOW_ROUNDING = 1e-2


# -- 1: the centre is the user's model -----------------------------------------------------------------------


def check_centre(context: CheckContext) -> Judgement:
    """Compare the loss at the origin with that by the model's own forward pass."""
    plan, record = context.plain_evaluations.landscape.plan, context.evidence.record
    return judge_centre(
        context.origin_loss,
        context.evaluations.own_loss(),
        context.evaluations.prepared.samples.length,
        plain=str(plan.engine) == "eager",
        low_precision=context.low_precision,
        batch_norm=plan.batch_norm,
        stderr=context.evidence.origin_stderr,
        rounding=record.rounding_in_words,
        accepted=record.accepted_in_words,
    )


def judge_centre(
    recorded: float, own: float, samples: int, *, plain: bool, low_precision: bool, batch_norm: BatchNorm,
    stderr: float, rounding: str = "", accepted: str = "",
) -> Judgement:  # fmt: skip
    """1: |Δ| / max(1, L₀) ≤ 1e-6 in the same arithmetic, 1e-5 in another engine's, 1e-2 in bfloat16 or tf32.

    Args:
        recorded, own: the loss at the origin in the landscape, and by the model's own forward pass.
        samples: how many samples both are means of.
        plain: whether the engine is plain eager; another one rounds otherwise.
        low_precision: whether the landscape was evaluated in bfloat16 or tf32.
        batch_norm: which statistics the batch norm layers use.
        stderr: the standard error of the recorded loss.
        rounding: how weights are rounded, in words; '' if they are not.
        accepted: the other losses of the user's own model in spite of which `--accept-origin` went on, in words; ''
            if there were none.

    Raises:
        NotJudged: neither loss is finite.
    """
    difference = abs(recorded - own)
    relative = difference / max(1.0, abs(own))
    allowed = LOW_PRECISION if low_precision else SAME_BATCHES if plain else OTHER_ARITHMETIC
    pair = f"loss {number(recorded, 4)}, and {number(own, 4)} by its own forward pass"
    numbers = {"recorded": recorded, "own": own, "allowed": allowed}
    if accepted:
        text, remedy = f"{accepted}; that was accepted", "mend the model, and compute it anew under another name"
        return Judgement("fails", text, remedy, relative, numbers=numbers)
    if not (math.isfinite(recorded) or math.isfinite(own)):  # check 2 judges this
        raise NotJudged(f"neither the landscape's loss there is finite nor that of your model: {pair}")
    if relative <= allowed:
        count = "sample" if samples == 1 else f"{samples:,} samples"
        rounded = f" with {rounding}" if rounding else ""
        text = f"the centre is your model{rounded}: {pair} on the same {count}"
        return Judgement("holds", text, value=relative, numbers=numbers)
    if batch_norm == "recalibrate":
        # Statistics taken anew may well give another loss; check 10 judges the difference.
        text = f"the centre is your model with the statistics of batch norm taken anew: {pair}"
        if difference <= STANDARD_ERRORS * stderr:
            return Judgement("holds", text, value=relative, numbers=numbers)
        return Judgement("reservation", text, AS_USED, relative, numbers=numbers)
    remedy = "has the callback, its data or this software changed since? compute it anew under another name"
    if batch_norm == "batch":
        remedy = (
            f"batch norm uses the statistics of each batch, which training does and no user of the model: {AS_USED}"
        )
    return Judgement("fails", f"the centre is not your model: {pair}", remedy, relative, numbers=numbers)


# -- 2: the loss at the centre is the expected one -----------------------------------------------------------


def check_expectation(context: CheckContext) -> Judgement:
    """Compare the loss at the origin with that which the problem expects or the training log had, and with guessing."""
    evidence = context.evidence
    of_problem = context.extra.prepared.problem.expected.get("loss") if context.extra is not None else None
    logged = None if of_problem is not None else evidence.logged
    expected, error = (of_problem, 0.0) if logged is None else (logged.loss, logged.stderr)
    source = "the problem expects" if logged is None else logged.words
    went_on = f"the centre's training went on to {evidence.origin_went_on_to}" if evidence.origin_went_on_to else ""
    ended = (logged.ended if logged is not None else "") or went_on
    return judge_expectation(
        context.origin_loss,
        evidence.origin_stderr,
        expected,
        error,
        source,
        context.chance,
        untrained=evidence.origin_is_start,
        rounding=evidence.record.rounding_in_words,
        ended="; ".join(filter(None, (evidence.log_not_finite, ended))),
        diverged=bool(evidence.log_not_finite),
    )


def judge_expectation(
    loss: float, stderr: float, expected: float | None, expected_stderr: float, source: str, chance: float | None, *,
    untrained: bool = False, rounding: str = "", ended: str = "", diverged: bool = False,
) -> Judgement:  # fmt: skip
    """2: |L₀ − E| ≤ 3·√(SE₀² + SE_E²) or 2 % of E; a trained network has less than 0.95 times the loss of guessing.

    Args:
        loss, stderr: L₀ and its standard error.
        expected: E; None if unknown.
        expected_stderr: the standard error of E; 0 if unknown.
        source: the words before E: `your training log ended at`, or `at epoch 10 your training log had`.
        chance: the loss of the best constant guess; None if unknown.
        untrained: whether the origin is the beginning of a training.
        rounding: how the network of the landscape is rounded, in words; '' if it is not. E is the loss before rounding.
        ended: how a log that goes on after the origin ended, or that it has no finite loss at the origin; else empty.
        diverged: whether the log has no finite loss at the origin.
    """
    numbers = {"loss": loss, "expected": math.nan if expected is None else expected}
    numbers |= {"chance": math.nan if chance is None else chance}
    if not math.isfinite(loss):
        text = "the loss at the centre is not finite" + (f"; {ended}" if ended else "")
        remedy = "train with a smaller step" if diverged else NAN_SOMEWHERE
        return Judgement("fails", text, remedy)
    if chance is not None and loss >= CHANCE * chance:
        text = f"the loss at the centre, {number(loss, 4)}, is no better than guessing ({number(chance, 4)})"
        if untrained:
            return Judgement("reservation", text, "the origin is an untrained network", loss, numbers=numbers)
        if rounding:
            remedy = f"{rounding}: take more bits, unless the network is as bad before"
            return Judgement("reservation", text, remedy, loss, numbers=numbers)
        remedy = "is the origin the trained network? are the samples prepared as in training, and the labels theirs?"
        return Judgement("fails", text, remedy, loss, numbers=numbers)
    if expected is None:
        text = f"the loss at the centre is {number(loss, 4)}" + (f" ({ended})" if ended else "")
        remedy = "Problem(expected={'loss': …}) or the log of a training says what it should be"
        if chance is None:
            return Judgement("unjudged", f"{text}; nothing says what it should be", remedy, numbers=numbers)
        return Judgement("holds", f"{text}, that of guessing {number(chance, 4)}", value=loss, numbers=numbers)
    difference = abs(loss - expected)
    noise = math.hypot(*(error for error in (stderr, expected_stderr) if math.isfinite(error)), 0.0)
    text = f"{source} {number(expected, 4)}, the centre has {number(loss, 4)}"
    text += f"; {ended}" if ended else ""
    if difference <= max(STANDARD_ERRORS * noise, CLOSE * abs(expected)):
        return Judgement("holds", text, value=difference, numbers=numbers)
    if rounding:
        remedy = f"{rounding}, but not in the first number: landscape compare says by how much the loss differs"
        return Judgement("information", text, remedy, difference, numbers=numbers)
    remedy = (
        "is dropout, augmentation or weight decay in the first number? other samples? batch norm in training mode?"
        if expected > loss
        else "other samples or preprocessing? batch norm in training mode?"
    )
    return Judgement("reservation", text, remedy, difference, numbers=numbers)


# -- 3 and 4: points computed again --------------------------------------------------------------------------


@dataclass(frozen=True)
class Spots:
    """Losses of some points, as stored and computed again another way.

    Attributes:
        stored, computed: the losses [points].
        places: the coordinates of each point, in words.
        relief: the relief of the landscape.
        noise: the median standard error of the rise; NaN if unknown.
        low_precision: whether the landscape was evaluated in bfloat16 or tf32.
        how: the other way, in words.
        stated: the stated standard error of each point, where points know different samples; None if all know all.
    """

    stored: Floats
    computed: Floats
    places: Sequence[str]
    relief: float
    noise: float
    low_precision: bool
    how: str
    stated: Floats | None = None


def check_spots(context: CheckContext) -> Judgement:
    """Compute some points of the grid again another way."""
    evidence, extra = context.evidence, context.plain_evaluations
    refuse_no_values(context)
    precision, points = extra.own.plan.precision, [evidence.point(index) for index in context.spots]
    double = len(points) if precision == "float64" else 0 if context.low_precision else DOUBLE
    computed, precisions = extra.plain_losses(points, double)
    axes = "stored axes" if extra.stored is not None else "axes drawn from their seeds"
    return judge_spots(
        Spots(
            stored=np.array([evidence.values[index] for index in context.spots]),
            computed=computed,
            places=[evidence.place(index) for index in context.spots],
            relief=evidence.relief,
            noise=evidence.noise,
            low_precision=context.low_precision,
            how=f"weights rebuilt from the {axes}{' and rounded' if context.quantise else ''}, plain {precisions}",
            stated=_stated(context),
        )
    )


def _stated(context: CheckContext) -> Floats | None:
    """The stated errors at the spots of a landscape with an accuracy: of samples and of interpolation together."""
    surface = context.evidence.surface
    if surface.record.accuracy is None:
        return None
    return np.array([float(surface.stated_error[index]) for index in context.spots])


def judge_spots(spots: Spots) -> Judgement:
    """3: max |Δ| ≤ 1e-3 of the relief (1e-2 in bfloat16 and tf32) and half a standard error, beyond rounding.

    A difference by rounding holds, with a reservation if it is more than this share of the relief.
    """
    differences = np.abs(spots.stored - spots.computed)
    share, rounding = (LOW_SHARE_OF_RELIEF, LOW_ROUNDING) if spots.low_precision else (SHARE_OF_RELIEF, ROUNDING)
    allowed = share * spots.relief
    if np.isfinite(spots.noise) and spots.noise > 0:
        allowed = min(allowed, SHARE_OF_NOISE * spots.noise)
    bounds = np.maximum(allowed, rounding * np.maximum(1.0, np.abs(spots.stored)))
    if spots.stated is not None:
        bounds = np.maximum(bounds, FAR_OFF * spots.stated)
    excess = np.where(np.isfinite(differences), differences / bounds, np.inf)
    worst, count = int(np.argmax(excess)), int((excess > 1).sum())
    largest = float(differences.max())
    of_relief = largest / spots.relief if spots.relief > 0 else largest
    numbers = {"points": len(differences), "largest": largest, "allowed": allowed}
    if not count:
        # Far out, where the rise of the loss is many times the relief, differences are seen beside the rise.
        visible = np.maximum(share * spots.relief, rounding * (spots.stored - spots.stored.min()))
        rough = spots.stated is None and spots.relief > 0 and bool((differences > visible).any())
        text = (
            f"{len(differences)} points computed again another way ({spots.how}): off by at most "
            f"{_difference_text(largest, spots.relief)}"
        )
        if spots.stated is not None:
            text = f"{text}, as far as the errors that the picture states allow"
        if rough:
            finer = "float32" if spots.low_precision else "float64"
            text, remedy = f"{text}, which rounding makes", f"precision: {finer}, or a wider range"
            return Judgement("reservation", text, remedy, of_relief, numbers=numbers)
        return Judgement("holds", text, value=of_relief, numbers=numbers)
    text = (
        f"{count} of {len(differences)} points computed again another way ({spots.how}) differ: "
        f"{number(float(spots.stored[worst]), 4)} in the picture and {number(float(spots.computed[worst]), 4)} again "
        f"at {spots.places[worst]}"
    )
    remedy = (
        "the stored axes, coordinates or values are not those of this network: landscape validate, then compute anew; "
        "or a hook or observe reads another model than the one that it is given"
    )
    return Judgement("fails", text, remedy, of_relief, numbers=numbers)


def check_repetition(context: CheckContext) -> Judgement:
    """Compute one far point several times."""
    refuse_no_values(context)
    losses, processes = context.evaluations.repeat(context.evidence.point(context.spots[0]))
    return judge_repetition(losses, processes, context.evidence.relief)


def judge_repetition(losses: Sequence[float], processes: int, relief: float) -> Judgement:
    """4: the same bits each time.

    Args:
        losses: the loss of one point, each time.
        processes: how many processes computed it.
    """
    spread = float(np.ptp(losses))
    times = len(losses)
    who = f"{processes} processes" if processes > 1 else "this process, set anew,"
    if len({np.float64(loss).tobytes() for loss in losses}) == 1:
        text = f"one far point computed {times} times by {who} has the same bits each time"
        return Judgement("holds", text, value=0.0, numbers={"times": times})
    share = spread / relief if relief > 0 else spread
    text = f"one far point computed {times} times by {who} varies by {_difference_text(spread, relief)}"
    remedy = (
        "observe draws random numbers that no seed reaches, or kernels add in no fixed order: draw from the global "
        "generators, which are seeded at each point"
    )
    return Judgement("reservation", text, remedy, share, {"times": times, "spread": spread})


def _difference_text(difference: float, relief: float) -> str:
    """A difference in percent of the relief; as a number if there is no relief."""
    return f"{percent(difference / relief)} of the relief" if relief > 0 else number(difference)
