"""Figures as compact JSON for a page: arrays that several figures share are stored once."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import plotly.graph_objects as go
from plotly.utils import PlotlyJSONEncoder

WORTH_SHARING = 200  # characters; below that a reference saves nothing


class Bundle:
    """Figures by name, with the arrays they share apart; the page's script puts those back before it draws.

    `comparisons` are the names of the figures that each choice of a comparison shows.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.figures: dict[str, Any] = {}
        self.comparisons: dict[str, list[str]] = {}

    def add(self, name: str, figure: go.Figure) -> None:
        """Take a figure; the template is left out, since the page brings one for light and one for dark."""
        plain = figure.to_plotly_json()
        plain["layout"].pop("template", None)
        self.figures[name] = self._shared(json.loads(json.dumps(plain, cls=PlotlyJSONEncoder)))

    def _shared(self, value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(value.get("bdata"), str) and len(value["bdata"]) >= WORTH_SHARING:
                return {"$array": self._keep(value)}
            return {
                key: self._shared_text(part) if key == "text" else self._shared(part) for key, part in value.items()
            }
        if isinstance(value, list):
            return [self._shared(part) for part in value]
        return value

    def _shared_text(self, value: Any) -> Any:
        """What the pointer shows beside the values of a refined landscape, which is the same whatever draws them."""
        many = isinstance(value, list) and len(json.dumps(value)) >= WORTH_SHARING
        return {"$array": self._keep(value)} if many else self._shared(value)

    def _keep(self, array: Any) -> str:
        key = hashlib.sha256(json.dumps(array, sort_keys=True).encode()).hexdigest()[:16]
        self.arrays[key] = array
        return key

    def to_json(self, **more: Any) -> str:
        """JSON that is safe inside a <script> element."""
        text = json.dumps(
            {"arrays": self.arrays, "figures": self.figures, "comparisons": self.comparisons} | more,
            cls=PlotlyJSONEncoder,
        )
        return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
