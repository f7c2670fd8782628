"""Which layer breaks first at the points of a tile, as observables of it: a map of where the network breaks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.layers import LayersSeen, layers_at
from landscape.evaluation.values import Floats, Values
from landscape.model.layer_statistics import Statistics
from landscape.surface.record_entries import LayersRecord


def with_layers(evaluator: Evaluator, points: Floats, values: Values, record: LayersRecord) -> Values:
    """The values of points, and with them the first layer that breaks at each, the rule, and statistics of layers.

    `first_layer` and `first_rule` are places in the record's lists, counted from 1; 0 where nothing breaks. They have
    no standard error over the samples: NaN.

    Args:
        points: coordinates [points, axes].
        values: the observables there.
    """
    start, names = time.perf_counter(), record.observables
    table = np.array([_row(layers_at(evaluator, point), record) for point in points.tolist()], np.float64)
    table = table.reshape(len(points), len(names))
    found = {name: np.ascontiguousarray(table[:, column]) for column, name in enumerate(names)}
    errors = {name: np.full(len(points), np.nan) for name in names}
    seconds = values.seconds + time.perf_counter() - start
    return replace(values, mean={**values.mean, **found}, stderr={**values.stderr, **errors}, seconds=seconds)


def _row(seen: LayersSeen, record: LayersRecord) -> Sequence[float]:
    known = {layer.name: layer.statistics for layer in seen.layers}
    nothing = Statistics()
    of_layers = [known.get(name, nothing) for name in record.layers]
    numbers = [_number(each, statistic) for each in of_layers for statistic in record.statistics]
    findings = seen.findings(record.rules)
    if not findings:
        return [0.0, 0.0, *numbers]
    first, names, rules = findings[0], record.names, list(record.rules)
    place = names.index(first.layer) if first.layer in names else len(names)
    return [place + 1.0, rules.index(first.rule) + 1.0, *numbers]


def _number(known: Statistics, statistic: str) -> float:
    """A statistic by its name; of what is not finite and of zeros the share."""
    shares = {"zeros": known.zeros, "not_finite": known.not_finite}
    if statistic in shares:
        return known.share(shares[statistic])
    values = {"min": known.low, "max": known.high, "mean": known.mean, "spread": known.spread}
    return values.get(statistic, known.magnitude)
