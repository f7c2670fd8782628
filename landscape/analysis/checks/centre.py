"""Checks 1 and 2: whether the centre is the caller's model, and whether its loss is what is expected of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from landscape.analysis.checks.words import NotJudged, check, number
from landscape.core.plan import BatchNorm
from landscape.surface.record import CHANCE
from landscape.surface.record_entries import Check

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
