"""Says when an object store does not answer, whose requests then block for minutes, and when it answers again."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from landscape.core.errors import StoreError, quoted

LOOK_SECONDS = 1.0  # between two looks at the requests
SILENT_SECONDS = 10.0  # without an answer, after which the user is told

log = logging.getLogger("landscape")


class SilenceWatch:
    """The requests to one store that have no answer yet; says when it has given none for long, and when it does again.

    Args:
        name: the URL of the bucket.
        clock: the time in seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock, self._lock = name, clock, threading.Lock()
        self._began: dict[object, tuple[float, float]] = {}  # when each request began, and how long it is repeated
        self._answered = -float("inf")
        self._told: float | None = None  # since when the store has been silent, once that is told

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for an answer."""
        return not self._began

    @contextlib.contextmanager
    def waiting(self, retry: float) -> Iterator[None]:
        """Within the block a request waits for its answer, and is repeated for `retry` seconds."""
        request = object()
        with self._lock:
            self._began[request] = self._clock(), retry
        answered = False
        try:
            yield
            answered = True
        except (StoreError, FileNotFoundError) as error:
            answered = not getattr(error, "passing", False)
            raise
        finally:
            with self._lock:
                del self._began[request]
            if answered:
                self._note_answer()

    def _note_answer(self) -> None:
        with self._lock:
            self._answered, told, self._told = self._clock(), self._told, None
        if told is not None:
            self._say("store-answers", f"store {quoted(self._name)} answers again, after {self._answered - told:.0f} s")

    def look(self) -> None:
        """Say so, once, where the store has given no answer for too long."""
        with self._lock:
            if self._told is not None or not self._began:
                return
            began, retry = min(self._began.values())
            silent = self._clock() - max(began, self._answered)
            if silent < SILENT_SECONDS:
                return
            self._told = self._clock() - silent
        text = f"store {quoted(self._name)} has not answered for {silent:.0f} s; it is asked again for {retry:.0f} s"
        self._say("store-silent", text)

    def _say(self, event: str, text: str) -> None:
        log.warning("%s", text, extra={"event": event, "fields": {"cause": text}})


_watches: dict[str, SilenceWatch] = {}  # by the URL of the bucket
_watching = threading.Lock()
_thread: threading.Thread | None = None


@contextlib.contextmanager
def watched(url: str, retry: float) -> Iterator[None]:
    """Within the block a request to the store of this URL waits for its answer."""
    global _thread
    bucket = "/".join(url.split("/")[:3])
    with _watching:
        watch = _watches.setdefault(bucket, SilenceWatch(bucket))
        if _thread is None or not _thread.is_alive():  # it has ended by itself, or this process was forked
            _thread = threading.Thread(target=_look_while_there_are_requests, name="store watch", daemon=True)
            _thread.start()
    with watch.waiting(retry):
        yield


def _look_while_there_are_requests() -> None:
    global _thread
    while True:
        time.sleep(LOOK_SECONDS)
        with _watching:
            if all(watch.is_idle for watch in _watches.values()):
                _thread = None
                return
            watches = list(_watches.values())
        for watch in watches:
            watch.look()
