"""How far the axes run, in words, where the loss says it."""

from __future__ import annotations

from landscape.surface.record_entries import AxisEnd, FoundAxis, TargetRule
from landscape.surface.surface import Axis, Surface
from landscape.views.prepare.levels import number

RULES: dict[TargetRule, str] = {
    "guessing": "a third of the loss of guessing",
    "origin": "the loss at the origin",
    "least": "the least change that is looked for",
}
SHORT_OF_IT: dict[AxisEnd, str] = {
    "finite": "{name} only by {change}, beyond which it is not finite",
    "farthest": "{name} only by {change}, as far as it was looked at",
}


def range_in_words(surface: Surface) -> str:
    """How the range was found; '' where it was given, or the axes have been widened since.

    Such as 'range: found, where the loss along an axis has changed by 0.77 (a third of the loss of guessing)'.
    """
    found = surface.record.found_range
    if found is None or not all(map(_ends_there, surface.axes, found.axes)) or len(found.axes) != len(surface.axes):
        return ""
    text = f"range: found, where the loss along an axis has changed by {number(found.target, 2)} ({RULES[found.rule]})"
    short = [
        SHORT_OF_IT[each.end].format(name=axis.name, change=number(each.change, 2))
        for axis, each in zip(surface.axes, found.axes, strict=True)
        if each.end in SHORT_OF_IT
    ]
    return "; along ".join([text, *short])


def _ends_there(axis: Axis, found: FoundAxis) -> bool:
    return (float(axis.coordinates[0]), float(axis.coordinates[-1])) == (-found.radius, found.radius)
