"""Inspect a point of a landscape: its loss in the landscape's arithmetic, its layers, and those of the origin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from landscape.compute.callback_place import Callback
from landscape.compute.executor import AtPoints, Executors, local_executors, setting_of
from landscape.compute.point_extras import LayersAt
from landscape.compute.prepare import prepare
from landscape.compute.recorded_job import recorded_job
from landscape.core.errors import JobError, flat, quoted
from landscape.core.text import finite_or_none, plus_minus
from landscape.core.validation import is_number, refuse_too_far
from landscape.evaluation.layers import LayersSeen
from landscape.model.layer_rules import RULES, LayerFinding, Tensors, asked_rules
from landscape.model.layer_statistics import ValueStatistics
from landscape.model.layer_watch import WatchedLayer
from landscape.store.landscape import LandscapeStore, named_landscape
from landscape.store.results import open_run
from landscape.surface.surface import NOT_FINITE, Surface

EVALUATIONS = 12  # two points, each watched, with gradients
HERE = local_executors()


@dataclass(frozen=True)
class Inspection:
    """The result of inspecting a point.

    Attributes:
        run, name: of the landscape.
        axes: the names of its axes.
        point: the coordinates.
        why: how the point was chosen, if it was not given; else ''.
        loss, stderr: of the mean over the samples, with the same bits as in the landscape.
        origin_loss: at the origin, likewise.
        here, origin: the layers at the point and at the origin.
        findings: the rules that fire at the point, the first breaking layer first.
        at_origin: the rules that fire at the origin.
        thresholds: of the applied rules.
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
    findings: tuple[LayerFinding, ...]
    at_origin: tuple[LayerFinding, ...]
    thresholds: dict[str, float]

    @property
    def first(self) -> LayerFinding | None:
        """The finding of the first breaking layer; one that does not fire at the origin, if there is one."""
        known = {(finding.layer, finding.rule) for finding in self.at_origin}
        new = [finding for finding in self.findings if (finding.layer, finding.rule) not in known]
        return next(iter(new or self.findings), None)


def inspect(
    run: str | Path | Surface,
    name: str | None = None,
    *,
    at: Sequence[float] | None = None,
    gradients: bool = False,
    rules: Any = None,
    problem: Callback | None = None,
    folder: Path | None = None,
    executor: Executors = HERE,
) -> Inspection:
    """Find which layer of the network breaks first at a point of a landscape, and how; nothing is written.

    Args:
        run: the run, or a surface of it.
        name: the landscape; default: that of the surface.
        at: the coordinates, also beyond the grid; default: the first point whose loss is not finite, else the origin.
        gradients: also inspect the gradients of the mean loss; always done if all rules are about gradients.
        rules: names of rules, or {name: threshold}; default: all with their defaults.
        problem: the callback; default: the one that the landscape was computed with, by its name.
        folder: where the callback is looked up first; default: where it was then.
        executor: returns the executor; default: this process.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: `at` is no point of its axes, a rule is unknown, or its problem cannot be made anew.
        ClusterUnreachableError, Interrupted: as computing does.
    """
    thresholds = asked_rules("rules", True if rules is None else rules)
    targets = {RULES[name].target for name in thresholds}
    if targets == {"changes"}:
        raise JobError(
            f"rules: must name rules of weights, outputs or gradients, not {quoted(rules)}; a point is no step"
        )
    gradients = gradients or not targets & {"weights", "outputs"}
    seen_here = {"weights", "outputs", *(["gradients"] if gradients else [])}
    thresholds = {name: value for name, value in thresholds.items() if RULES[name].target in seen_here}
    run, name = named_landscape(run, name)
    path = open_run(run).path
    store = LandscapeStore.open(path, name)
    axes = tuple(axis.name for axis in open_run(path)[name].axes)
    point, why = (_check_point(at, axes), "") if at is not None else _choose_point(path, name, len(axes))
    prepared = prepare(recorded_job(path, store, problem, folder), reading=True)
    landscape = prepared.landscapes[0]
    refuse_too_far("at", point, landscape.plan.precision)
    setting, origin = setting_of(landscape), (0.0,) * len(axes)
    with executor(prepared, landscape, EVALUATIONS) as answers:
        # The layers first: if user code raises, they tell in which one.
        seen = answers.ask(setting, [LayersAt(place, gradients) for place in dict.fromkeys((point, origin))])
        (values,) = answers.ask(setting, [AtPoints(np.array([point, origin], np.float64))])
    findings = [tuple(layers.findings(thresholds)) for layers in seen]
    losses, errors = values.mean["loss"].tolist(), values.stderr["loss"].tolist()
    return Inspection(
        path, name, axes, point, why, losses[0], errors[0], losses[1], seen[0], seen[-1], findings[0], findings[-1],
        thresholds,
    )  # fmt: skip


def _check_point(at: Sequence[float], axes: Sequence[str]) -> tuple[float, ...]:
    """The checked coordinates of a point.

    Raises:
        JobError: they do not fit the axes, or are no finite numbers.
    """
    point = tuple(at)
    if not all(is_number(coordinate) for coordinate in point):
        raise JobError(f"at: must be finite numbers, not {quoted(list(point))}")
    if len(point) != len(axes):
        raise JobError(f"at: must have a number for each of the axes {', '.join(axes)}, not {len(point)}")
    return tuple(map(float, point))


def _choose_point(run: str, name: str, axes: int) -> tuple[tuple[float, ...], str]:
    """The first grid point whose loss is not finite, else the origin; and the reason in words."""
    surface = open_run(run)[name]
    places = np.argwhere(surface.status == NOT_FINITE)
    if not len(places):
        return (0.0,) * axes, "the origin, as no point of the grid is without a finite loss"
    index = places[0][::-1]  # in the store the last axis comes first
    point = tuple(float(axis.coordinates[place]) for axis, place in zip(surface.axes, index, strict=True))
    return point, f"the first of {len(places)} points without a finite loss"


# ----------------------------------------------------------------------------------------------------
# The result of an inspection as lines and as plain values.

LONGEST_NAME = 36
MOST_FINDINGS = 12
COLUMNS = ("min", "max", "mean", "spread", "zeros", "not finite", "× origin")


def plain_inspection(found: Inspection) -> dict[str, Any]:
    """The result for JSON; non-finite numbers are null."""
    first = found.first
    return {
        "run": found.run,
        "landscape": found.name,
        "at": dict(zip(found.axes, found.point, strict=True)),
        "loss": finite_or_none(found.loss),
        "loss_stderr": finite_or_none(found.stderr),
        "origin_loss": finite_or_none(found.origin_loss),
        "first": None if first is None else {**first.plain(), **_born(found.here, first), "text": first.text},
        "findings": [finding.plain() for finding in found.findings],
        "origin_findings": [finding.plain() for finding in found.at_origin],
        "thresholds": found.thresholds,
        "layers": [_plain_layer(layer) for layer in found.here.layers],
        "weights": [_plain_tensors(tensors) for tensors in found.here.weights],
        "gradients": None
        if found.here.gradients is None
        else [_plain_tensors(tensors) for tensors in found.here.gradients],
        "no_gradients": found.here.no_gradients or None,
        "origin_layers": [_plain_layer(layer) for layer in found.origin.layers],
    }


def inspection_text(found: Inspection) -> str:
    """The point and its loss, what breaks first, the other findings, and a table of layers.

    Its last column is the mean of abs(x) over that at the origin.
    """
    place = ", ".join(f"{axis} {coordinate:.6g}" for axis, coordinate in zip(found.axes, found.point, strict=True))
    lines = [
        f"{found.name} at {place}{f' ({found.why})' if found.why else ''}",
        f"{_loss(found)}; {_number(found.origin_loss)} at the origin",
        "",
        *_verdict(found),
        "",
    ]
    at_origin = {layer.name: layer.statistics for layer in found.origin.layers}
    rows = [(_layer_label(layer), layer.statistics, at_origin.get(layer.name)) for layer in found.here.layers]
    lines += _table("layer", rows)
    if found.here.gradients is not None:
        there = {gradient.layer: gradient.statistics for gradient in found.origin.gradients or ()}
        of_gradients = [
            (gradient.layer, gradient.statistics, there.get(gradient.layer)) for gradient in found.here.gradients
        ]
        lines += ["", *_table("gradient by", of_gradients)]
    elif found.here.no_gradients:
        lines += ["", f"gradients: {found.here.no_gradients}"]
    return "\n".join(lines)


def _loss(found: Inspection) -> str:
    if not math.isfinite(found.loss):
        return "loss not finite"
    return f"loss {plus_minus(found.loss, found.stderr)}{' (2 s.e.)' if math.isfinite(found.stderr) else ''}"


def _verdict(found: Inspection) -> list[str]:
    """The first break, and further findings."""
    first = found.first
    if first is None:
        return [f"no rule fires: {len(found.here.layers)} layers and operations, {len(found.thresholds)} rules"]
    born = _born(found.here, first).get("operation")
    lines = [f"breaks first: {first.text}{f'; by the operation {born}' if born else ''}"]
    others = [finding for finding in found.findings if finding is not first]
    lines += [f"  then: {finding.text}" for finding in others[:MOST_FINDINGS]]
    if len(others) > MOST_FINDINGS:
        lines.append(f"  and {len(others) - MOST_FINDINGS} more")
    if found.at_origin:
        known = {(finding.layer, finding.rule) for finding in found.at_origin}
        same = sum((finding.layer, finding.rule) in known for finding in found.findings)
        lines.append(f"  at the origin {len(found.at_origin)} fire, {same} of these among them")
    return lines


def _born(seen: LayersSeen, finding: LayerFinding) -> dict[str, str]:
    """The operation that made the first non-finite value, for a finding about such values."""
    layer = next((one for one in seen.layers if one.name == finding.layer), None)
    return {"operation": layer.born} if layer is not None and layer.born and "overflow" in finding.rule else {}


def _table(title: str, rows: Sequence[tuple[str, ValueStatistics, ValueStatistics | None]]) -> list[str]:
    cells = [(title, *COLUMNS), *((flat(name, LONGEST_NAME), *_cells(now, before)) for name, now, before in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *numbers in cells:
        aligned = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *aligned]))
    return lines


def _cells(now: ValueStatistics, before: ValueStatistics | None) -> tuple[str, ...]:
    numbers = (now.low, now.high, now.mean, now.spread)
    ratio = math.nan if before is None or not before.magnitude else now.magnitude / before.magnitude
    return (*map(_number, numbers), _share(now, now.zeros), _share(now, now.not_finite), _number(ratio))


def _share(known: ValueStatistics, count: int) -> str:
    return "0" if not count else f"{100 * known.share(count):.3g} %"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


def _layer_label(layer: WatchedLayer) -> str:
    return layer.name if layer.kind == "operation" else f"{layer.name} ({layer.kind})"


def _plain_layer(layer: WatchedLayer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "kind": layer.kind,
        "activation": layer.activation or None,
        "shape": list(layer.shape),
        "dtype": layer.dtype,
        "in_model": layer.in_model,
        "operation": layer.born or None,
        **layer.statistics.plain(),
    }


def _plain_tensors(tensors: Tensors) -> Mapping[str, Any]:
    return {"name": tensors.layer, **tensors.statistics.plain()}
