"""A small picture of two lines that needs no script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from landscape.views.markup import svg_texts
from landscape.views.prepare.connection import DrawnWay
from landscape.views.prepare.levels import number

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 190, 62, 14, 12, 24  # of the picture in pixels, and its margins
DASHES = ("5 4", "")  # of the first line, and of the second


def lines_svg(
    lines: Sequence[DrawnWay],
    ends: tuple[str, str],
    label: str,
    of: Callable[[float], str] = lambda value: number(value, 3),
) -> str:
    """Two lines over places from 0 to 1, the first dashed, with a caption that names both.

    Args:
        ends: what stands below the places 0 and 1.
        label: what the picture shows, in words.
        of: the text of a height.
    """
    known = [value for line in lines for value in line.values if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    span = high - low or abs(high) or 1.0

    def place(t: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * t
        return f"{x:.1f} {TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / span:.1f}"

    paths = [_path(line, place, dash) for line, dash in zip(lines, DASHES, strict=True)]
    labels = svg_texts([
        (LEFT - 6, TOP + 8, "end", of(high)), (LEFT - 6, HEIGHT - BOTTOM, "end", of(low)),
        (LEFT, HEIGHT - 6, "start", ends[0]), (WIDTH - RIGHT, HEIGHT - 6, "end", ends[1]),
    ])  # fmt: skip
    caption = f"{label}: {lines[0].title} dashed, {lines[1].title} solid"
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(label)}">'
        f"{''.join(paths)}{labels}</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _path(line: DrawnWay, place: Callable[[float, float], str], dash: str) -> str:
    """One line; where a value is not known it is cut."""
    parts, pen = list[str](), "M"
    for t, value in zip(line.t, line.values, strict=True):
        if value is None:
            pen = "M"
            continue
        parts.append(pen + place(t, value))
        pen = "L"
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{"".join(parts)}" fill="none" stroke="currentColor" stroke-width="1.6"{dashed}/>'
