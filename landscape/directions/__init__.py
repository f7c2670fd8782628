"""Directions in weight space: one table of kinds, one file per kind.

A direction is a float32 tensor per name; names that it does not move are left out.
"""

from landscape.directions.base import DirectionSpec, DirectionTensors, SeededDirection
from landscape.directions.context import Context
from landscape.directions.eigen import EigenDirection
from landscape.directions.file import FileDirection
from landscape.directions.kinds import KINDS, Direction, is_seeded, seeded
from landscape.directions.networks import PlaneDirection
from landscape.directions.pca import PcaDirection
from landscape.directions.random import RandomDirection
from landscape.directions.towards import TowardsDirection

__all__ = [
    "KINDS",
    "Context",
    "Direction",
    "DirectionSpec",
    "DirectionTensors",
    "EigenDirection",
    "FileDirection",
    "PcaDirection",
    "PlaneDirection",
    "RandomDirection",
    "SeededDirection",
    "TowardsDirection",
    "is_seeded",
    "seeded",
]
