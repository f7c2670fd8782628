"""The loss by bits and the steps of rounding, below the figure of a quantised landscape."""

from __future__ import annotations

from landscape.surface.surface import Surface
from landscape.views.lines import lines_svg
from landscape.views.markup import rows_table
from landscape.views.prepare.compared import COLUMNS, bits_table, compared_of, drawn_bits, drawn_steps, ends_of_steps
from landscape.views.prepare.levels import number


def compared_section(surface: Surface) -> str:
    """Pictures and a table; empty where `landscape compare --keep` has kept nothing of the landscape."""
    found, steps, rows = compared_of(surface), drawn_steps(surface), bits_table(surface)
    bits, log = drawn_bits(surface)
    parts = list[str]()
    if found is not None and bits:
        ends = (f"{found.bits[0].bits}", f"{found.bits[-1].bits} bits")
        label = "Loss at the origin by bits" + (", logarithmic" if log else "")
        parts.append(lines_svg(bits, ends, label, lambda value: number(10**value if log else value, 4)))
    if steps:
        parts.append(
            lines_svg(steps, ends_of_steps(surface), "Rise of each loss over its own at the origin, on a short line")
        )
    if rows:
        parts.append(rows_table("Loss at the origin by bits", COLUMNS, rows))
    return f'<div class="ways"><h3>Rounding</h3>{"".join(parts)}</div>' if parts else ""
