"""What a running job tells Prometheus through Ray: tiles, points, failures, tile seconds, queue."""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge, Histogram

SECONDS = [0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000]


class Metrics:
    """Counters of this driver; Ray exports them on every node's metrics port, names prefixed with `ray_`."""

    def __init__(self) -> None:
        self._tiles = Counter("landscape_tiles_total", "Tasks committed")
        self._points = Counter("landscape_points_total", "Points committed")
        self._failures = Counter("landscape_failures_total", "Tasks given up")
        self._seconds = Histogram("landscape_tile_seconds", "Seconds a task took on its worker", boundaries=SECONDS)
        self._queue = Gauge("landscape_queue", "Tasks that no worker has yet")
        self._workers = Gauge("landscape_workers", "Workers ready")

    def committed(self, points: int, seconds: float) -> None:
        """Count a task that is committed."""
        self._tiles.inc()
        self._points.inc(points)
        self._seconds.observe(seconds)

    def failed(self) -> None:
        """Count a task that is given up."""
        self._failures.inc()

    def queue(self, waiting: int, workers: int) -> None:
        """Set how many tasks wait, and how many workers there are."""
        self._queue.set(waiting)
        self._workers.set(workers)
