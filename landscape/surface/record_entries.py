"""What checks of a landscape found, as its document keeps it, and as one sentence says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
BATCH_NORM = "10"  # the number of the check of its statistics
BY_EVALUATION = ("1", "3", "4")  # centre, spot check, repetition: whether the values are those of the network
MARKS: dict[CheckState, str] = {"holds": "✓", "reservation": "!", "fails": "✗", "unjudged": "–", "information": " "}


@dataclass(frozen=True, kw_only=True)
class Check:
    """What one check found.

    Attributes:
        number: of the check, such as `8b`.
        name: in a word or two.
        state: `information` speaks neither for nor against the picture.
        text: a sentence with the numbers; of what is not judged, why.
        remedy: what to do about it; empty where nothing needs to be done.
        value: the number that was judged; None where there is none, or it is not finite.
        numbers: others that were measured, by name.
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
    """All that the checks of a landscape found, and when.

    Attributes:
        when: a time in ISO format.
        version: of this software.
        points: how many evaluations of the landscape were done then.
        evaluations: what the checks cost, an evaluation of all samples each.
        deep: whether costly checks were asked for too.
        imported: whether the landscape is a surface of other software, behind which there is no network to evaluate.
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
        """The checks that found this."""
        return [check for check in self.results if check.state in states]

    @property
    def told(self) -> list[Check]:
        """The results as they are shown: those that are not judged for the same reason are one."""
        alike: dict[str, list[Check]] = {}
        for each in self.of("unjudged"):
            alike.setdefault(each.text.removeprefix(f"{each.name}: "), []).append(each)
        shown = {of_one[0].number: _joined(of_one, reason) for reason, of_one in alike.items()}
        return [shown.get(each.number, each) for each in self.results if _is_shown(each, shown)]

    @property
    def fails(self) -> bool:
        """Whether one of them does not hold."""
        return bool(self.of("fails"))

    @property
    def not_judged(self) -> bool:
        """Whether it stays open if the picture can be trusted: no check that evaluates the network could be judged.

        Never of an imported surface, of which only the values can be judged; nor where a check does not hold, which is
        an answer.
        """
        judged = {check.number for check in self.of("holds", "reservation", "fails")}
        return not self.imported and not self.fails and judged.isdisjoint(BY_EVALUATION)

    @property
    def verdict(self) -> str:
        """What all of them say together, and what they cost."""
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


def _joined(checks: list[Check], reason: str) -> Check:
    first, *others = checks
    if not others:
        return first
    return replace(first, text=f"{', '.join(each.name for each in checks)}: {reason}")


def _is_shown(check: Check, shown: dict[str, Check]) -> bool:
    return check.state != "unjudged" or check.number in shown


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# ----------------------------------------------------------------------------------------------------
# What lies on the line and on the curve between two networks, as the document of their plane keeps it.

Numbers = tuple[AnyReal, ...]


@dataclass(frozen=True, kw_only=True)
class BarrierRecord:
    """A barrier: its height, where it is, and its error; None where that is not known."""

    height: Real
    alpha: Real
    stderr: AnyReal = None


@dataclass(frozen=True, kw_only=True)
class WayRecord:
    """What was evaluated on one way from network to network.

    Attributes:
        values: means and standard errors by name, one per place; None where they are not finite.
        columns: least, largest, mean and integral of the loss.
        barriers: by definition: `entezari`, `git_re_basin`, `frankle`; none where no loss is finite.
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
        epochs: the mean training loss of each.
        evaluations: how many it cost, one of all samples each.
        settings: what decides these numbers beside the identity of the landscape.
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
        """The share of the line's barrier (Entezari's) that the curve does not have; None where the line has none."""
        line, curve = (way.barriers.get("entezari") for way in (self.on_line, self.on_curve))
        if line is None or curve is None or line.height == 0:
            return None
        return 1 - curve.height / line.height


# ----------------------------------------------------------------------------------------------------
# What `landscape compare --keep` found of a quantised landscape, as the document of that landscape keeps it.


@dataclass(frozen=True, kw_only=True)
class BitsRecord:
    """The network at the origin with so many bits; None for what is not finite.

    Attributes:
        values: observables by name.
        difference: of the loss, less that of the network that is not rounded.
        stderr: of the difference, pair by pair.
    """

    bits: Whole
    values: dict[Text, AnyReal] = field(default_factory=dict)
    difference: AnyReal = None
    stderr: AnyReal = None


@dataclass(frozen=True, kw_only=True)
class StepsRecord:
    """Both losses along a short line through the origin, on which the steps of rounding are seen."""

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
        samples: over how many the losses are.
        unrounded: observables of the network that is not rounded, at the origin; none without a curve.
    """

    when: AnyText = None
    version: AnyText = None
    samples: Count | None = None
    unrounded: dict[Text, AnyReal] = field(default_factory=dict)
    bits: tuple[BitsRecord, ...] = ()
    steps: StepsRecord | None = None


# ----------------------------------------------------------------------------------------------------
# What the document of a convexity map says of its eigenvalues, and the names of what it holds.

EIG_MAX, EIG_MIN = "eig_max", "eig_min"
EIG_MAX_RESIDUAL, EIG_MIN_RESIDUAL = "eig_max_residual", "eig_min_residual"
EIG_MIN_BOUND, EIG_NEGATIVE = "eig_min_bound", "eig_negative"
# The observables of a convexity map beside the loss.
EIGENVALUES = (EIG_MAX, EIG_MAX_RESIDUAL, EIG_MIN, EIG_MIN_RESIDUAL, EIG_MIN_BOUND, EIG_NEGATIVE)
RATIO = {"eig_ratio": f"abs({EIG_MIN}/{EIG_MAX})"}  # what is derived from them
NO, YES, UNDECIDED = range(3)  # values of `eig_negative`
ANSWERS = ("no", "yes", "undecided")  # what they stand for

# Of the largest eigenvalue in size: what is nearer to zero counts as zero, as eigenvalues that are zero by a symmetry,
# or of dead units, come out on either side of it.
ZERO = 1e-6
# Likewise, of products in float32: what a smallest eigenvalue may be off by. In eight small networks those near zero
# were off by up to 5e-6, where the loss is small and made of differences of larger numbers, in a ResNet-20 by 6e-8.
ZERO_IN_FLOAT32 = 1e-5


def products_in_float32(how: str, precision: str | None) -> bool:
    """Whether products with the Hessian are computed in float32: differences of gradients are in float64 always.

    Args:
        how: they are computed: `autograd`, `gauss-newton` or `differences`.
        precision: of the plan.
    """
    return how != "differences" and precision != "float64"


def is_negative(largest: Floats, smallest: Floats, bound: Floats, in_float32: bool) -> NDArray[np.uint8]:
    """Whether the Hessian has an eigenvalue below zero, beyond rounding: `YES`, `NO`, or `UNDECIDED`.

    Args:
        largest, smallest: θmax and θmin of Lanczos. λmin ≤ θmin always, as θmin is a Rayleigh quotient: one below zero
            proves an eigenvalue below zero, whatever its residual, and one above zero proves nothing.
        bound: what no eigenvalue is below, see `Krylov.lower_bound`; NaN where it is not known.
        in_float32: whether the products were computed in it.

    >>> found = np.full(4, 4.0), np.array([-0.1, 1e-9, 0.1, -1e-5]), np.array([-0.2, -1e-9, -0.3, -0.2])
    >>> is_negative(*found, in_float32=False).tolist(), is_negative(*found, in_float32=True).tolist()
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
        parameters: how many numbers the Hessian is over.
        second_derivatives: `autograd`, or `differences` of gradients where the model has none.
        most: steps at most where the sign of the smallest eigenvalue is open after `steps`.
    """

    steps: Annotated[int, Strict(), Field(ge=1)]
    parameters: Count
    second_derivatives: Text
    most: Count = 0

    @property
    def products(self) -> int:
        """Products with the Hessian at a point, at most, where the sign of the smallest eigenvalue is found in them."""
        return min(self.steps, self.parameters)

    @property
    def most_products(self) -> int:
        """Products with the Hessian at a point, at most."""
        return max(self.products, min(self.most, self.parameters))

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of what is stored at every point."""
        return EIGENVALUES

    def categories(self, observable: str) -> tuple[str, ...] | None:
        """What the values 0, 1, 2 of an observable stand for; None of one that holds plain numbers."""
        return ANSWERS if observable == EIG_NEGATIVE else None


# ----------------------------------------------------------------------------------------------------
# What the document of a landscape says of the layers that are watched at its points, and the names of these values.

FIRST_LAYER, FIRST_RULE = "first_layer", "first_rule"
BREAKING = (FIRST_LAYER, FIRST_RULE)  # observables: the first layer that breaks, and by which rule; 0 where none does
LAYER_STATISTICS = ("min", "max", "mean", "spread", "abs_mean", "zeros", "not_finite")


@dataclass(frozen=True, kw_only=True)
class LayersRecord:
    """Which layers are watched at every point.

    Attributes:
        layers: their names in the order of computation, as they are at the origin.
        weights: the names of the parameters, which rules look at too.
        rules: with their thresholds; value k of `first_rule` is the k-th.
        statistics: of which of each layer there is an observable, `layer_3_abs_mean` of the third.
    """

    layers: tuple[Text, ...]
    weights: tuple[Text, ...]
    rules: dict[Text, Real]
    statistics: tuple[Text, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What may break: value k of `first_layer` is the k-th of them, and a value beyond is of another layer."""
        return (*self.layers, *self.weights)

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of what is stored at every point."""
        places = range(1, len(self.layers) + 1)
        return (*BREAKING, *(f"layer_{place}_{name}" for place in places for name in self.statistics))

    def categories(self, observable: str) -> tuple[str, ...] | None:
        """What the values 0, 1, 2, … of an observable stand for; None of one that holds plain numbers."""
        if observable == FIRST_LAYER:
            return ("none", *self.names, "another layer")
        return ("none", *self.rules) if observable == FIRST_RULE else None

    def layer_of(self, observable: str) -> tuple[str, str] | None:
        """The layer and the statistic of an observable; None of another one."""
        word, _, rest = observable.partition("_")
        place, _, statistic = rest.partition("_")
        known = word == "layer" and place.isdecimal() and 0 < int(place) <= len(self.layers)
        return (self.layers[int(place) - 1], statistic) if known and statistic in self.statistics else None


# ----------------------------------------------------------------------------------------------------
# What the document of a landscape says of the runs whose paths it draws.

LONGEST_LABEL = 200  # characters, more than a job may give: a document may say anything


@dataclass(frozen=True, kw_only=True)
class PathRecord:
    """The run that a path is of.

    Attributes:
        label: what figures call it.
        run: its folder or URL, as the job names it.
        unit: what the numbers of its snapshots count.
        own: whether it is the run that the landscape lies in.
        shown: the share of the variance of its own snapshots that lies on the axes; None where it has none.
        shown_of_walk: the same of a random walk in its place, where the axes are principal components of all paths.
    """

    label: Text
    run: Text = ""
    unit: Text = "epoch"
    own: Flag = False
    shown: AnyReal = None
    shown_of_walk: AnyReal = field(default=None, metadata=OMITTED)


def path_records(given: Any, count: int) -> tuple[PathRecord, ...]:
    """The runs of so many paths, from a document; one that is malformed there is called by its number."""
    listed = given if isinstance(given, list) else []
    return tuple(_record(listed[k] if k < len(listed) else None, k) for k in range(count))


def _record(given: Any, place: int) -> PathRecord:
    if isinstance(given, Mapping):
        try:
            record: PathRecord = adapter_of(PathRecord).validate_python(given)
        except ValueError:  # pydantic's error is one
            record = PathRecord(label="")
        if 0 < len(record.label) <= LONGEST_LABEL:
            return record
    return PathRecord(label=f"path {place + 1}")


# ----------------------------------------------------------------------------------------------------
# What the document of a landscape says of the range of its axes where that was found and not given.

# How an axis ends: where the loss has changed by the target, before it is no longer finite, or where nobody looks on.
AxisEnd = Literal["target", "finite", "farthest"]
# What the target follows from: the loss of guessing, the loss at the origin, or the least change that is worth showing.
TargetRule = Literal["guessing", "origin", "least"]


@dataclass(frozen=True, kw_only=True)
class FoundAxis:
    """How far an axis runs, from -radius to radius.

    Attributes:
        change: abs(L − L₀) there, the larger one of both ends.
        end: why there.
    """

    radius: Annotated[float, Strict(), Field(gt=0)]
    change: Real
    end: AxisEnd


@dataclass(frozen=True, kw_only=True)
class FoundRange:
    """The range that was found, axis by axis.

    Attributes:
        target: the change of the loss that was looked for.
        evaluations: how many were made, of all samples each.
    """

    target: Real
    rule: TargetRule
    axes: tuple[FoundAxis, ...]
    evaluations: Count
