"""Minima, saddles and basins of a surface by persistence: which of them stand above the noise of sampling."""

from landscape.topology.features import Basin, Extremum, Topology, topology_of
from landscape.topology.persistence import PersistencePair, maximum_pairs, minimum_pairs

__all__ = [
    "Basin",
    "Extremum",
    "PersistencePair",
    "Topology",
    "maximum_pairs",
    "minimum_pairs",
    "topology_of",
]
