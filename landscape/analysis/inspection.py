"""A point of a landscape inspected: its loss as the landscape has it, its layers, and those of the origin beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from landscape.compute.executor import AtPoints, Calculators, here, setting_of
from landscape.compute.prepare import prepare
from landscape.compute.recorded import Callback, recorded_job
from landscape.compute.tasks import LayersAt
from landscape.core.errors import JobError, shown
from landscape.core.validation import is_number, refuse_too_far
from landscape.evaluation.layers import LayersSeen
from landscape.model.layer_rules import RULES, Finding, asked_rules
from landscape.store.landscape import LandscapeStore
from landscape.store.results import open_run
from landscape.surface.surface import NOT_FINITE

EVALUATIONS = 12  # two points, each watched, with gradients
HERE = here()


@dataclass(frozen=True)
class Inspection:
    """What was found at a point.

    Attributes:
        run, name: which landscape.
        axes: the names of its axes.
        point: the coordinates.
        why: how the point was chosen, where nobody named it; else ''.
        loss, stderr: of the mean over the samples, to the bit what the landscape has there.
        origin_loss: at the origin, likewise.
        here, origin: the layers of both.
        findings: the rules that fire at the point, the first layer that breaks first.
        at_origin: those that fire at the origin.
        thresholds: of the rules that were asked.
    """

    run: str
    name: str
    axes: tuple[str, ...]
    point: tuple[float, ...]
    why: str
    loss: float
    stderr: float
    origin_loss: float
    here: LayersSeen
    origin: LayersSeen
    findings: tuple[Finding, ...]
    at_origin: tuple[Finding, ...]
    thresholds: dict[str, float]

    @property
    def first(self) -> Finding | None:
        """What the first layer that breaks has: of those that hold at the origin, where there is one."""
        known = {(each.layer, each.rule) for each in self.at_origin}
        new = [each for each in self.findings if (each.layer, each.rule) not in known]
        return next(iter(new or self.findings), None)


def inspect_point(
    run: str | Path,
    name: str,
    *,
    at: Sequence[float] | None = None,
    gradients: bool = False,
    rules: Any = None,
    problem: Callback | None = None,
    folder: Path | None = None,
    calculator: Calculators = HERE,
) -> Inspection:
    """Say which layer of the network goes wrong first at a point of a landscape, and how; nothing is written.

    Args:
        at: the coordinates, also beyond the grid; default: the first point whose loss is not finite, else the origin.
        gradients: of the mean loss, per parameter, too; always where the rules are of these alone.
        rules: names of rules, or {name: threshold}; default: all with their defaults.
        problem: the callback; default: the one that the landscape was computed with, by its name.
        folder: where the callback is looked up first; default: where it was then.
        calculator: gives who answers; default: this process.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: `at` is no point of its axes, a rule is unknown, or its problem cannot be made anew.
        ClusterUnreachableError, Interrupted: as computing does.
    """
    thresholds = asked_rules("rules", True if rules is None else rules)
    targets = {RULES[name].target for name in thresholds}
    if targets == {"changes"}:
        raise JobError(
            f"rules: must name rules of weights, outputs or gradients, not {shown(rules)}; a point is no step"
        )
    gradients = gradients or not targets & {"weights", "outputs"}
    seen_here = {"weights", "outputs", *(["gradients"] if gradients else [])}
    thresholds = {name: value for name, value in thresholds.items() if RULES[name].target in seen_here}
    path = open_run(run).path
    store = LandscapeStore.open(path, name)
    axes = tuple(axis.name for axis in open_run(path)[name].axes)
    point, why = (_checked(at, axes), "") if at is not None else _chosen(path, name, len(axes))
    prepared = prepare(recorded_job(path, store, problem, folder), reading=True)
    landscape = prepared.landscapes[0]
    refuse_too_far("at", point, landscape.plan.precision)
    setting, origin = setting_of(landscape), (0.0,) * len(axes)
    with calculator(prepared, landscape, EVALUATIONS) as answers:
        # The layers first: where user code raises they say in which one.
        seen = answers.ask(setting, [LayersAt(each, gradients) for each in dict.fromkeys((point, origin))])
        (values,) = answers.ask(setting, [AtPoints(np.array([point, origin], np.float64))])
    found = [tuple(each.findings(thresholds)) for each in seen]
    losses, errors = values.mean["loss"].tolist(), values.stderr["loss"].tolist()
    return Inspection(
        path, name, axes, point, why, losses[0], errors[0], losses[1], seen[0], seen[-1], found[0], found[-1],
        thresholds,
    )  # fmt: skip


def _checked(at: Sequence[float], axes: Sequence[str]) -> tuple[float, ...]:
    """The coordinates of a point of the axes.

    Raises:
        JobError: they are of other axes, or no finite numbers.
    """
    point = tuple(at)
    if not all(is_number(each) for each in point):
        raise JobError(f"at: must be finite numbers, not {shown(list(point))}")
    if len(point) != len(axes):
        raise JobError(f"at: must have a number for each of the axes {', '.join(axes)}, not {len(point)}")
    return tuple(map(float, point))


def _chosen(run: str, name: str, axes: int) -> tuple[tuple[float, ...], str]:
    """The first point of the grid whose loss is not finite, or the origin; and which of them it is."""
    surface = open_run(run)[name]
    places = np.argwhere(surface.status == NOT_FINITE)
    if not len(places):
        return (0.0,) * axes, "the origin, as no point of the grid is without a finite loss"
    index = places[0][::-1]  # in the store the last axis comes first
    point = tuple(float(axis.coordinates[place]) for axis, place in zip(surface.axes, index, strict=True))
    return point, f"the first of {len(places)} points without a finite loss"
