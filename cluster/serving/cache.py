"""Values of points that were computed before, in memory: the latest ones, up to so many bytes."""

from __future__ import annotations

from collections import OrderedDict

OVERHEAD = 250  # bytes that Python takes for an entry, about


class PointCache:
    """Rows of values by landscape and point; those that were asked for longest ago go first.

    Args:
        most: bytes in all; 0 keeps nothing.
    """

    def __init__(self, most: int) -> None:
        self._most, self._rows = most, OrderedDict[tuple[str, bytes], bytes]()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, identity: str, point: bytes) -> bytes | None:
        """The row of a point; None where it is not held.

        Args:
            identity: the digest of what decides the landscape's values.
        """
        row = self._rows.get((identity, point))
        if row is not None:
            self._rows.move_to_end((identity, point))
        return row

    def put(self, identity: str, point: bytes, row: bytes) -> None:
        """Hold a row, and drop the oldest ones where there is no room."""
        size = OVERHEAD + len(point) + len(row)
        if size > self._most or (identity, point) in self._rows:
            return
        self._rows[identity, point] = row
        self.bytes += size
        while self.bytes > self._most:
            (_, oldest), values = self._rows.popitem(last=False)
            self.bytes -= OVERHEAD + len(oldest) + len(values)
