"""The options of `landscape export` that say how a figure looks; each text is its help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from cluster.runtime.options import Flag, MaybeFlag, MaybeNumber, MaybeWhole


@dataclass(frozen=True)
class FigureOptions:
    """How figures are drawn: the options of `landscape.views.figure`, where None leaves the choice to it."""

    log: MaybeFlag = None
    """Logarithmic scale; default: where the values span more than two decades."""
    levels: MaybeWhole = None
    """About how many contour lines; they lie at round values. Default: about 12."""
    exact_levels: Flag = False
    """Exactly that many lines, evenly spaced, whatever their values."""
    zmin: MaybeNumber = None
    """The low end of the range drawn."""
    zmax: MaybeNumber = None
    """The high end of the range drawn."""
    clip: MaybeNumber = None
    """The percentile of the values at which the range ends, in place of --zmax."""
    uncertainty: Flag = False
    """Mark where the values cannot be told from that of the origin."""
    extrema: Flag = False
    """Mark the minima above the noise of sampling, and the saddles at which they merge."""
    colours: Annotated[str | None, Parameter(name=["--colours", "--colors"])] = None
    """viridis, cividis, magma, inferno, plasma, thermal or greys; turbo, jet and rdbu mislead. Default: viridis, and
    rdbu around 0 for values on both sides of it."""
    theme: str | None = None
    """light or dark."""
    preset: str | None = None
    """For print: column (3.25 in wide) or page (6.75 in), words of 7 to 9 pt, no title, no caption."""
    width: str | None = None
    """The width of the figure: 3.25in, 8cm, 80mm, 240pt or 312px; words keep their size."""
    font: str | None = None
    """The family of the font."""
    font_size: str | None = None
    """The size of the words, such as 8pt."""
    title: str | None = None
    """The title; default: the names of the landscape and of what is drawn."""
    no_title: Flag = False
    """No title."""
    caption: MaybeFlag = None
    """The caption below the figure; default: with one, unless --preset is given."""

    def of_figure(self) -> dict[str, Any]:
        """The options that were given, as `landscape.views.figure` takes them; `log` apart."""
        given: dict[str, Any] = {
            "levels": self.levels,
            "exact_levels": self.exact_levels or None,
            "zmin": self.zmin,
            "zmax": self.zmax,
            "clip": self.clip,
            "uncertainty": self.uncertainty or None,
            "extrema": self.extrema or None,
            "colour_scale": self.colours,
            "theme": self.theme,
            "preset": self.preset,
            "width": self.width,
            "font": self.font,
            "font_size": self.font_size,
            "title": False if self.no_title else self.title,
            "caption": self.caption,
        }
        return {name: value for name, value in given.items() if value is not None}
