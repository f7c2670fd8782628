"""The exact values of a point, and the slopes of the loss there, as the page shows them; a service computes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from landscape.core.errors import JobError
from landscape.page.queries import Query, as_number
from landscape.page.runs import RunReader
from landscape.page.service import ServiceError, answer_of
from landscape.store.landscape import LandscapeStore, read_axes
from landscape.store.state import finite
from landscape.surface.derived import derive
from landscape.surface.surface import RISE_STDERR
from landscape.views.prepare.words import observable_title

ROUNDING = 1e-6  # of a step: a coordinate as near to that of the grid as this is the grid's own


@dataclass(frozen=True)
class PointQuery:
    """A point of a landscape, a coordinate for each axis."""

    run: str
    landscape: str
    at: tuple[float, ...]


def point_query(query: Query) -> PointQuery:
    """The parameters of `api/exact` and `api/slopes`.

    Raises:
        JobError: one of them is wrong; the message names it.
    """
    run, landscape = landscape_of(query)
    at = numbers_of(query, "at")
    query.refuse_others()
    return PointQuery(run, landscape, at)


def landscape_of(query: Query) -> tuple[str, str]:
    """The run and the landscape that an address names."""
    return query.needed("run", "a run by its identifier"), query.needed("landscape", "a landscape of the run")


def numbers_of(query: Query, name: str) -> tuple[float, ...]:
    """A coordinate for each axis.

    Raises:
        JobError: one of them is no finite number, or there are too many.
    """
    texts = query.needed(name, "a coordinate for each axis, such as 0.5,-1").split(",")
    if len(texts) > 3:
        raise JobError(f"{name}: must be a coordinate for each axis, not {len(texts)}")
    return tuple(as_number(name, text.strip()) for text in texts)


def exact_answer(run: RunReader, asked: PointQuery) -> dict[str, Any]:
    """The answer of `api/exact`: every value of a point with its error, and whether it was stored or computed.

    Raises:
        JobError: the point does not fit the axes.
        ServiceError: no service answers.
    """
    store = run.reader(asked.landscape).store()
    point = placed(store, asked.at)
    found = answer_of(run.found.path, asked.landscape, "points", {"points": [point], "rise": True})
    with understood():
        values = {name: column[0] for name, column in values_of(store, found).items()}
        source, status = str(found["source"][0]), int(found["status"][0])
    origin, rise_error = store.record.origin_loss, values.pop(RISE_STDERR, math.nan)
    names = [name for name in store.record.surfaces if name in values]
    named = [
        {"name": name, "title": observable_title(name), "value": values[name], "stderr": values.get(f"{name}_stderr")}
        for name in names
    ]
    rise = None if origin is None else {"value": values["loss"] - origin, "stderr": rise_error}
    return dict(finite({"at": point, "source": source, "status": status, "values": named, "rise": rise}))


def slopes_answer(run: RunReader, asked: PointQuery) -> dict[str, Any]:
    """The answer of `api/slopes`: the gradient of the loss along the axes with its errors, and the curvature there.

    Raises:
        JobError: the point does not fit the axes.
        ServiceError: no service answers, or the loss has no derivatives.
    """
    point = placed(run.reader(asked.landscape).store(), asked.at)
    gradient, curvature = (
        answer_of(run.found.path, asked.landscape, kind, {"point": point}) for kind in ("gradient", "curvature")
    )
    with understood():
        return dict(finite({
            "at": point,
            "gradient": [_number(each) for each in gradient["gradient"]],
            "stderr": [_number(each) for each in gradient["stderr"]],
            "curvature": [[_number(each) for each in row] for row in curvature["curvature"]],
            "eigenvalues": [_number(each) for each in curvature["eigenvalues"]],
        }))  # fmt: skip


def placed(store: LandscapeStore, at: Sequence[float]) -> list[float]:
    """A point whose coordinates are exactly those of the grid where they differ from them by rounding alone.

    Raises:
        JobError: the landscape has more or fewer axes.
    """
    axes = read_axes(store.arrays)
    if len(axes) != len(at):
        raise JobError(
            f"at: must be a coordinate for each axis, {', '.join(axis.name for axis in axes)}, not {len(at)}"
        )
    point = []
    for axis, given in zip(axes, at, strict=True):
        nearest = float(axis.coordinates[np.abs(axis.coordinates - given).argmin()])
        step = float(axis.coordinates[-1] - axis.coordinates[0]) / (len(axis.coordinates) - 1)
        point.append(nearest if abs(nearest - given) <= ROUNDING * abs(step) else given)
    return point


def values_of(store: LandscapeStore, found: Mapping[str, Any]) -> dict[str, list[float]]:
    """The values that a service answers, [P] each, with those that are derived from them; NaN where there is none."""
    columns = {str(name): np.array([_number(each) for each in column]) for name, column in found["values"].items()}
    columns |= derive(store.record.derived, columns)
    return {name: column.tolist() for name, column in columns.items()}


def _number(value: Any) -> float:
    """A number of an answer; NaN for null."""
    return math.nan if value is None else float(value)


@contextmanager
def understood() -> Iterator[None]:
    """Within the block an answer is read; one that has not the form of this version is refused.

    Raises:
        ServiceError: it has another form.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError):
        raise ServiceError("the service answers what this version does not understand; start it again") from None
