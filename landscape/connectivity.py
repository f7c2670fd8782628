"""How two networks are connected: curves trained between them, and permutations of units that bring them closer."""

from __future__ import annotations

from landscape.analysis.connect.connect import Connection
from landscape.analysis.connect.curve import Bend, BendTraining, train_bend
from landscape.analysis.connect.matching import Matched, match_weights

__all__ = ["Bend", "BendTraining", "Connection", "Matched", "match_weights", "train_bend"]
