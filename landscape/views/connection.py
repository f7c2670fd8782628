"""The line and the curve between two networks, below the figure of their plane."""

from __future__ import annotations

from landscape.surface.surface import Surface
from landscape.views.lines import lines_svg
from landscape.views.markup import rows_table
from landscape.views.prepare.connection import COLUMNS, connection_table, drawn_ways


def connection_section(surface: Surface) -> str:
    """A picture of the loss on both, and a table; empty where `landscape connect` did not compute the plane."""
    rows = connection_table(surface)
    if not rows:
        return ""
    ways = drawn_ways(surface)
    picture = lines_svg(ways, ("t = 0", "1"), "Loss") if ways else ""
    table = rows_table("The line and the curve", COLUMNS, rows)
    return f'<div class="ways"><h3>The line and the curve</h3>{picture}{table}</div>'
