"""What the workers are sent of one landscape, shared with them anew whenever it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.driver.transfer import pack_directions, pack_state
from cluster.driver.worker import LandscapeInputs
from landscape.compute.prepared import PreparedLandscape
from landscape.compute.reproducibility import check_point


class SentLandscape:
    """A landscape as the workers know it.

    Attributes:
        landscape: as prepared, with the plan by which it is computed.
        point: what a worker reproduces before its first task; None stands for the point nearest to the origin.
        check_workers: whether a worker reproduces a point at all.
        inputs: a reference to what is sent; None until it is shared.
    """

    def __init__(self, landscape: PreparedLandscape, point: tuple[float, ...] | None = None) -> None:
        self.landscape, self.point = landscape, point
        self.check_workers = True
        self.inputs: Any = None
        self._share: Callable[[Any], Any] = lambda value: value

    def share(self, share: Callable[[Any], Any]) -> None:
        """Make it available to the workers, now and whenever it changes.

        Args:
            share: gives a reference that every worker can follow to a value.
        """
        self._share = share
        self.inputs = share(self.pack())

    def replan(self, landscape: PreparedLandscape) -> None:
        """Send the same landscape with another plan."""
        self.landscape = landscape
        self.share(self._share)

    def stop_checking(self) -> None:
        """Let the workers reproduce nothing any more."""
        self.check_workers = False
        self.share(self._share)

    def pack(self) -> LandscapeInputs:
        """What the workers need of it."""
        check = (self.point or check_point(self.landscape.grid)) if self.check_workers else None
        extension = self.landscape.extension
        return LandscapeInputs(
            self.landscape.name,
            pack_state(self.landscape.origin),
            pack_directions(self.landscape.directions),
            self.landscape.grid,
            self.landscape.plan,
            check,
            extension.before_at(self.landscape.grid, check) if extension and check else None,
        )
