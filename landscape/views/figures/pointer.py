"""What the pointer shows of a point: its value ± two standard errors, and its rise over the origin ± its own two."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from landscape.views.prepared.prepare import Grid


def pointer_values(grid: Grid) -> tuple[NDArray[np.float64], str]:
    """Per point the numbers [..., columns], and plotly's template that shows them."""
    columns = [grid.values]
    value = "%{customdata[0]:.5g}"
    if grid.error is not None:
        columns.append(2 * grid.error)
        value += " ± %{customdata[1]:.2g}"
    if grid.rise is not None and grid.rise_error is not None:
        k = len(columns)
        columns += [grid.rise, 2 * grid.rise_error]
        value += f"|%{{customdata[{k}]:.4g}} ± %{{customdata[{k + 1}]:.2g}}"
    return np.stack(columns, axis=-1), value


def pointer_text(name: str, value: str) -> str:
    """The lines for one observable."""
    shown, _, rise = value.partition("|")
    return f"<b>{name} {shown}</b>" + (f"<br>rise over the origin {rise}" if rise else "")
