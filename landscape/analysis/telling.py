"""What an inspection found, in lines and as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from landscape.analysis.inspection import Inspection
from landscape.core.errors import flat
from landscape.evaluation.layers import LayersSeen
from landscape.model.layer_rules import Finding, Tensors
from landscape.model.layer_statistics import Statistics
from landscape.model.layer_watch import Layer

LONGEST_NAME = 36
MOST_FINDINGS = 12
COLUMNS = ("min", "max", "mean", "spread", "zeros", "not finite", "× origin")


def plain_inspection(found: Inspection) -> dict[str, Any]:
    """As JSON holds it; numbers that are not finite are null."""
    first = found.first
    return {
        "run": found.run,
        "landscape": found.name,
        "at": dict(zip(found.axes, found.point, strict=True)),
        "loss": _finite(found.loss),
        "loss_stderr": _finite(found.stderr),
        "origin_loss": _finite(found.origin_loss),
        "first": None if first is None else {**first.plain(), **_born(found.here, first), "text": first.text},
        "findings": [each.plain() for each in found.findings],
        "origin_findings": [each.plain() for each in found.at_origin],
        "thresholds": found.thresholds,
        "layers": [_plain_layer(each) for each in found.here.layers],
        "weights": [_plain_tensors(each) for each in found.here.weights],
        "gradients": None if found.here.gradients is None else [_plain_tensors(each) for each in found.here.gradients],
        "no_gradients": found.here.no_gradients or None,
        "origin_layers": [_plain_layer(each) for each in found.origin.layers],
    }


def inspection_text(found: Inspection) -> str:
    """The point and its loss, what breaks first, the other findings, and a table of layers.

    Its last column is the mean of abs(x) over that at the origin.
    """
    place = ", ".join(f"{axis} {each:.6g}" for axis, each in zip(found.axes, found.point, strict=True))
    lines = [
        f"{found.name} at {place}{f' ({found.why})' if found.why else ''}",
        f"{_loss(found)}; {_number(found.origin_loss)} at the origin",
        "",
        *_verdict(found),
        "",
    ]
    at_origin = {layer.name: layer.statistics for layer in found.origin.layers}
    rows = [(_named(layer), layer.statistics, at_origin.get(layer.name)) for layer in found.here.layers]
    lines += _table("layer", rows)
    if found.here.gradients is not None:
        there = {each.layer: each.statistics for each in found.origin.gradients or ()}
        of_gradients = [(each.layer, each.statistics, there.get(each.layer)) for each in found.here.gradients]
        lines += ["", *_table("gradient by", of_gradients)]
    elif found.here.no_gradients:
        lines += ["", f"gradients: {found.here.no_gradients}"]
    return "\n".join(lines)


def _loss(found: Inspection) -> str:
    if not math.isfinite(found.loss):
        return "loss not finite"
    error = f" ± {_number(2 * found.stderr)} (2 s.e.)" if math.isfinite(found.stderr) else ""
    return f"loss {_number(found.loss)}{error}"


def _verdict(found: Inspection) -> list[str]:
    """What breaks first, and what else."""
    first = found.first
    if first is None:
        return [f"no rule fires: {len(found.here.layers)} layers and operations, {len(found.thresholds)} rules"]
    born = _born(found.here, first).get("operation")
    lines = [f"breaks first: {first.text}{f'; by the operation {born}' if born else ''}"]
    others = [each for each in found.findings if each is not first]
    lines += [f"  then: {each.text}" for each in others[:MOST_FINDINGS]]
    if len(others) > MOST_FINDINGS:
        lines.append(f"  and {len(others) - MOST_FINDINGS} more")
    if found.at_origin:
        known = {(each.layer, each.rule) for each in found.at_origin}
        same = sum((each.layer, each.rule) in known for each in found.findings)
        lines.append(f"  at the origin {len(found.at_origin)} fire, {same} of these among them")
    return lines


def _born(seen: LayersSeen, finding: Finding) -> dict[str, str]:
    """The operation that made the first value that is not finite, where the finding is of such values."""
    layer = next((each for each in seen.layers if each.name == finding.layer), None)
    return {"operation": layer.born} if layer is not None and layer.born and "overflow" in finding.rule else {}


def _table(title: str, rows: Sequence[tuple[str, Statistics, Statistics | None]]) -> list[str]:
    cells = [(title, *COLUMNS), *((flat(name, LONGEST_NAME), *_cells(now, before)) for name, now, before in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *numbers in cells:
        aligned = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *aligned]))
    return lines


def _cells(now: Statistics, before: Statistics | None) -> tuple[str, ...]:
    numbers = (now.low, now.high, now.mean, now.spread)
    ratio = math.nan if before is None or not before.magnitude else now.magnitude / before.magnitude
    return (*map(_number, numbers), _share(now, now.zeros), _share(now, now.not_finite), _number(ratio))


def _share(known: Statistics, count: int) -> str:
    return "0" if not count else f"{100 * known.share(count):.3g} %"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


def _named(layer: Layer) -> str:
    return layer.name if layer.kind == "operation" else f"{layer.name} ({layer.kind})"


def _plain_layer(layer: Layer) -> dict[str, Any]:
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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
