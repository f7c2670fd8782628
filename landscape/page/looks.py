"""What all figures of the page have in common: templates, colour scales, kinds of drawings, plotly's settings."""

from __future__ import annotations

from typing import Any

import landscape
from landscape.views.draw.figure import KIND_TABLE, kinds_of
from landscape.views.draw.style import COLOUR_TABLE, DEFAULT_SCALE, TEMPLATES, colour_scale, config


def looks() -> dict[str, Any]:
    """The answer of `api/looks`."""
    return {
        "version": landscape.__version__,
        "templates": {theme: template.to_plotly_json() for theme, template in TEMPLATES.items()},
        "scales": {name: colour_scale(name) for name in COLOUR_TABLE},
        "default_scale": DEFAULT_SCALE,
        "scale_names": [
            {"name": name, "title": look.title, "perceptual": look.perceptual} for name, look in COLOUR_TABLE.items()
        ],
        "kinds": {
            axes: [{"name": name, "title": KIND_TABLE[name].title} for name in kinds_in_order(axes)]
            for axes in (1, 2, 3)
        },
        "config": config(),
    }


def kinds_in_order(axes: int) -> list[str]:
    """The kinds of drawings for a landscape of that many axes, in the order of the buttons."""
    return sorted(kinds_of(axes), key=lambda kind: KIND_TABLE[kind].tab)
