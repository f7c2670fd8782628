"""What clients are answered, as JSON values and as raw numbers; the same fields for REST and gRPC."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cluster.serving.derivatives import Curvature, Gradient
from cluster.serving.described import Described
from cluster.serving.resolver import SOURCES, Found
from cluster.serving.sources import Version
from landscape.evaluation.values import Floats
from landscape.surface.derived import derive
from landscape.surface.surface import RISE_STDERR


@dataclass(frozen=True)
class Named:
    """Which landscape of which version of which model an answer is of."""

    model: str
    version: int
    landscape: str
    described: Described

    def document(self) -> dict[str, Any]:
        """The fields that every answer begins with."""
        return {
            "model": self.model, "version": self.version, "landscape": self.landscape,
            "axes": [axis.name for axis in self.described.axes],
        }  # fmt: skip

    def values(self, found: Found, rise: bool) -> dict[str, Floats]:
        """The values of points by name, [P] each: what is computed, and what is derived from it as in every view."""
        columns = np.ascontiguousarray(found.table.T)
        named: dict[str, Floats] = dict(zip(self.described.columns, columns, strict=True))
        error = named.pop(RISE_STDERR)
        named |= derive(dict(self.described.derived), named)
        return {**named, RISE_STDERR: error} if rise else named


def points_document(named: Named, points: Floats, found: Found, rise: bool) -> dict[str, Any]:
    """The answer for points, and for a line."""
    return {
        **named.document(),
        "points": points.tolist(),
        "values": {name: numbers(column) for name, column in named.values(found, rise).items()},
        "status": found.status.tolist(),
        "source": [SOURCES[each] for each in found.source.tolist()],
    }


def patch_document(named: Named, coordinates: Sequence[Floats], found: Found, rise: bool) -> dict[str, Any]:
    """The answer for a patch, its arrays [beta, alpha]."""
    shape = tuple(len(each) for each in reversed(coordinates))
    source = np.array(SOURCES)[found.source].reshape(shape).tolist()
    values = {name: numbers(column.reshape(shape)) for name, column in named.values(found, rise).items()}
    return {
        **named.document(),
        "coordinates": {axis.name: each.tolist() for axis, each in zip(named.described.axes, coordinates, strict=True)},
        "values": values,
        "status": found.status.reshape(shape).tolist(),
        "source": source,
    }


def row_document(
    named: Named, index: Sequence[int], place: Sequence[float], found: Found, rise: bool
) -> dict[str, Any]:
    """One row of a patch that is streamed: the place of the row along the other axes, and its values."""
    axes = [axis.name for axis in reversed(named.described.axes[1:])]
    return {
        "row": list(index),
        **dict(zip(axes, place, strict=True)),
        "values": {name: numbers(column) for name, column in named.values(found, rise).items()},
        "status": found.status.tolist(),
        "source": [SOURCES[each] for each in found.source.tolist()],
    }


def gradient_document(named: Named, found: Gradient) -> dict[str, Any]:
    """The answer for a gradient."""
    return {
        **named.document(), "point": list(found.point), "loss": number(found.loss),
        "gradient": numbers(found.gradient), "stderr": numbers(found.stderr),
    }  # fmt: skip


def curvature_document(named: Named, found: Curvature) -> dict[str, Any]:
    """The answer for curvature."""
    return {
        **named.document(), "point": list(found.point), "curvature": numbers(found.curvature),
        "eigenvalues": numbers(found.eigenvalues), "method": found.method,
    }  # fmt: skip


def models_document(models: Mapping[str, Sequence[tuple[Version, Mapping[str, Described]]]]) -> dict[str, Any]:
    """The list of all that is served."""
    return {
        "models": [
            {
                "name": name,
                "latest": versions[-1][0].number,
                "versions": [
                    {
                        "version": version.number,
                        "place": version.place,
                        "landscapes": [{"name": each, **known.document()} for each, known in landscapes.items()],
                    }
                    for version, landscapes in versions
                ],
            }
            for name, versions in models.items()
        ]
    }


def numbers(values: Any) -> Any:
    """Numbers as JSON has them: null where one is not finite."""
    array = np.asarray(values, np.float64)
    if np.isfinite(array).all():
        return array.tolist()
    return _with_nulls(array.tolist())


def number(value: float) -> float | None:
    """A number as JSON has it: null where it is not finite."""
    return value if math.isfinite(value) else None


def _with_nulls(values: Any) -> Any:
    return [_with_nulls(each) for each in values] if isinstance(values, list) else number(values)
