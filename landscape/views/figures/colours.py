"""Colours: the scales that values are drawn in, and the lines of curves on light and on dark paper."""

from __future__ import annotations

from typing import Any

import numpy as np
from plotly.colors import get_colorscale, sample_colorscale

from landscape.errors import JobError, nearest, shown

# A colour scale is a line here: its name and plotly's name for it. The first three are safe for all readers.
COLOUR_TABLE = {
    "cividis": "Cividis",
    "viridis": "Viridis",
    "magma": "Magma",
    "inferno": "Inferno",
    "plasma": "Plasma",
    "turbo": "Turbo",
    "jet": "Jet",
    "rdbu": "RdBu_r",  # reversed: blue is low
}
COLOUR_SCALES = tuple(COLOUR_TABLE)
DEFAULT_SCALE = "viridis"
CURVES = ("#2f5d9b", "#b35c00", "#3a7d44", "#7a4fa3")  # told apart by panel first, by colour second
DARK_CURVES = ("#7fb0ef", "#f0a04b", "#7cc88a", "#c09ae0")


def check_scale(name: str) -> str:
    """The name as given.

    Raises:
        JobError: there is no colour scale of that name.
    """
    if name not in [*COLOUR_TABLE]:
        raise JobError(f"colour_scale: unknown {shown(name)}; {nearest(str(name), COLOUR_TABLE)}")
    return name


def colour_scale(name: str, low: float = 0.0, high: float = 1.0) -> list[list[Any]]:
    """The named scale as [[position, colour], …]; `low` and `high` cut off ends too faint for thin lines.

    Raises:
        JobError: there is no colour scale of that name.
    """
    base = get_colorscale(COLOUR_TABLE[check_scale(name)])
    positions = np.linspace(0, 1, 33)
    # Rounding must not step beyond the ends of the scale, where plotly looks for a colour that is not there.
    colours = sample_colorscale(base, np.clip(low + (high - low) * positions, 0.0, 1.0))
    return [[float(position), colour] for position, colour in zip(positions, colours, strict=True)]
