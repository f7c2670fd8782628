"""Looks shared by all figures: light and dark templates, hatches for missing points, the buttons beside a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, QUARANTINED
from landscape.views.prepare.scale import NO_LOGARITHM, NO_SIGN, UNRESOLVED

FONT = "Inter, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
PATH_COLOUR, PATH_HALO = "#d6336c", "#ffffff"
INK = {"light": "#1c2530", "dark": "#e6e9ee"}  # lines and words
PAPER = {"light": "#ffffff", "dark": "#14181f"}

# The reasons for a missing point differ by hatch and by symbol, so that they can be told apart without colour too.
HATCH = {
    NOT_COMPUTED: {"shape": "/", "fgcolor": "#b4bac4", "bgcolor": "#eceef1", "symbol": "square", "solid": "#9aa3b0"},
    NOT_FINITE: {"shape": "x", "fgcolor": "#ffffff", "bgcolor": "#3b3f46", "symbol": "circle", "solid": "#3b3f46"},
    QUARANTINED: {"shape": ".", "fgcolor": "#8a3b00", "bgcolor": "#f6c9a0", "symbol": "diamond", "solid": "#c2570c"},
    NO_LOGARITHM: {"shape": "-", "fgcolor": "#57606a", "bgcolor": "#ffffff", "symbol": "cross", "solid": "#57606a"},
    UNRESOLVED: {"shape": "|", "fgcolor": "#7d93ad", "bgcolor": "#e6edf5", "symbol": "square-open", "solid": "#7d93ad"},
    NO_SIGN: {"shape": "\\", "fgcolor": "#8c8c5a", "bgcolor": "#f4f1d6", "symbol": "diamond-open", "solid": "#8c8c5a"},
}
DARK_HATCH = {
    NOT_COMPUTED: {"fgcolor": "#5b6675", "bgcolor": "#252b35"},
    NOT_FINITE: {"fgcolor": "#14181f", "bgcolor": "#aab2be"},
    QUARANTINED: {"fgcolor": "#ffb37a", "bgcolor": "#5a2a08"},
    NO_LOGARITHM: {"fgcolor": "#98a3b3", "bgcolor": "#14181f"},
    UNRESOLVED: {"fgcolor": "#9fb6d1", "bgcolor": "#22303f"},
    NO_SIGN: {"fgcolor": "#d6d19a", "bgcolor": "#3a3820"},
}
DARK_SOLID = {
    NOT_COMPUTED: "#7b8696",
    NOT_FINITE: "#e3e7ee",
    QUARANTINED: "#ffb37a",
    NO_LOGARITHM: "#98a3b3",
    UNRESOLVED: "#9fb6d1",
    NO_SIGN: "#d6d19a",
}


def _template(ink: str, muted: str, paper: str, line: str) -> go.layout.Template:
    axis = {
        "gridcolor": line,
        "linecolor": muted,
        "zerolinecolor": line,
        "tickcolor": muted,
        "ticks": "outside",
        "ticklen": 4,
        "showline": True,
        "mirror": True,
        "title": {"font": {"size": 13}, "standoff": 8},
        "automargin": True,
    }
    scene_axis = {
        "gridcolor": line,
        "linecolor": muted,
        "zerolinecolor": line,
        "backgroundcolor": paper,
        "showbackground": True,
        "tickfont": {"size": 11},
        "title": {"font": {"size": 12}},
    }
    layout = go.Layout(
        font={"family": FONT, "size": 12, "color": ink},
        paper_bgcolor=paper,
        plot_bgcolor=paper,
        title={"font": {"size": 16}, "x": 0.5, "xanchor": "center"},
        xaxis=axis,
        yaxis=axis,
        scene={"xaxis": scene_axis, "yaxis": scene_axis, "zaxis": scene_axis},
        legend={"bgcolor": "rgba(0,0,0,0)", "font": {"size": 11}},
        hoverlabel={
            "bgcolor": paper,
            "bordercolor": muted,
            "font": {"color": ink, "size": 12},
            "align": "left",
            "namelength": -1,
        },
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": muted, "activecolor": ink},
    )
    return go.layout.Template(layout=layout)


TEMPLATES = {
    "light": _template(INK["light"], "#5a6675", PAPER["light"], "#dfe3e8"),
    "dark": _template(INK["dark"], "#98a3b3", PAPER["dark"], "#303845"),
}


def config(filename: str = "landscape") -> dict[str, Any]:
    """What `fig.show(config=…)` and `fig.write_html(config=…)` take: no cloud, and the name of a saved PNG."""
    return {
        "showSendToCloud": False,
        "displaylogo": False,
        "responsive": True,
        "toImageButtonOptions": {"format": "png", "filename": filename, "scale": 3},
    }


def themed(options: Mapping[str, Mapping[str, Any]], theme: str, **meta: Any) -> dict[str, Any]:
    """Options of a trace that differ by theme, and all of them in its meta, by which a page changes the theme.

    Args:
        options: options of a plotly trace per theme, as nested mappings.
        meta: joins the meta of the trace, such as its role.
    """
    return {**options[theme], "meta": {**meta, "themed": options}}


def typed(values: Any) -> Any:
    """The values as float32, which is finer than any screen and half the bytes; as float64 where they are too large."""
    array = np.asarray(values, np.float64)
    finite = array[np.isfinite(array)]
    return array if finite.size and np.abs(finite).max() > 3e38 else array.astype(np.float32)
