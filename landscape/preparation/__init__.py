"""From a job to what can be evaluated: origin, axes, grid, path, identity and plan of each landscape."""

from landscape.preparation.asked import collected_landscapes
from landscape.preparation.prepared import PreparedJob, PreparedLandscape
from landscape.preparation.preparing import prepare
from landscape.preparation.stores import create_store, reopen_store

__all__ = ["PreparedJob", "PreparedLandscape", "collected_landscapes", "create_store", "prepare", "reopen_store"]
