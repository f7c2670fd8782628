"""A folder in an object store, by way of obstore: an object is put whole or not at all, and stays."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url

from landscape.errors import JobError
from landscape.folders.base import Folder, Log, R, T
from landscape.folders.refusals import beyond_end, missing_bucket, store_error

REQUEST_SECONDS = 30.0  # without a byte, until a request is given up and tried again
RETRY_SECONDS = 180.0  # until one that fails for ever is an error; credentials may expire after 5 minutes
SLOWEST = 20  # times longer may a request take as a whole: a large chunk on a slow line
PART = 16 << 20
SIDE_BY_SIDE = 8
LOG_SECONDS = 30.0

Tag = dict[str, Any]

_guards: dict[str, Callable[[], None]] = {}  # by the name of a folder, what is asked before anything in it is written


def connect(url: str, settings: Mapping[str, str]) -> ObjectFolder:
    """The folder at a URL; credentials, endpoint and region are the environment's, as each cloud names them.

    Raises:
        JobError: the store cannot be set up; says which setting is wrong.
    """
    _refuse_endpoints(settings)
    seconds = _seconds(settings, "LANDSCAPE_STORE_TIMEOUT", REQUEST_SECONDS)
    retry = _seconds(settings, "LANDSCAPE_STORE_RETRY", RETRY_SECONDS)
    return ObjectFolder(url, dict(settings), seconds, retry)


def _refuse_endpoints(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        if "ENDPOINT" not in name and "BASE_URL" not in name:
            continue
        parts = urlsplit(value)
        if "@" in parts.netloc:
            raise JobError(f"{name}: must not hold credentials; give them in the variables that are made for them")
        if parts.scheme == "http" and not _allows_http(settings):
            prefix = name.partition("_")[0]
            raise JobError(f"{name}: is plain http, which is refused unless {prefix}_ALLOW_HTTP=true is set as well")


def _allows_http(settings: Mapping[str, str]) -> bool:
    return any(k.endswith("_ALLOW_HTTP") and v.lower() in ("1", "true", "yes", "on") for k, v in settings.items())


def _seconds(settings: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(settings.get(name, default))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise JobError(f"{name}: must be a number of seconds above 0, not {settings[name]!r}")
    return value


def _store(url: str, settings: Mapping[str, str], seconds: float, retry: float) -> Any:
    # Options given here replace those that obstore would read from the environment.
    client = {
        "allow_http": _allows_http(settings), "read_timeout": timedelta(seconds=seconds),
        "connect_timeout": timedelta(seconds=min(seconds, 5.0)), "timeout": timedelta(seconds=SLOWEST * seconds),
    }  # fmt: skip
    backoff = {"max_backoff": timedelta(seconds=min(15.0, retry / 4))}
    retries: Any = {"max_retries": 1000, "retry_timeout": timedelta(seconds=retry), "backoff": backoff}
    config: Any = {"account_name": settings["AZURE_STORAGE_ACCOUNT"]} if "AZURE_STORAGE_ACCOUNT" in settings else None
    try:
        return from_url(url, config=config, client_options=client, retry_config=retries)  # type: ignore[call-overload]
    except (BaseError, ValueError) as error:
        raise JobError(f"run: {url!r} cannot be opened: {store_error(url, error, settings).reason}") from None


@dataclass
class _Lines:
    """What a log holds; apart from the log, so that it can be put when that is forgotten."""

    folder: ObjectFolder
    path: str
    data: bytearray
    dirty: bool = False

    def put(self) -> None:
        if self.dirty:
            self.folder.write(self.path, bytes(self.data))
            self.dirty = False


class ObjectFolder(Folder):
    """Objects below a prefix. Errors of the network are `StoreError`, never taken for an absent object."""

    def __init__(self, url: str, settings: Mapping[str, str], seconds: float, retry: float) -> None:
        self.name, self._settings, self._seconds = url, settings, seconds
        self.store: Any = _store(url, settings, seconds, retry)

    def brisk(self, seconds: float) -> ObjectFolder:
        """The same folder for requests that are worth nothing after so many seconds."""
        return ObjectFolder(self.name, self._settings, min(seconds / 2, self._seconds), seconds)

    @contextlib.contextmanager
    def speaking(self, *, may_be_absent: bool = False) -> Iterator[None]:
        """Turn what obstore raises into one line; absence stays a FileNotFoundError where it may be."""
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            if may_be_absent and isinstance(error, FileNotFoundError) and not missing_bucket(error):
                raise
            raise store_error(self.name, error, self._settings) from None

    @contextlib.contextmanager
    def guarded(self, check: Callable[[], None]) -> Iterator[None]:
        """Have `check` asked before each write at or below this folder, from anywhere in this process."""
        _guards[self.name] = check
        try:
            yield
        finally:
            _guards.pop(self.name, None)

    def check_guard(self) -> None:
        for held, check in tuple(_guards.items()):
            if self.name == held or self.name.startswith(held + "/"):
                check()

    # -- reading ----------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        with self.speaking():
            return any(len(batch) > 0 for batch in obstore.list(self.store, chunk_size=1))

    def read(self, path: str) -> bytes | None:
        found = self.read_tagged(path)
        return None if found is None else found[0]

    def read_tagged(self, path: str) -> tuple[bytes, Tag, datetime] | None:
        """Content, the tag that `replace` compares, and when it was put by the store's clock."""
        try:
            with self.speaking(may_be_absent=True):
                found = obstore.get(self.store, path)
                meta = found.meta
                return bytes(found.bytes()), _tag(meta), meta["last_modified"]
        except FileNotFoundError:
            return None

    def read_range(self, path: str, start: int, count: int) -> bytes:
        with self.speaking(may_be_absent=True):
            try:
                return bytes(obstore.get_range(self.store, path, start=start, length=count))
            except BaseError as error:
                if beyond_end(error):
                    return b""
                raise

    @contextlib.contextmanager
    def fetched(self, path: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="landscape-") as folder:
            local = Path(folder) / path.rpartition("/")[2]
            self._download(path, local)
            yield local

    def _download(self, path: str, local: Path) -> None:
        """In parts side by side: one request for all could last longer than a request may."""
        try:
            with self.speaking(may_be_absent=True):
                size = int(obstore.head(self.store, path)["size"])
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.place(path)) from None
        with open(local, "wb") as file:

            def fetch(start: int) -> None:
                os.pwrite(file.fileno(), self.read_range(path, start, min(PART, size - start)), start)

            self.map(fetch, range(0, size, PART))

    def names(self, below: str) -> list[str]:
        with self.speaking():
            found = obstore.list_with_delimiter(self.store, prefix=below or None)
        return sorted(each["path"].rpartition("/")[2] for each in found["objects"])

    def folders(self, below: str) -> list[str]:
        with self.speaking():
            found = obstore.list_with_delimiter(self.store, prefix=below or None)
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"])

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return list(pool.map(function, items))

    # -- writing ----------------------------------------------------------------------------------------------

    def make(self) -> None:
        pass

    def refuse_unwritable(self) -> None:
        self.exists()  # a bucket that is not there, or credentials that do not serve; the lock is the first write

    def write(self, path: str, data: bytes) -> None:
        self.check_guard()
        with self.speaking():
            obstore.put(self.store, path, data)

    @contextlib.contextmanager
    def whole(self, path: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="landscape-") as folder:
            local = Path(folder) / path.rpartition("/")[2]
            yield local
            self.check_guard()
            with self.speaking():
                obstore.put(self.store, path, local)

    def create(self, path: str, data: bytes) -> Tag | None:
        """Put an object that must not be there; its tag, or None where it is there."""
        with self.speaking():
            try:
                return _tag(obstore.put(self.store, path, data, mode="create"))
            except AlreadyExistsError:
                return None

    def replace(self, path: str, data: bytes, tag: Tag) -> Tag | None:
        """Put an object that must still be the one of `tag`; its new tag, or None where it is not."""
        with self.speaking():
            try:
                mode: Any = {key: value for key, value in tag.items() if value is not None}
                return _tag(obstore.put(self.store, path, data, mode=mode))
            except (AlreadyExistsError, PreconditionError, FileNotFoundError) as error:
                if missing_bucket(error):
                    raise
                return None

    def delete(self, path: str) -> None:
        self.check_guard()
        with contextlib.suppress(FileNotFoundError), self.speaking(may_be_absent=True):
            obstore.delete(self.store, path)

    def delete_below(self, path: str) -> None:
        self.check_guard()
        with self.speaking():
            for batch in obstore.list(self.store, prefix=path):
                obstore.delete(self.store, [each["path"] for each in batch])

    def remove_leftovers(self, patterns: Iterable[str]) -> None:
        pass

    def log(self, path: str) -> Log:
        return ObjectLog(self, path)


class ObjectLog(Log):
    """An object cannot be added to: lines are kept here, and all of them put when synced, or after a while.

    What a crash loses is what was added in the last `LOG_SECONDS`, or while the last twenty puts took, if longer.
    """

    def __init__(self, folder: ObjectFolder, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._wait = clock, LOG_SECONDS
        self._lines = _Lines(folder, path, bytearray(folder.read(path) or b""))
        self._put = clock()
        weakref.finalize(self, self._lines.put)  # a process that ends in peace loses none

    def add(self, line: bytes) -> None:
        self._lines.data += line
        self._lines.dirty = True
        if self._clock() - self._put >= self._wait:
            self.sync()

    def sync(self) -> None:
        began = self._clock()
        self._lines.put()
        self._put = self._clock()
        self._wait = max(LOG_SECONDS, 20 * (self._put - began))


def _tag(meta: Any) -> Tag:
    return {"e_tag": meta.get("e_tag"), "version": meta.get("version")}
