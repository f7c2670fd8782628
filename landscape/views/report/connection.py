"""The line and the curve between two networks, below the figure of their plane."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from landscape.surface import Surface
from landscape.views.prepared.connection import COLUMNS, DrawnWay, connection_table, drawn_ways
from landscape.views.prepared.levels import number
from landscape.views.report.markup import svg_texts

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 190, 62, 14, 12, 24  # of the picture in pixels, and its margins
DASHES = ("5 4", "")  # of the line, and of the curve


def connection_section(surface: Surface) -> str:
    """A picture of the loss on both, and a table; empty where `landscape connect` did not compute the plane."""
    rows = connection_table(surface)
    if not rows:
        return ""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in COLUMNS)
    body = "".join(
        f"<tr><th scope='row'>{escape(title)}</th>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"
        for title, *texts in rows
    )
    table = (
        '<div class="wide" tabindex="0" role="region" aria-label="The line and the curve">'
        f"<table><tr>{head}</tr>{body}</table></div>"
    )
    ways = drawn_ways(surface)
    return f'<div class="ways"><h3>The line and the curve</h3>{_picture(ways) if ways else ""}{table}</div>'


def _picture(ways: list[DrawnWay]) -> str:
    """The loss over t, without a script."""
    known = [value for way in ways for value in way.values if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    span = high - low or abs(high) or 1.0

    def place(t: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * t
        return f"{x:.1f} {TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / span:.1f}"

    lines = [_line(way, place, dash) for way, dash in zip(ways, DASHES, strict=True)]
    labels = svg_texts([
        (LEFT - 6, TOP + 8, "end", number(high, 3)), (LEFT - 6, HEIGHT - BOTTOM, "end", number(low, 3)),
        (LEFT, HEIGHT - 6, "start", "t = 0"), (WIDTH - RIGHT, HEIGHT - 6, "end", "1"),
    ])  # fmt: skip
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'aria-label="The loss on the line and on the curve">{"".join(lines)}{labels}</svg>'
        f"<figcaption>Loss: {escape(ways[0].title)} dashed, {escape(ways[1].title)} solid</figcaption></figure>"
    )


def _line(way: DrawnWay, place: Callable[[float, float], str], dash: str) -> str:
    """One way; where a value is not known the line is cut."""
    parts, pen = list[str](), "M"
    for t, value in zip(way.t, way.values, strict=True):
        if value is None:
            pen = "M"
            continue
        parts.append(pen + place(t, value))
        pen = "L"
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{"".join(parts)}" fill="none" stroke="currentColor" stroke-width="1.6"{dashed}/>'
