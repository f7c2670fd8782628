"""What the pointer shows of a point: its value ± two standard errors, and its rise over the origin ± its own two."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.views.draw.layout import text
from landscape.views.draw.theme import typed
from landscape.views.prepare.figure import FigureData

Floats = NDArray[np.float64]

NOTE = "%{text}"
INTERPOLATED = ", interpolated"  # the page's script knows these points by it


def pointer_values(data: FigureData) -> tuple[NDArray[np.float64], str]:
    """The numbers that the pointer shows of each point, and plotly's template for them.

    Of a refined landscape the template ends with the text of `pointer_notes`, as plotly has one for all points.

    Returns:
        [..., columns] with the shape of the values first, NaN but for the value where a point was not evaluated; and a
        template of which the part after "|" is the rise.
    """
    columns = pointer_columns(data.values, data.error, data.rise, data.rise_error)
    value = "%{customdata[0]:.5g}"
    if data.interpolated is not None:
        columns[data.interpolated > 0, 1:] = np.nan
        return columns, f"{value}{NOTE}"
    if data.error is not None:
        value += " ± %{customdata[1]:.2g} (2 s.e.)"
    if data.rise is not None and data.rise_error is not None:
        k = columns.shape[-1] - 2
        value += f"|%{{customdata[{k}]:.4g}} ± %{{customdata[{k + 1}]:.2g}} (2 s.e.)"
    return columns, value


def pointer_notes(data: FigureData) -> NDArray[np.object_] | None:
    """What stands after each value of a refined landscape: its errors and its rise, or that it is interpolated.

    Returns:
        Texts in the shape of the values, None of a landscape of which every point was evaluated.
    """
    if data.interpolated is None:
        return None
    notes = np.full(data.values.shape, INTERPOLATED, np.object_)
    for index in zip(*np.nonzero(data.interpolated == 0), strict=True):
        note = "" if data.error is None else f" ± {2 * data.error[index]:.2g} (2 s.e.)"
        if data.rise is not None and data.rise_error is not None:
            note += f"<br>rise over the origin {data.rise[index]:.4g} ± {2 * data.rise_error[index]:.2g} (2 s.e.)"
        notes[index] = note
    return notes


def pointer_columns(
    values: Floats, error: Floats | None, rise: Floats | None, rise_error: Floats | None
) -> NDArray[np.float64]:
    """The numbers of `pointer_values`, of which the errors are doubled; what is not known has no column."""
    columns = [values]
    columns += [2 * error] if error is not None else []
    columns += [rise, 2 * rise_error] if rise is not None and rise_error is not None else []
    return np.stack(columns, axis=-1)


def pointer_text(name: str, value: str) -> str:
    """The lines that the pointer shows for one observable; `value` is the template of `pointer_values`.

    Args:
        name: of the observable, plain text, of which plotly takes nothing for markup or for a place of its template.
    """
    shown, _, rise = value.partition("|")
    plain = text(name).replace("%{", "&#37;{")
    bold, note = shown.removesuffix(NOTE), NOTE if shown.endswith(NOTE) else ""
    return f"<b>{plain} {bold}</b>{note}" + (f"<br>rise over the origin {rise}" if rise else "")


def of_heights(data: FigureData) -> dict[str, Any]:
    """What the pointer shows of a surface over two axes, as options of its trace.

    Plotly looks up the numbers and texts of a surface by [x, y], though its heights are [y, x].
    """
    notes = pointer_notes(data)
    return {
        "customdata": typed(pointer_values(data)[0].swapaxes(0, 1)),
        "text": None if notes is None else notes.T,
        "hovertemplate": plane_hover(data),
    }


def plane_hover(data: FigureData) -> str:
    """Plotly's template for a point of two axes."""
    names = [axis.name for axis in data.axes]
    value = pointer_text(data.observable.replace("_", " "), pointer_values(data)[1])
    return f"{names[0]} %{{x:.4g}}<br>{names[1]} %{{y:.4g}}<br>{value}<extra></extra>"
