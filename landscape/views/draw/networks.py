"""The marks of the networks that a plane runs through, with their names, and the curve between two of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.layout import Style, text
from landscape.views.draw.theme import PATH_HALO
from landscape.views.prepare.figure import FigureData

SIZE, LABEL_PX = 13, 18


def network_names(data: FigureData) -> list[str]:
    """The legend entries of the marks and of the curve, where there are any."""
    return [] if data.networks is None else [data.networks.title, *([data.networks.curve_name] * has_curve(data))]


def has_curve(data: FigureData) -> bool:
    """Whether a curve is drawn between the networks."""
    return data.networks is not None and data.networks.curve.size > 0


def flat_networks(data: FigureData, style: Style) -> list[go.Scatter]:
    """The curve, and the networks as diamonds, at their true coordinates on a plane."""
    networks = data.networks
    if networks is None:
        return []
    traces = []
    if has_curve(data):
        line = {"x": networks.curve[0], "y": networks.curve[1], "mode": "lines", "meta": {"role": "curve"}}
        halo, ink = (
            {"color": colour, "width": style.path_width + more}
            for colour, more in ((PATH_HALO, 3), (style.path_colour, 0))
        )
        traces.append(go.Scatter(line=halo, opacity=0.85, hoverinfo="skip", showlegend=False, **line))
        traces.append(go.Scatter(line=ink, hoverinfo="skip", name=networks.curve_name, **line))
    edge = {"color": PATH_HALO, "width": 1.5}
    marks = go.Scatter(
        x=networks.places[0],
        y=networks.places[1],
        mode="markers",
        marker={"symbol": "diamond", "size": SIZE, "color": style.path_colour, "line": edge},
        name=networks.title,
        hovertext=list(networks.hover),
        hoverinfo="text",
        meta={"role": "networks"},
    )
    return [*traces, marks]


def network_labels(data: FigureData) -> list[dict[str, Any]]:
    """The names above the marks as annotations, on a light ground so that they read on any colour."""
    if data.networks is None:
        return []
    return [
        {
            "x": float(x),
            "y": float(y),
            "text": f"<b>{text(name)}</b>",
            "yshift": LABEL_PX,
            "showarrow": False,
            "font": {"size": 11, "color": "#1c2530"},
            "bgcolor": "rgba(255,255,255,0.78)",
            "borderpad": 1,
            "name": "network",
        }
        for x, y, name in zip(*data.networks.places, data.networks.names, strict=True)
    ]


def space_networks(data: FigureData, style: Style, lift: float) -> list[go.Scatter3d]:
    """The networks and the curve on the surface, `lift` above it; those beyond the grid are left out."""
    networks = data.networks
    if networks is None or not np.isfinite(networks.heights).any():
        return []
    traces = []
    if has_curve(data):
        traces.append(
            go.Scatter3d(
                x=networks.curve[0],
                y=networks.curve[1],
                z=networks.curve_heights + lift,
                mode="lines",
                line={"color": style.path_colour, "width": style.path_width * 2.4},
                hoverinfo="skip",
                name=networks.curve_name,
                meta={"role": "curve"},
            )
        )
    marks = go.Scatter3d(
        x=networks.places[0],
        y=networks.places[1],
        z=networks.heights + lift,
        mode="markers+text",
        text=[text(name) for name in networks.names],
        textposition="top center",
        marker={"symbol": "diamond", "size": 5, "color": style.path_colour},
        name=networks.title,
        hovertext=list(networks.hover),
        hoverinfo="text",
        meta={"role": "networks"},
    )
    return [*traces, marks]
