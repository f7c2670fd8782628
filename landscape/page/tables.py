"""The points that a figure shows, as a table in CSV."""

from __future__ import annotations

import csv
import io

import numpy as np

from landscape.page.answers import Answer, pack, utf8
from landscape.page.figures import prepared
from landscape.page.queries import FigureQuery
from landscape.page.runs import RunReader
from landscape.surface.surface import RISE_STDERR
from landscape.views.draw.figure import figure_name
from landscape.views.prepare.figure import FigureData


def csv_answer(run: RunReader, query: FigureQuery) -> Answer:
    """The answer of `api/csv`: a row per drawn point, alpha fastest.

    Raises:
        As `figures.prepared`.
    """
    shown = prepared(run, query)
    name = figure_name(shown.view.surface, shown.kind, query.observable, query.log)
    body = utf8(table(shown.data, shown.view.surface.status))
    return pack(body, "text/csv; charset=utf-8", file=f"{name}.csv")


def table(data: FigureData, status: np.ndarray) -> str:
    """The coordinates, the values with their standard errors, the rise over the origin with its own, and the status."""
    grids = np.meshgrid(*(axis.coordinates for axis in reversed(data.axes)), indexing="ij")
    columns: dict[str, np.ndarray] = {axis.name: grid for axis, grid in zip(data.axes, reversed(grids), strict=True)}
    for each in (data, *data.beside):
        columns[each.observable] = each.values
        if each.error is not None:
            columns[f"{each.observable}_stderr"] = each.error
        if each.rise is not None and each.rise_error is not None:
            columns |= {"loss_rise": each.rise, RISE_STDERR: each.rise_error}
    columns["status"] = status
    if data.interpolated is not None:
        columns["interpolated"] = data.interpolated
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(values.ravel().tolist() for values in columns.values()), strict=True))
    return text.getvalue()
