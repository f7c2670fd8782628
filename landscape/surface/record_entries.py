"""The entries of a landscape's document about results: checks, connections, comparisons, eigenvalues, layers, paths."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, Strict

from landscape.core.grid import Floats
from landscape.surface.barriers import Curve
from landscape.surface.record_parts import (
    OMITTED,
    AnyReal,
    AnyText,
    Count,
    Flag,
    Object,
    Real,
    Share,
    Text,
    Whole,
    adapter_of,
    each_sound,
)

CheckState = Literal["holds", "reservation", "fails", "unjudged", "information"]
WIDTH = 92  # of a line of text on checks
BATCH_NORM = "10"  # the number of the check of batch-norm statistics
BY_EVALUATION = ("1", "3", "4")  # centre, spot check, repetition: whether the values are those of the network
MARKS: dict[CheckState, str] = {"holds": "✓", "reservation": "!", "fails": "✗", "unjudged": "–", "information": " "}


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check.

    Attributes:
        number: of the check, such as `8b`.
        name: in a word or two.
        state: `information` speaks neither for nor against the picture.
        text: a sentence with the numbers; if nothing was judged, the reason.
        remedy: the advice to the user; empty if there is nothing to do.
        value: the number that was judged; None if there is none, or it is not finite.
        numbers: other measured numbers, by name.
    """

    number: Text
    name: Text
    state: CheckState
    text: Text
    remedy: Text = ""
    value: Annotated[float, Strict()] | None = None
    numbers: dict[Text, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Checks:
    """The results of all checks of a landscape.

    Attributes:
        when: a time in ISO format.
        version: of this software.
        points: how many evaluations of the landscape were done then.
        evaluations: the cost of the checks, in evaluations of all samples.
        deep: whether costly checks were requested too.
        imported: whether the landscape comes from other software, without a network to evaluate.
        eigenvalues: whether the landscape has pictures of eigenvalues too, which no check judges.
    """

    when: AnyText = None
    version: AnyText = None
    points: Count = 0
    evaluations: Count = 0
    seconds: Share = 0.0
    deep: Flag = False
    imported: Flag = False
    eigenvalues: Flag = False
    results: Annotated[tuple[Check, ...], each_sound(Check)] = ()

    def of(self, *states: CheckState) -> list[Check]:
        """The results with one of these states."""
        return [check for check in self.results if check.state in states]

    @property
    def told(self) -> list[Check]:
        """The results as they are shown, where checks that are not judged for the same reason are joined into one."""
        by_reason: dict[str, list[Check]] = {}
        for check in self.of("unjudged"):
            by_reason.setdefault(check.text.removeprefix(f"{check.name}: "), []).append(check)
        joined = {checks[0].number: _join(checks, reason) for reason, checks in by_reason.items()}
        shown = (check for check in self.results if check.state != "unjudged" or check.number in joined)
        return [joined.get(check.number, check) for check in shown]

    def text(self, name: str) -> str:
        """The verdict on the landscape of this name, and the text of each check, a mark before each."""
        wrap = partial(textwrap.fill, width=WIDTH, subsequent_indent="   ", break_on_hyphens=False)
        lines = [wrap(f"{name}: can this picture be trusted? {self.verdict}")]
        for check in self.told:
            told = f"{check.text}; {check.remedy}" if check.remedy else check.text
            lines.append(wrap(told, initial_indent=f" {MARKS[check.state]} "))
        return "\n".join(lines)

    @property
    def fails(self) -> bool:
        """Whether a check does not hold."""
        return bool(self.of("fails"))

    @property
    def not_judged(self) -> bool:
        """Whether it stays open if the picture can be trusted, as no check that evaluates the network could be judged.

        False for an imported surface, of which only the values can be judged, and if a check does not hold, which is an
        answer.
        """
        judged = {check.number for check in self.of("holds", "reservation", "fails")}
        return not self.imported and not self.fails and judged.isdisjoint(BY_EVALUATION)

    @property
    def verdict(self) -> str:
        """The answer of all checks together, and their cost."""
        failed, reserved, judged = self.of("fails"), self.of("reservation"), self.of("holds", "reservation", "fails")
        if failed:
            answer = f"no: {_count(len(failed), 'check')} {'does' if len(failed) == 1 else 'do'} not hold"
        elif self.not_judged:
            answer = "not judged: its network could not be evaluated"
        elif self.imported:
            answer = "nothing in its values speaks against it; whether they are right, no check of an import can tell"
        else:
            answer = "nothing speaks against it"
        answer += "; all of its loss, the eigenvalues are not judged" if self.eigenvalues else ""
        with_them = f", with {_count(len(reserved), 'reservation')}" if reserved else ""
        evaluations = _count(self.evaluations, "evaluation")
        return f"{answer}{with_them} ({_count(len(judged), 'check')}, {evaluations}, {self.seconds:.3g} s)"


def _join(checks: list[Check], reason: str) -> Check:
    first, *others = checks
    if not others:
        return first
    return replace(first, text=f"{', '.join(check.name for check in checks)}: {reason}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# ----------------------------------------------------------------------------------------------------
# The values on the line and on the curve between two networks, in the document of their plane.

Numbers = tuple[AnyReal, ...]


@dataclass(frozen=True, kw_only=True)
class BarrierRecord:
    """A barrier: its height, its place, and its error; None if unknown."""

    height: Real
    alpha: Real
    stderr: AnyReal = None


@dataclass(frozen=True, kw_only=True)
class WayRecord:
    """The values on one way from network to network.

    Attributes:
        values: means and standard errors by name, one per place; None where they are not finite.
        columns: least, largest, mean and integral of the loss.
        barriers: by definition: `entezari`, `git_re_basin`, `frankle`; empty if no loss is finite.
    """

    values: dict[Text, Numbers] = field(default_factory=dict)
    columns: dict[Text, AnyReal] = field(default_factory=dict)
    barriers: dict[Text, BarrierRecord] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ConnectionRecord:
    """The straight line between two networks, and the curve that was trained between them.

    Attributes:
        when: a time in ISO format.
        version: of this software.
        curve: its kind.
        t: the places on both ways, from 0 to 1.
        epochs: the mean training loss of each epoch.
        evaluations: the cost, in evaluations of all samples.
        settings: the values that decide these numbers beside the identity of the landscape.
    """

    curve: Curve
    t: tuple[Real, ...]
    on_line: WayRecord
    on_curve: WayRecord
    when: AnyText = None
    version: AnyText = None
    epochs: Numbers = ()
    evaluations: Count = 0
    settings: Object = field(default_factory=dict)

    @property
    def gone(self) -> float | None:
        """The share of the line's barrier (Entezari's) that the curve avoids; None if the line has no barrier."""
        line, curve = (way.barriers.get("entezari") for way in (self.on_line, self.on_curve))
        if line is None or curve is None or line.height == 0:
            return None
        return 1 - curve.height / line.height


# ----------------------------------------------------------------------------------------------------
# The results of `landscape compare --keep` for a quantised landscape, in its document.


@dataclass(frozen=True, kw_only=True)
class BitsRecord:
    """The network at the origin, rounded to `bits` bits; None for numbers that are not finite.

    Attributes:
        values: observables by name.
        difference: the loss less that of the unrounded network.
        stderr: of the difference, over pairs of losses of the same sample.
    """

    bits: Whole
    values: dict[Text, AnyReal] = field(default_factory=dict)
    difference: AnyReal = None
    stderr: AnyReal = None


@dataclass(frozen=True, kw_only=True)
class StepsRecord:
    """Both losses along a short line through the origin, which shows the steps of rounding."""

    axis: Text
    at: Numbers
    unrounded: Numbers
    rounded: Numbers


@dataclass(frozen=True, kw_only=True)
class ComparedRecord:
    """The loss at the origin by bits, and the steps of rounding.

    Attributes:
        when: a time in ISO format.
        version: of this software.
        samples: how many the losses are means of.
        unrounded: observables of the unrounded network at the origin; empty without a curve over bits.
    """

    when: AnyText = None
    version: AnyText = None
    samples: Count | None = None
    unrounded: dict[Text, AnyReal] = field(default_factory=dict)
    bits: tuple[BitsRecord, ...] = ()
    steps: StepsRecord | None = None


# ----------------------------------------------------------------------------------------------------
# The eigenvalues of a convexity map: their names, their signs, and their entry in the document.

EIG_MAX, EIG_MIN = "eig_max", "eig_min"
EIG_MAX_RESIDUAL, EIG_MIN_RESIDUAL = "eig_max_residual", "eig_min_residual"
EIG_MIN_BOUND, EIG_NEGATIVE = "eig_min_bound", "eig_negative"
# The observables of a convexity map beside the loss.
EIGENVALUES = (EIG_MAX, EIG_MAX_RESIDUAL, EIG_MIN, EIG_MIN_RESIDUAL, EIG_MIN_BOUND, EIG_NEGATIVE)
RATIO = {"eig_ratio": f"abs({EIG_MIN}/{EIG_MAX})"}  # the surface derived from them
NO, YES, UNDECIDED = range(3)  # values of `eig_negative`
ANSWERS = ("no", "yes", "undecided")  # their meanings

# A share of the largest eigenvalue in size: smaller eigenvalues count as zero. Those that are zero by a symmetry, or of
# dead units, are computed with either sign.
ZERO = 1e-6
# The same for products in float32. In eight small networks, eigenvalues near zero were off by up to 5e-6, where the
# loss is small and made of differences of larger numbers; in a ResNet-20 by 6e-8.
ZERO_IN_FLOAT32 = 1e-5


def products_in_float32(how: str, precision: str | None) -> bool:
    """Whether products with the Hessian are computed in float32; differences of gradients are always in float64.

    Args:
        how: the way of computing them: `autograd`, `gauss-newton` or `differences`.
        precision: of the plan.
    """
    return how != "differences" and precision != "float64"


def is_negative(largest: Floats, smallest: Floats, bound: Floats, in_float32: bool) -> NDArray[np.uint8]:
    """Whether the Hessian has an eigenvalue below zero, beyond rounding: `YES`, `NO`, or `UNDECIDED`.

    Args:
        largest, smallest: θmax and θmin of Lanczos. λmin ≤ θmin always, as θmin is a Rayleigh quotient: θmin < 0 proves
            an eigenvalue below zero, whatever its residual, and θmin > 0 proves nothing.
        bound: a lower bound of all eigenvalues, see `Krylov.lower_bound`; NaN if unknown.
        in_float32: whether the products were computed in float32.

    >>> values = np.full(4, 4.0), np.array([-0.1, 1e-9, 0.1, -1e-5]), np.array([-0.2, -1e-9, -0.3, -0.2])
    >>> is_negative(*values, in_float32=False).tolist(), is_negative(*values, in_float32=True).tolist()
    ([1, 0, 2, 1], [1, 0, 2, 2])
    """
    scale = np.maximum(np.abs(largest), np.abs(smallest))
    proven = smallest < -(ZERO_IN_FLOAT32 if in_float32 else ZERO) * scale
    return np.where(proven, YES, np.where(bound >= -ZERO * scale, NO, UNDECIDED)).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class ConvexityRecord:
    """How the eigenvalues of a convexity map are computed.

    Attributes:
        steps: of the Lanczos method at a point, at most.
        parameters: the dimension of the Hessian.
        second_derivatives: `autograd`, or `differences` of gradients if the model has no second derivative.
        most: the limit of steps if the sign of the smallest eigenvalue is open after `steps`.
    """

    steps: Annotated[int, Strict(), Field(ge=1)]
    parameters: Count
    second_derivatives: Text
    most: Count = 0

    @property
    def products(self) -> int:
        """Products with the Hessian at a point, at most, if they decide the sign of the smallest eigenvalue."""
        return min(self.steps, self.parameters)

    @property
    def most_products(self) -> int:
        """Products with the Hessian at a point, at most."""
        return max(self.products, min(self.most, self.parameters))

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of the values stored at every point."""
        return EIGENVALUES

    def categories(self, observable: str) -> tuple[str, ...] | None:
        """The meanings of the values 0, 1, 2 of an observable; None if it holds plain numbers."""
        return ANSWERS if observable == EIG_NEGATIVE else None


# ----------------------------------------------------------------------------------------------------
# The layers that are watched at the points of a landscape: the names of their values, and their entry in the document.

FIRST_LAYER, FIRST_RULE = "first_layer", "first_rule"
BREAKING = (FIRST_LAYER, FIRST_RULE)  # observables: the first layer that breaks, and by which rule; 0 if none does
LAYER_STATISTICS = ("min", "max", "mean", "spread", "abs_mean", "zeros", "not_finite")


@dataclass(frozen=True, kw_only=True)
class LayersRecord:
    """Which layers are watched at every point.

    Attributes:
        layers: their names in the order of computation at the origin.
        weights: the names of the parameters, which rules judge too.
        rules: with their thresholds; value k of `first_rule` is the k-th rule.
        statistics: each is an observable of each layer: `layer_3_abs_mean` of the third.
    """

    layers: tuple[Text, ...]
    weights: tuple[Text, ...]
    rules: dict[Text, Real]
    statistics: tuple[Text, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The layers and weights: value k of `first_layer` is the k-th of them, and a larger value another layer."""
        return (*self.layers, *self.weights)

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of the values stored at every point."""
        places = range(1, len(self.layers) + 1)
        return (*BREAKING, *(f"layer_{place}_{name}" for place in places for name in self.statistics))

    def categories(self, observable: str) -> tuple[str, ...] | None:
        """The meanings of the values 0, 1, 2, … of an observable; None if it holds plain numbers."""
        if observable == FIRST_LAYER:
            return ("none", *self.names, "another layer")
        return ("none", *self.rules) if observable == FIRST_RULE else None

    def layer_of(self, observable: str) -> tuple[str, str] | None:
        """The layer and the statistic of an observable; None if it is no such observable."""
        word, _, rest = observable.partition("_")
        place, _, statistic = rest.partition("_")
        is_of_layer = word == "layer" and place.isdecimal() and 0 < int(place) <= len(self.layers)
        return (self.layers[int(place) - 1], statistic) if is_of_layer and statistic in self.statistics else None


# ----------------------------------------------------------------------------------------------------
# The runs whose paths a landscape draws, in its document.

LONGEST_LABEL = 200  # characters; more than a job may give, as a document may hold anything


@dataclass(frozen=True, kw_only=True)
class PathRecord:
    """The run of a path.

    Attributes:
        label: the name of the run in figures.
        run: its folder or URL, as the job names it.
        unit: of the numbers of its snapshots.
        own: whether the landscape lies in this run.
        shown: the share of the variance of its own snapshots that lies on the axes; None without variance.
        shown_of_walk: the same share of a random walk in its place, if the axes are principal components of all paths.
    """

    label: Text
    run: Text = ""
    unit: Text = "epoch"
    own: Flag = False
    shown: AnyReal = None
    shown_of_walk: AnyReal = field(default=None, metadata=OMITTED)


def path_records(entry: Any, count: int) -> tuple[PathRecord, ...]:
    """The runs of `count` paths, from an entry of a document; a malformed one is labelled by its number."""
    listed = entry if isinstance(entry, list) else []
    return tuple(_record(listed[k] if k < len(listed) else None, k) for k in range(count))


def _record(entry: Any, place: int) -> PathRecord:
    if isinstance(entry, Mapping):
        try:
            record: PathRecord = adapter_of(PathRecord).validate_python(entry)
        except ValueError:  # a ValidationError of pydantic is one
            record = PathRecord(label="")
        if 0 < len(record.label) <= LONGEST_LABEL:
            return record
    return PathRecord(label=f"path {place + 1}")


# ----------------------------------------------------------------------------------------------------
# The range of a landscape's axes, if it was found and not given, in its document.

# The end of an axis: the loss has changed by the target, the loss is not finite beyond, or the search goes no farther.
AxisEnd = Literal["target", "finite", "farthest"]
# The source of the target: the loss of guessing, the loss at the origin, or the least change that is worth showing.
TargetRule = Literal["guessing", "origin", "least"]


@dataclass(frozen=True, kw_only=True)
class FoundAxis:
    """The range of an axis, from -radius to radius.

    Attributes:
        change: abs(L − L₀) at the ends, the larger of the two.
        end: the reason why the axis ends there.
    """

    radius: Annotated[float, Strict(), Field(gt=0)]
    change: Real
    end: AxisEnd


@dataclass(frozen=True, kw_only=True)
class FoundRange:
    """The range that was found, axis by axis.

    Attributes:
        target: the wanted change of the loss.
        evaluations: the cost, in evaluations of all samples.
    """

    target: Real
    rule: TargetRule
    axes: tuple[FoundAxis, ...]
    evaluations: Count
