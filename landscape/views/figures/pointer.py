"""What the pointer shows of a point: its value ± two standard errors, and its rise over the origin ± its own two."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from landscape.views.prepared.figure_data import FigureData


def pointer_values(data: FigureData) -> tuple[NDArray[np.float64], str]:
    """The numbers that the pointer shows of each point, and plotly's template for them.

    Returns:
        [..., columns] with the shape of the values first, and a template of which the part after "|" is the rise.
    """
    columns = [data.values]
    value = "%{customdata[0]:.5g}"
    if data.error is not None:
        columns.append(2 * data.error)
        value += " ± %{customdata[1]:.2g}"
    if data.rise is not None and data.rise_error is not None:
        k = len(columns)
        columns += [data.rise, 2 * data.rise_error]
        value += f"|%{{customdata[{k}]:.4g}} ± %{{customdata[{k + 1}]:.2g}}"
    return np.stack(columns, axis=-1), value


def pointer_text(name: str, value: str) -> str:
    """The lines that the pointer shows for one observable; `value` is the template of `pointer_values`."""
    shown, _, rise = value.partition("|")
    return f"<b>{name} {shown}</b>" + (f"<br>rise over the origin {rise}" if rise else "")


def plane_hover(data: FigureData) -> str:
    """Plotly's template for a point of two axes."""
    names = [axis.name for axis in data.axes]
    value = pointer_text(data.observable.replace("_", " "), pointer_values(data)[1])
    return f"{names[0]} %{{x:.4g}}<br>{names[1]} %{{y:.4g}}<br>{value}<extra></extra>"
