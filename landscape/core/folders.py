"""From the name of a run to the folder that holds it; object stores are configured by the environment alone."""

from __future__ import annotations

import contextlib
import os
import os.path
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from landscape.core.errors import JobError, StoreError, nearest, quoted
from landscape.core.files import UNPACKED, Folder, LocalFolder, Place

if TYPE_CHECKING:
    from landscape.core.object_store import ObjectFolder


# ----------------------------------------------------------------------------------------------------
# The places that a job names, paths relative to its folder or URLs, and the labels of runs in figures.


def locate(path: str, folder: Path) -> str:
    """`path` as an absolute path, relative ones taken from `folder`; a URL stays as it is."""
    if "://" in path and not path.startswith("file://"):
        return path
    try:
        return str((folder / Path(path.removeprefix("file://")).expanduser()).absolute())
    except RuntimeError:
        raise JobError(f"run: {quoted(path)} names a home folder that is not known; write the path out") from None


def real_place(place: str) -> str:
    """A folder without links, `.` and `..`, so that two names of one run are equal; a URL as it is."""
    return place if "://" in place else os.path.realpath(place)


def run_identity(run: str) -> str:
    """A text that is equal for all names of a run, and for all temporary copies of a packed run."""
    if "://" not in run and (digest := LocalFolder(Path(run)).read(UNPACKED)):
        return digest.decode(errors="replace")
    return real_place(run)


def run_labels(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths by which different paths differ, each of at least one part.

    >>> run_labels(["runs/a/sgd", "runs/b/sgd", "runs/adam", "runs/adam/"])
    ['a/sgd', 'b/sgd', 'adam', 'adam']
    """
    parts = [path.replace("\\", "/").rstrip("/").split("/") for path in paths]
    labels = []
    for own in parts:
        others = [other for other in parts if other != own]
        length = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), len(own))
        labels.append("/".join(own[-length:]))
    return labels


# ----------------------------------------------------------------------------------------------------

SCHEMES = {
    "s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "az": "AZURE_", "azure": "AZURE_", "abfs": "AZURE_",
    "abfss": "AZURE_",
}  # fmt: skip
TUNING = "LANDSCAPE_STORE_"


def open_folder(run: Place) -> Folder:
    """The folder of a run, which need not exist yet.

    Raises:
        JobError: an empty name; a URL of a kind that is not known, with credentials in it, or without the package that
            it needs.
    """
    if isinstance(run, Folder):
        return run
    # An empty name, often of an unset variable, would mean the current directory; Path("") and Path(".") are equal.
    if not str(run).removeprefix("file://").strip() or run == Path():
        raise JobError(f"run: must name a folder or URL, not {str(run)!r}; for the current directory give '.' as text")
    place = locate(str(run), Path.cwd())
    return open_objects(place) if "://" in place else LocalFolder(Path(place))


def split_path(path: str) -> tuple[Folder, str]:
    """The folder that holds a file, and the file's name in it."""
    above, _, name = path.rpartition("/")
    return open_folder(above or "/"), name


def open_objects(url: str) -> ObjectFolder:
    """The folder at a URL; the same one, with its open connections, as long as the environment stays the same."""
    scheme = checked_url(url)
    settings = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith((SCHEMES[scheme], TUNING))))
    return _open(scheme + url[len(scheme) :].rstrip("/"), settings)


@lru_cache(maxsize=32)
def _open(url: str, settings: tuple[tuple[str, str], ...]) -> ObjectFolder:
    try:
        from landscape.core.object_store import ObjectFolder, time_limits
    except ImportError:
        raise JobError(
            f"run: {quoted(url)} needs the package obstore; `pip install 'loss-landscape-cluster[object-store]'`"
        ) from None
    return ObjectFolder(url, dict(settings), *time_limits(dict(settings)))


def checked_url(url: str) -> str:
    """The scheme of a URL that can be a run.

    Raises:
        JobError: it cannot; what may be a secret is not repeated.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise JobError(
            f"run: unknown kind of URL {quoted(parts.scheme + '://')}; {nearest(parts.scheme, ['file', *SCHEMES])}"
        )
    if "@" in parts.netloc and not parts.scheme.startswith("abfs"):
        raise JobError(
            f"run: must not hold credentials ({parts.scheme}://…@{parts.netloc.rpartition('@')[2]}); "
            "give them to the driver in its environment"
        )
    if parts.query or parts.fragment:
        raise JobError(f"run: must be {parts.scheme}://bucket/prefix, without '?' and '#'; leave out what follows")
    if not parts.netloc:
        raise JobError(f"run: must name a bucket, {parts.scheme}://bucket/prefix, not {quoted(url)}")
    return parts.scheme


# ----------------------------------------------------------------------------------------------------
# Whether a run's place can be used: a probe file is written, read, listed and deleted, and each operation timed.

DATA = b"landscape doctor\n"


def probe(run: Place) -> Iterator[tuple[str, float]]:
    """Yield each operation with the seconds that it took. A local folder that does not exist is not made.

    Raises:
        JobError, StoreError, OSError: an operation failed.
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
            f"store {quoted(folder.name)}: what was just written is not what is read or listed; use another"
        )
    create = getattr(folder, "create", None)  # keeps two drivers apart where there are no file locks
    if create is not None:
        yield _timed("create again", lambda: answers.append(create(path, b"second")))
        if answers[-1] is not None:
            raise StoreError(
                f"store {quoted(folder.name)}: takes no conditional puts (If-None-Match), so two drivers could not be "
                "kept apart; use a store that does"
            )


def _timed(name: str, operation: Callable[[], object]) -> tuple[str, float]:
    began = time.perf_counter()
    operation()
    return name, time.perf_counter() - began


# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """The bytes of a file, or of all files below a folder, and when one of them was last written; None without one."""

    bytes: int = 0
    changed: datetime | None = None

    def with_file(self, size: int, changed: datetime) -> Usage:
        """The same with one more file."""
        return Usage(self.bytes + size, changed if self.changed is None else max(self.changed, changed))


def usage_of(run: Place) -> dict[str, Usage]:
    """The usage of everything right below a folder, by its name there.

    Links are not followed, and files deleted meanwhile are left out.

    Raises:
        StoreError: the object store does not answer.
    """
    folder: Any = open_folder(run)
    usage: dict[str, Usage] = {}
    if "://" in folder.name:
        import obstore

        for entry in folder.ask(lambda: [one for batch in obstore.list(folder.store) for one in batch]):
            name = entry["path"].partition("/")[0]
            usage[name] = usage.get(name, Usage()).with_file(entry["size"], entry["last_modified"])
        return usage
    for above, _, names in os.walk(folder.name):
        for name in names:
            path = os.path.join(above, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                first = os.path.relpath(path, folder.name).partition(os.sep)[0]
                changed = datetime.fromtimestamp(status.st_mtime, UTC)
                usage[first] = usage.get(first, Usage()).with_file(status.st_size, changed)
    return usage
