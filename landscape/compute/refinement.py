"""What a level of refinement takes over from the landscape that it refines: all but its points and its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.compute.extension import Extension
from landscape.compute.identity import changes
from landscape.compute.recorded import recorded_plan
from landscape.core.errors import JobError, shown
from landscape.core.grid import Floats, Tile
from landscape.core.plan import Plan
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_parts import LevelRecord
from landscape.surface.refinement import as_stretches, of_coarser_level, of_stretches


@dataclass(frozen=True)
class Refinement(Extension):
    """A landscape that is complete, and a level that refines it: points of coarser levels are not evaluated again.

    A level holds no value of them either: they read as NaN there.
    """

    @property
    def gives_values(self) -> bool:
        """No value is taken over: each lives in one level."""
        return False

    def known(self, tile: Tile) -> NDArray[np.bool_]:
        """Which points of a tile live in a coarser level, in C order."""
        return of_coarser_level(tile).reshape(-1)

    def values(self, tile: Tile) -> dict[str, Floats]:
        """NaN for every array over a tile."""
        arrays = self.store.arrays
        beside = {name: arrays[name].shape[len(self.shape) :] for name in arrays.tile_names}
        return {name: np.full((tile.points, *width), np.nan) for name, width in beside.items()}


def refinement_of(store: LandscapeStore, identity: Mapping[str, Any], plan: Plan) -> Refinement:
    """What a level takes over from the landscape that it refines.

    Args:
        identity: of the level: that of the landscape, and the number of the level.

    Raises:
        JobError: the landscape was computed with another job than that of the level.
    """
    name = shown(store.name)
    if changed := changes(store.identity.whole, {key: value for key, value in identity.items() if key != "level"}):
        raise JobError(
            f"landscape {name} cannot be refined: it was computed with another job; changed: {'; '.join(changed)}: "
            "change it back"
        )
    if plan != recorded_plan(store):
        raise JobError(f"landscape {name} was computed anew by another plan since it was refined; give it another name")
    return Refinement(store, (0,) * len(store.shape), store.shape, plan, None, more_observables=False)


def joined(one: LevelRecord, other: LevelRecord) -> LevelRecord:
    """A level with the blocks of both; what chose them is that of the first where it holds all of them."""
    if one.blocks == other.blocks:
        return one
    numbers = max(end for level in (one, other) for _, end in (*level.blocks, (0, 0)))
    mask = of_stretches(one.blocks, (numbers,)) | of_stretches(other.blocks, (numbers,))
    blocks = as_stretches(mask)
    if blocks in (one.blocks, other.blocks):
        return one if blocks == one.blocks else other
    return LevelRecord(number=one.number, stride=one.stride, blocks=blocks, rule=other.rule, chosen_by=other.chosen_by)
