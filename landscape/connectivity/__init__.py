"""How two networks are connected: curves trained between them, and permutations of units that bring them closer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landscape.core.lazy_names import import_on_use

if TYPE_CHECKING:
    from landscape.connectivity.bending import Bend, train_bend
    from landscape.connectivity.connecting import Connection, connect
    from landscape.connectivity.matching import Matched, match_weights
    from landscape.connectivity.steps import Training

_HOMES = {
    "bending": ("Bend", "train_bend"),
    "connecting": ("Connection", "connect"),
    "matching": ("Matched", "match_weights"),
    "steps": ("Training",),
}

__all__ = ["Bend", "Connection", "Matched", "Training", "connect", "match_weights", "train_bend"]

__getattr__ = import_on_use(__name__, _HOMES)
