"""What `landscape compare --keep` found of a quantised landscape, as the document of that landscape keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

from landscape.surface.connection import Numbers
from landscape.surface.record_parts import AnyReal, AnyText, Count, Text, Whole


@dataclass(frozen=True, kw_only=True)
class BitsRecord:
    """The network at the origin with so many bits; None for what is not finite.

    Attributes:
        values: observables by name.
        difference: of the loss, less that of the network that is not rounded.
        stderr: of the difference, pair by pair.
    """

    bits: Whole
    values: dict[Text, AnyReal] = field(default_factory=dict)
    difference: AnyReal = None
    stderr: AnyReal = None


@dataclass(frozen=True, kw_only=True)
class StepsRecord:
    """Both losses along a short line through the origin, on which the steps of rounding are seen."""

    axis: Text
    at: Numbers
    unrounded: Numbers
    rounded: Numbers


@dataclass(frozen=True, kw_only=True)
class ComparedRecord:
    """The loss at the origin by bits, and the steps of rounding.

    Attributes:
        when: a time in ISO format.
        version: of this software.
        samples: over how many the losses are.
        unrounded: observables of the network that is not rounded, at the origin; none without a curve.
    """

    when: AnyText = None
    version: AnyText = None
    samples: Count | None = None
    unrounded: dict[Text, AnyReal] = field(default_factory=dict)
    bits: tuple[BitsRecord, ...] = ()
    steps: StepsRecord | None = None
