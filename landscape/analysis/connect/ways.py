"""The line and the curve between two networks, evaluated; and the same as a landscape's document keeps it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.compute.executor import AtPoints, AtWeights, Calculators, setting_of
from landscape.compute.prepared import PreparedJob
from landscape.evaluation.values import Values
from landscape.model.parameters import State
from landscape.surface.barriers import Barrier, Barriers, Curve, PathColumns, barriers_of, curve_places, path_columns
from landscape.surface.record_entries import BarrierRecord, ConnectionRecord, WayRecord, finite_or_none

Floats = NDArray[np.float64]

POINTS = 61  # of the line and of the curve, as Garipov et al. 2018 evaluate
AT_ONCE = 8  # points that one question asks for


@dataclass(frozen=True)
class Values1D:
    """Observables along the line or the curve, over t [n], with the columns and barriers that describe them.

    Attributes:
        values: means and standard errors by name, as those of a surface, [n] each.
        loss: Garipov's columns of the loss, over the length in weight space.
    """

    t: Floats
    values: Mapping[str, Floats]
    loss: PathColumns
    barriers: Barriers | None


def both_ways(
    prepared: PreparedJob, ends: Sequence[State], kind: Curve, points: int, calculators: Calculators
) -> tuple[Values1D, Values1D]:
    """The line and the curve, evaluated as points of the plane; the ends as whole networks, so by their own bytes."""
    (landscape,) = prepared.landscapes
    networks = [axis.record.networks or () for axis in landscape.directions]
    corners = np.array([[network.at for network in axis] for axis in networks]).T
    t = np.linspace(0, 1, points)
    ways = [np.stack([t, 0 * t], axis=1) * corners[1, 0], curve_places(kind, corners, t)]
    inner = np.concatenate([way[1:-1] for way in ways])
    with calculators(prepared, landscape, 2 * points) as calculator:
        setting = setting_of(landscape)
        pieces = [AtPoints(inner[begin : begin + AT_ONCE]) for begin in range(0, len(inner), AT_ONCE)]
        between = [_numbers(each) for each in calculator.ask(setting, pieces)]
        wholes = calculator.ask(setting, [AtWeights(calculator.share(end)) for end in ends])
        # The error of the rise at the second network is known at its point of the plane alone.
        (at_second,) = calculator.ask(setting, [AtPoints(corners[1:2])])
    names = list(_numbers(wholes[0]))
    along = {name: np.concatenate([part[name] for part in between]) for name in between[0]}
    return (
        _described(t, ways[0], {name: along[name][: points - 2] for name in along}, wholes, at_second, names),
        _described(t, ways[1], {name: along[name][points - 2 :] for name in along}, wholes, at_second, names),
    )


def _numbers(values: Values) -> dict[str, Floats]:
    """Means and standard errors by name, [n] each."""
    errors = {f"{name}_stderr": array for name, array in values.stderr.items()}
    rise = {} if values.rise_stderr is None else {"loss_rise_stderr": values.rise_stderr}
    return {**values.mean, **errors, **rise}


def _described(
    t: Floats, places: Floats, inner: Mapping[str, Floats], ends: Sequence[Values], second: Values, names: Sequence[str]
) -> Values1D:
    first, last = (_numbers(end) for end in ends)
    values = {name: np.concatenate([first[name], inner[name], last[name]]) for name in names}
    if second.rise_stderr is not None:
        values["loss_rise_stderr"] = np.concatenate([[0.0], inner["loss_rise_stderr"], second.rise_stderr])
    lengths = np.linalg.norm(np.diff(places, axis=0), axis=1)
    barriers = barriers_of(t, values, float(values["loss"][0]), None)
    return Values1D(t, values, path_columns(values["loss"], lengths), barriers)


def way_record(way: Values1D) -> WayRecord:
    """A way as it is kept: what is not finite is None."""
    barriers = {} if way.barriers is None else {
        name: BarrierRecord(height=each.height, alpha=each.alpha, stderr=finite_or_none(each.stderr))
        for name, each in (
            ("entezari", way.barriers.entezari), ("git_re_basin", way.barriers.git_re_basin),
            ("frankle", way.barriers.frankle),
        ) if each is not None
    }  # fmt: skip
    return WayRecord(
        values={name: tuple(map(finite_or_none, values.tolist())) for name, values in way.values.items()},
        columns={name: finite_or_none(value) for name, value in asdict(way.loss).items()},
        barriers=barriers,
    )


def recorded_ways(record: ConnectionRecord) -> tuple[Values1D, Values1D] | None:
    """The line and the curve that a document keeps; None where they are not whole."""
    t, found = np.array(record.t), []
    for way in (record.on_line, record.on_curve):
        values = {name: np.array(list(map(_or_nan, numbers))) for name, numbers in way.values.items()}
        if "loss" not in values or any(len(numbers) != len(t) for numbers in values.values()):
            return None
        barriers = {name: Barrier(each.height, each.alpha, _or_nan(each.stderr)) for name, each in way.barriers.items()}
        heights = [barriers.get(name) for name in ("entezari", "git_re_basin", "frankle")]
        both = None if heights[0] is None or heights[1] is None else Barriers(heights[0], heights[1], heights[2])
        columns = {name: _or_nan(way.columns.get(name)) for name in PathColumns.__dataclass_fields__}
        found.append(Values1D(t, values, PathColumns(**columns), both))
    return found[0], found[1]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
