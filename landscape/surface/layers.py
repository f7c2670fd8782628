"""What the document of a landscape says of the layers that are watched at its points, and the names of these values."""

from __future__ import annotations

from dataclasses import dataclass

from landscape.surface.record_parts import Real, Text

FIRST_LAYER, FIRST_RULE = "first_layer", "first_rule"
BREAKING = (FIRST_LAYER, FIRST_RULE)  # observables: the first layer that breaks, and by which rule; 0 where none does
LAYER_STATISTICS = ("min", "max", "mean", "spread", "abs_mean", "zeros", "not_finite")


@dataclass(frozen=True, kw_only=True)
class LayersRecord:
    """Which layers are watched at every point.

    Attributes:
        layers: their names in the order of computation, as they are at the origin.
        weights: the names of the parameters, which rules look at too.
        rules: with their thresholds; value k of `first_rule` is the k-th.
        statistics: of which of each layer there is an observable, `layer_3_abs_mean` of the third.
    """

    layers: tuple[Text, ...]
    weights: tuple[Text, ...]
    rules: dict[Text, Real]
    statistics: tuple[Text, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What may break: value k of `first_layer` is the k-th of them, and a value beyond is of another layer."""
        return (*self.layers, *self.weights)

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of what is stored at every point."""
        places = range(1, len(self.layers) + 1)
        return (*BREAKING, *(f"layer_{place}_{name}" for place in places for name in self.statistics))

    def categories(self, observable: str) -> tuple[str, ...] | None:
        """What the values 0, 1, 2, … of an observable stand for; None of one that holds plain numbers."""
        if observable == FIRST_LAYER:
            return ("none", *self.names, "another layer")
        return ("none", *self.rules) if observable == FIRST_RULE else None

    def layer_of(self, observable: str) -> tuple[str, str] | None:
        """The layer and the statistic of an observable; None of another one."""
        word, _, rest = observable.partition("_")
        place, _, statistic = rest.partition("_")
        known = word == "layer" and place.isdecimal() and 0 < int(place) <= len(self.layers)
        return (self.layers[int(place) - 1], statistic) if known and statistic in self.statistics else None
