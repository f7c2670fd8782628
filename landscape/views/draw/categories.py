"""A plane whose values stand for names: which layer breaks, and by which rule. A colour for each name that occurs."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from landscape.core.errors import capped
from landscape.views.draw.layout import Style, text
from landscape.views.draw.plane import bar_length, draw_plane
from landscape.views.prepare.figure import FigureData

NOTHING = {"light": "#e8eaee", "dark": "#2b313c"}  # of the first name, where nothing breaks
# Told apart with any colour vision (Okabe and Ito 2008), then again from the beginning.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#7f3c8d")
LONGEST = 24  # characters of a name


def draw_categories(data: FigureData, style: Style) -> go.Figure:
    """Each point in the colour of the name that its value stands for; names that do not occur have none."""
    assert data.categories is not None
    finite = data.drawn[np.isfinite(data.drawn)]
    codes = [int(code) for code in np.unique(finite)] or [0]
    names = [_name(data.categories, code) for code in codes]
    places = np.searchsorted(codes, np.where(np.isfinite(data.drawn), data.drawn, codes[0])).astype(np.float64)
    texts = np.array(names, object)[places.astype(int)]
    places[~np.isfinite(data.drawn)] = np.nan
    colours = _colours(codes, style.theme)
    share = 1 / len(codes)
    scale = [[edge * share, colour] for k, colour in enumerate(colours) for edge in (k, k + 1)]
    field = go.Heatmap(
        x=data.axes[0].coordinates,
        y=data.axes[1].coordinates,
        z=places,
        zmin=-0.5,
        zmax=len(codes) - 0.5,
        colorscale=scale,
        text=[[text(str(each)) for each in row] for row in texts],
        hovertemplate=f"{data.axes[0].name} %{{x:.4g}}, {data.axes[1].name} %{{y:.4g}}<br>%{{text}}<extra></extra>",
        name=text(data.observable),
        meta={"role": "categories"},
        colorbar={
            "title": {"text": text(data.observable.replace("_", " ")), "side": "top", "font": {"size": 13}},
            "thickness": 14,
            "len": bar_length(data),
            "lenmode": "pixels",
            "x": 1.02,
            "xanchor": "left",
            "outlinewidth": 0,
            "tickfont": {"size": 11},
            "tickmode": "array",
            "tickvals": list(range(len(codes))),
            "ticktext": [text(capped(name, LONGEST)) for name in names],
        },
    )
    figure = draw_plane(data, [field], style)
    longest = max(min(len(name), LONGEST) for name in names)
    room = 40 + 7 * longest
    if room > figure.layout.margin.r:
        figure.update_layout(width=figure.layout.width + room - figure.layout.margin.r, margin={"r": room})
    return figure


def _name(categories: tuple[str, ...], code: int) -> str:
    return categories[code] if 0 <= code < len(categories) else str(code)


def _colours(codes: list[int], theme: str) -> list[str]:
    """Different ones as far as there are, those of neighbours in the bar always."""
    named = [code for code in codes if code != 0]
    return [NOTHING[theme] if code == 0 else COLOURS[named.index(code) % len(COLOURS)] for code in codes]
