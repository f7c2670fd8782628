"""Digests of all values of a run, by which golden runs are compared with what wrote them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from landscape import open_run


def digests(run: Path) -> dict[str, dict[str, str]]:
    """SHA-256 of the values of each landscape and its path, as float64 in C order, little-endian."""
    found: dict[str, dict[str, str]] = {}
    for name, surface in open_run(run).items():
        merged = surface.merged()
        values = {observable: merged[observable] for observable in merged.observables} | {"status": merged.status}
        values |= {axis.name: axis.coordinates for axis in merged.axes}
        if surface.path is not None:
            values |= {f"path {axis}": place for axis, place in surface.path.coordinates.items()}
            values["path loss"] = surface.path.loss
        found[name] = {
            key: hashlib.sha256(np.ascontiguousarray(value, "<f8").tobytes()).hexdigest()[:16]
            for key, value in values.items()
        }
    return found
