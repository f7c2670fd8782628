"""What the ranks and the controller of a training tell the driver, in an actor of the driver's own."""

from __future__ import annotations

from typing import Any

# The kinds of news.
PACE = "pace"  # of one rank: an epoch, or what of it is done
SUMMARY = "summary"  # of one rank, at its end
STARTED = "started"  # of one rank
KEPT = "kept"  # a checkpoint
LOST = "lost"  # ranks, which begin anew: a line for the user
REMARK = "remark"  # another line for the user
CONTROLLER = "controller"  # the handle of Ray Train's controller
MOST_NEWS = 10_000  # that wait for the driver; the oldest go first


class Board:
    """Keeps what it is told until the driver takes it."""

    def __init__(self) -> None:
        self._news: list[dict[str, Any]] = []
        self._told: set[str] = set()

    def tell(self, kind: str, news: dict[str, Any]) -> None:
        """Keep a piece of news."""
        self._told.add(kind)
        self._news = [*self._news[1 - MOST_NEWS :], {"kind": kind, **news}]

    def was_told(self, kind: str) -> bool:
        """Whether news of this kind came at any time."""
        return kind in self._told

    def take(self) -> list[dict[str, Any]]:
        """All that was told since the last call."""
        taken, self._news = self._news, []
        return taken
