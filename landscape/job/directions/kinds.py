"""The table of kinds: a kind of direction is a class in a file of its own, and a line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from landscape.job.directions.base import DirectionSpec, SeededDirection
from landscape.job.directions.file import EigenDirection, FileDirection
from landscape.job.directions.plane import PcaDirection, PlaneDirection, TowardsDirection
from landscape.job.directions.random import RandomDirection
from landscape.surface.record import parse_axis

KINDS: tuple[type[DirectionSpec], ...] = (
    RandomDirection,
    TowardsDirection,
    FileDirection,
    PcaDirection,
    PlaneDirection,
    EigenDirection,
)


def one_of(kinds: Sequence[type[DirectionSpec]]) -> Any:
    """The type of a field that holds a direction of one of these kinds, told apart by its `kind`."""
    return Annotated[Union[tuple(kinds)], Field(discriminator="kind")]


if TYPE_CHECKING:
    Direction = DirectionSpec
else:
    Direction = one_of(KINDS)


def _seeded_kind(word: str) -> type[SeededDirection] | None:
    """The class of that kind; None where there is none, or its directions have no seed."""
    kinds = (kind for kind in KINDS if issubclass(kind, SeededDirection))
    return next((kind for kind in kinds if kind.word() == word), None)


def is_seeded(word: str) -> bool:
    """Whether directions of that kind can be drawn anew from what is recorded of them, and need not be kept."""
    return _seeded_kind(word) is not None


def seeded(attributes: Mapping[str, Any]) -> SeededDirection | None:
    """The direction that an axis's attributes record, where it can be drawn anew from them; else None."""
    kind = _seeded_kind(parse_axis(attributes)[0].kind)
    if kind is None:
        return None
    return kind(**{name: attributes[name] for name in kind.model_fields if name in attributes})
