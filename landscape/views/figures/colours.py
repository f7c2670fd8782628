"""Colours: the scales that values are drawn in, and the lines of curves on light and on dark paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from plotly.colors import get_colorscale, sample_colorscale

from landscape.errors import JobError, nearest, shown
from landscape.views.prepared.scale import Scale


@dataclass(frozen=True)
class ColourMap:
    """A colour scale: its name for readers, plotly's name, whether equal steps of the value look equal, and a warning.

    Only a perceptual scale rises evenly in lightness, so that it invents no edges, survives grey print and serves
    readers who are colour-blind.
    """

    title: str
    plotly: str
    perceptual: bool = True
    warning: str = ""


BANDS = "its lightness rises and falls again, which shows edges where the values have none"
TWO_SIDED = "its pale middle looks like a special value, which the values need not have; bad in grey print"

# A colour scale is a line here. Those that mislead come last: they are for pictures that are compared with others'.
COLOUR_TABLE = {
    "viridis": ColourMap("Viridis", "Viridis"),
    "cividis": ColourMap("Cividis", "Cividis"),
    "magma": ColourMap("Magma", "Magma"),
    "inferno": ColourMap("Inferno", "Inferno"),
    "plasma": ColourMap("Plasma", "Plasma"),
    "thermal": ColourMap("Thermal", "thermal"),
    "greys": ColourMap("Greys", "Greys_r"),  # reversed: dark is low, as in the others
    "turbo": ColourMap("Turbo", "Turbo", False, BANDS),
    "jet": ColourMap("Jet", "Jet", False, BANDS),
    "rdbu": ColourMap("RdBu", "RdBu_r", False, TWO_SIDED),  # reversed: blue is low
}
COLOUR_SCALES = tuple(COLOUR_TABLE)
DEFAULT_SCALE = "viridis"
CURVES = ("#2f5d9b", "#b35c00", "#3a7d44", "#7a4fa3")  # told apart by panel first, by colour second
DARK_CURVES = ("#7fb0ef", "#f0a04b", "#7cc88a", "#c09ae0")


def scale_warning(name: str) -> list[str]:
    """What the caption says of a scale that misleads, such as 'Jet misleads: …'; nothing of a perceptual one."""
    look = COLOUR_TABLE[name]
    return [f"{look.title} misleads: {look.warning}"] if look.warning else []


def check_scale(name: str) -> str:
    """The name as given.

    Raises:
        JobError: there is no colour scale of that name.
    """
    if name not in [*COLOUR_TABLE]:
        raise JobError(f"colour_scale: unknown {shown(name)}; {nearest(str(name), COLOUR_TABLE)}")
    return name


# The part of a colour scale that lines are drawn in, without the end that is too faint for thin lines: of most scales
# the bright end on light paper and the dark end on dark paper.
LINE_PART = {"light": (0.0, 0.88), "dark": (0.35, 1.0)}


def colour_scale(name: str) -> list[list[Any]]:
    """The named scale as plotly's [[position, colour], …].

    Raises:
        JobError: there is no colour scale of that name.
    """
    positions = np.linspace(0, 1, 33)
    return [[float(at), colour] for at, colour in zip(positions, colours_at(name, positions), strict=True)]


def colours_at(name: str, positions: Any) -> list[str]:
    """The colours of the named scale at these positions, from 0 (low) to 1 (high).

    Raises:
        JobError: there is no colour scale of that name.
    """
    base = get_colorscale(COLOUR_TABLE[check_scale(name)].plotly)
    # Rounding must not step beyond the ends of the scale, where plotly looks for a colour that is not there.
    return [str(colour) for colour in sample_colorscale(base, np.clip(positions, 0.0, 1.0))]


def band_colours(name: str, scale: Scale) -> list[list[Any]]:
    """A colour per band between two levels, that of its middle, at the places where plotly looks for them."""
    edges = np.array([scale.low, *scale.ticks, scale.high])
    return _at_even_places(colours_at(name, _share(scale, (edges[1:] + edges[:-1]) / 2)))


def line_colours(name: str, scale: Scale, theme: str) -> list[list[Any]]:
    """A colour per level, at the places where plotly looks for them, none of them too faint for that theme."""
    start, stop = LINE_PART[theme]
    colours = colours_at(name, start + (stop - start) * _share(scale, np.array(scale.ticks)))
    return _at_even_places(colours if len(colours) > 1 else colours * 2)


# The colours of values in drawn units, as one kind of drawing shows them.
Shades = Callable[[Any], list[str]]


def even_shades(name: str, scale: Scale) -> Shades:
    """The colours of a surface, which change evenly."""
    return lambda drawn: colours_at(name, _share(scale, np.asarray(drawn)))


def band_shades(name: str, scale: Scale) -> Shades:
    """The colours of the bands between two levels that values lie in."""

    def shades(drawn: Any) -> list[str]:
        bands = [str(colour) for _, colour in band_colours(name, scale)]
        return [bands[k] for k in np.searchsorted(np.array(scale.ticks), np.asarray(drawn), side="right")]

    return shades


def line_shades(name: str, scale: Scale, theme: str) -> Shades:
    """The colours of isolines, also of values between two of them."""
    start, stop = LINE_PART[theme]
    return lambda drawn: colours_at(name, start + (stop - start) * np.clip(_share(scale, np.asarray(drawn)), 0, 1))


def _share(scale: Scale, drawn: Any) -> Any:
    """Where values in drawn units lie in the range drawn, from 0 to 1."""
    return (drawn - scale.low) / (scale.high - scale.low)


def _at_even_places(colours: Sequence[str]) -> list[list[Any]]:
    return [[k / (len(colours) - 1), colour] for k, colour in enumerate(colours)]
