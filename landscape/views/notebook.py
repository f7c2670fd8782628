"""How a surface and a run show themselves in a notebook: live where plotly's renderer is, else as a static picture."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from html import escape
from importlib.util import find_spec
from typing import Any

from landscape.core.errors import LandscapeError
from landscape.surface.surface import Surface
from landscape.views.draw.figure import choose_kind, figure, figure_name
from landscape.views.draw.theme import config
from landscape.views.prepare.levels import number
from landscape.views.prepare.words import resolution, state_text
from landscape.views.small import small_svg

PLOTLY = "application/vnd.plotly.v1+json"  # what JupyterLab, VS Code and Colab draw with plotly
MOST_POINTS = {1: 2001, 2: 161, 3: 25}  # per axis, as a notebook's file keeps what it shows
MOST_ROWS = 30  # of a run's table


def surface_bundle(surface: Surface) -> dict[str, Any]:
    """A surface in the forms that a notebook may choose from: plotly's figure, a static picture, text.

    The static picture is a PNG by matplotlib where that is installed, which every reader of notebooks shows, and else a
    small SVG: a browser would take seconds.
    """
    bundle: dict[str, Any] = {"text/plain": repr(surface)}
    try:
        drawn = figure(surface, max_points=MOST_POINTS[len(surface.axes)])
        settings = config(figure_name(surface))
        bundle[PLOTLY] = json.loads(drawn.to_json()) | {"config": settings}
        bundle |= _static(surface)
    except LandscapeError:  # the text remains: a notebook must not fail on what it displays
        pass
    return bundle


def _static(surface: Surface) -> dict[str, Any]:
    if find_spec("matplotlib") is None:
        return {"image/svg+xml": small_svg(surface, 480)}
    from landscape.views.picture import png_picture

    picture = png_picture(surface, choose_kind(surface, None), MOST_POINTS[len(surface.axes)])
    return {"image/png": base64.b64encode(picture).decode("ascii")}


def run_bundle(run: Mapping[str, Surface]) -> dict[str, Any]:
    """A run as a table of its landscapes with small pictures, and as text."""
    names = list(run)
    rows = [_row(run, name) for name in names[:MOST_ROWS]]
    more = f"<p>… and {len(names) - MOST_ROWS} more landscapes</p>" if len(names) > MOST_ROWS else ""
    unreadable: Mapping[str, str] = getattr(run, "unreadable", {})
    rows += [_cells("", name, "", reason, "") for name, reason in unreadable.items()]
    heads = "".join(f"<th>{head}</th>" for head in ("", "landscape", "points", "state", "lowest loss"))
    title = f"<p><b>{escape(str(getattr(run, 'path', '')))}</b></p>"
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    empty = "<p>no landscapes yet</p>"
    return {"text/plain": repr(run), "text/html": title + (table if rows else empty) + more}


def _row(run: Mapping[str, Surface], name: str) -> str:
    try:
        surface = run[name].merged()
        picture = base64.b64encode(small_svg(surface, 120).encode()).decode("ascii")
    except LandscapeError as error:
        return _cells("", name, "", str(error), "")
    lowest = surface.minimum().get("loss")
    image = f'<img alt="{escape(name)}" src="data:image/svg+xml;base64,{picture}"/>'
    return _cells(image, name, resolution(surface), state_text(surface), "" if lowest is None else number(lowest))


def _cells(image: str, *words: str) -> str:
    return f"<tr><td>{image}</td>{''.join(f'<td>{escape(word)}</td>' for word in words)}</tr>"
