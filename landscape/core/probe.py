"""Whether a run's place can be used: a probe is written, read, listed and deleted, and how long each takes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

from landscape.core.base import Folder, Place
from landscape.core.errors import StoreError, shown
from landscape.core.folders import open_folder

DATA = b"landscape doctor\n"


def probe(run: Place) -> Iterator[tuple[str, float]]:
    """Each operation with the seconds that it took, one after another. A local folder that is not there is not made.

    Raises:
        JobError, StoreError, OSError: something cannot be done.
    """
    folder = open_folder(run)
    yield _timed("look", folder.refuse_unwritable)
    if folder.exists() or "://" in folder.name:
        path = f".probe-{uuid.uuid4().hex}"
        try:
            yield from _write_and_read(folder, path)
        finally:
            seconds = _timed("delete", lambda: folder.delete(path))
        yield seconds


def _write_and_read(folder: Folder, path: str) -> Iterator[tuple[str, float]]:
    answers: list[object] = []
    yield _timed("write", lambda: folder.write(path, DATA))
    yield _timed("read", lambda: answers.append(folder.read(path)))
    yield _timed("list", lambda: answers.append(path in folder.names("")))
    if answers != [DATA, True]:
        raise StoreError(
            f"store {shown(folder.name)}: what was just written is not what is read or listed; use another"
        )
    create = getattr(folder, "create", None)  # what keeps two drivers apart where there are no file locks
    if create is not None:
        yield _timed("create again", lambda: answers.append(create(path, b"second")))
        if answers[-1] is not None:
            raise StoreError(
                f"store {shown(folder.name)}: takes no conditional puts (If-None-Match), so two drivers could not be "
                "kept apart; use a store that does"
            )


def _timed(what: str, operation: Callable[[], object]) -> tuple[str, float]:
    began = time.perf_counter()
    operation()
    return what, time.perf_counter() - began
