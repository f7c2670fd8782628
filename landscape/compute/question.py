"""The question for what every layer gives at a point of the setting's axes."""

from __future__ import annotations

from dataclasses import dataclass

from landscape.compute.executor import Question, Station
from landscape.evaluation.layers import LayersSeen, layers_at


@dataclass(frozen=True, eq=False)
class LayersAt(Question[LayersSeen]):
    """What every layer gives at a point, its weights, and gradients where they are asked for.

    Attributes:
        point: coordinates on the setting's axes.
    """

    point: tuple[float, ...]
    gradients: bool = False

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"point {', '.join(f'{each:.6g}' for each in self.point)}"

    def answer(self, station: Station) -> LayersSeen:
        """Go through the network there."""
        return layers_at(station.evaluator, self.point, gradients=self.gradients)
