"""The table of kinds: a kind of direction is a class in a file of its own, and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from landscape.job.directions.base import DirectionSpec
from landscape.job.directions.file import EigenDirection, FileDirection
from landscape.job.directions.plane import PcaDirection, PlaneDirection, TowardsDirection
from landscape.job.directions.random import RandomDirection

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
