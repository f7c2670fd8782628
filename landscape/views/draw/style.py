"""Colours: the scales that values are drawn in, and the lines of curves on light and on dark paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from plotly.colors import get_colorscale, hex_to_rgb, sample_colorscale

from landscape.core.errors import JobError, nearest, shown
from landscape.views.prepare.scale import Scale


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
DIVERGING = "rdbu"  # of signed values, unless another scale is asked for: blue below 0, red above, pale at 0
SIGN_LINES = {  # of contour lines of signed values, by their sign
    -1: {"light": "#2166ac", "dark": "#7fb0ef"},
    0: {"light": "#1c2530", "dark": "#e6e9ee"},
    1: {"light": "#b2182b", "dark": "#f4937c"},
}
CURVES = ("#2f5d9b", "#b35c00", "#3a7d44", "#7a4fa3")  # told apart by panel first, by colour second
DARK_CURVES = ("#7fb0ef", "#f0a04b", "#7cc88a", "#c09ae0")


# Lines between bands, and on surfaces: white ones vanish where colours are pale.
BETWEEN, ON_SURFACE = "rgba(255,255,255,0.55)", "rgba(255,255,255,0.75)"
BETWEEN_PALE, ON_PALE_SURFACE = "rgba(60,70,85,0.35)", "rgba(60,70,85,0.55)"


# The functions below take a name of `COLOUR_TABLE`, or None where no scale was asked for: then signed values are drawn
# in `DIVERGING`, others in `DEFAULT_SCALE`.


def is_centred(name: str | None, scale: Scale) -> bool:
    """Whether the colours of a range have their middle at 0: those of signed values on a scale of two sides."""
    return scale.signed and name in (None, DIVERGING)


def scale_warning(name: str | None, scale: Scale) -> list[str]:
    """What the caption says of the colours: where their middle is 0, or that the scale misleads."""
    if is_centred(name, scale):
        return ["Colours are pale at 0, blue below and red above"]
    look = COLOUR_TABLE[name or DEFAULT_SCALE]
    return [f"{look.title} misleads: {look.warning}"] if look.warning else []


def check_scale(name: str | None) -> str | None:
    """The name as given.

    Raises:
        JobError: there is no colour scale of that name.
    """
    if name is not None and name not in [*COLOUR_TABLE]:
        raise JobError(f"colour_scale: unknown {shown(name)}; {nearest(str(name), COLOUR_TABLE)}")
    return name


# The part of a colour scale that lines are drawn in, without the end that is too faint for thin lines: of most scales
# the bright end on light paper and the dark end on dark paper.
LINE_PART = {"light": (0.0, 0.88), "dark": (0.35, 1.0)}


def colour_scale(name: str | None, scale: Scale | None = None) -> list[list[Any]]:
    """The named scale as plotly's [[position, colour], …].

    Args:
        scale: the range that it is for; default: any of values without a sign.

    Raises:
        JobError: there is no colour scale of that name.
    """
    positions = np.linspace(0, 1, 33)
    colours = colours_at(name, positions)
    if scale is not None and is_centred(name, scale):
        # As the middle is not at one of even positions, what is next to it needs positions of its own.
        middle = np.clip(-scale.low / (scale.high - scale.low), 0.0, 1.0)
        positions = np.unique([*positions, middle])
        colours = colours_of(name, scale, scale.low + positions * (scale.high - scale.low))
    return [[float(at), colour] for at, colour in zip(positions, colours, strict=True)]


def colours_of(name: str | None, scale: Scale, drawn: Any) -> list[str]:
    """The colours of values in drawn units."""
    if not is_centred(name, scale):
        return colours_at(name, (drawn - scale.low) / (scale.high - scale.low))
    return colours_at(DIVERGING, 0.5 + 0.5 * drawn / scale.reach)


def colours_at(name: str | None, positions: Any) -> list[str]:
    """The colours of the named scale at these positions, from 0 (low) to 1 (high).

    Raises:
        JobError: there is no colour scale of that name.
    """
    base = get_colorscale(COLOUR_TABLE[check_scale(name) or DEFAULT_SCALE].plotly)
    # Rounding must not step beyond the ends of the scale, where plotly looks for a colour that is not there.
    return [str(colour) for colour in sample_colorscale(base, np.clip(positions, 0.0, 1.0))]


def band_colours(name: str | None, scale: Scale) -> list[list[Any]]:
    """A colour per band between two levels, that of its middle, at the places where plotly looks for them."""
    edges = np.array([scale.low, *scale.ticks, scale.high])
    return _at_even_places(colours_of(name, scale, (edges[1:] + edges[:-1]) / 2))


def line_colours(name: str | None, scale: Scale, theme: str) -> list[list[Any]]:
    """A colour per level, at the places where plotly looks for them, none of them too faint for that theme."""
    start, stop = LINE_PART[theme]
    ticks = np.array(scale.ticks)
    colours = (
        [f"rgb{hex_to_rgb(SIGN_LINES[sign][theme])}" for sign in signs_of(scale)]
        if is_centred(name, scale)
        else colours_at(name, start + (stop - start) * (ticks - scale.low) / (scale.high - scale.low))
    )
    return _at_even_places(colours if len(colours) > 1 else colours * 2)


def signs_of(scale: Scale) -> list[int]:
    """The sign of each contour line of a range: −1, 0 or 1."""
    ticks = np.array(scale.ticks)
    none = np.abs(ticks) <= max(1e-9 * max(abs(scale.low), abs(scale.high)), scale.zero)
    return [int(sign) for sign in np.where(none, 0, np.sign(ticks))]


# The colours of values in drawn units, as one kind of drawing shows them.
Shades = Callable[[Any], list[str]]


def even_shades(name: str | None, scale: Scale) -> Shades:
    """The colours of a surface, which change evenly."""
    return lambda drawn: colours_of(name, scale, np.asarray(drawn))


def band_shades(name: str | None, scale: Scale) -> Shades:
    """The colours of the bands between two levels that values lie in."""

    def shades(drawn: Any) -> list[str]:
        bands = [str(colour) for _, colour in band_colours(name, scale)]
        return [bands[k] for k in np.searchsorted(np.array(scale.ticks), np.asarray(drawn), side="right")]

    return shades


def line_shades(name: str | None, scale: Scale, theme: str) -> Shades:
    """The colours of isolines, also of values between two of them."""
    start, stop = LINE_PART[theme]
    return lambda drawn: colours_at(name, start + (stop - start) * np.clip(_share(scale, np.asarray(drawn)), 0, 1))


def _share(scale: Scale, drawn: Any) -> Any:
    """Where values in drawn units lie in the range drawn, from 0 to 1."""
    return (drawn - scale.low) / (scale.high - scale.low)


def _at_even_places(colours: Sequence[str]) -> list[list[Any]]:
    return [[k / (len(colours) - 1), colour] for k, colour in enumerate(colours)]
