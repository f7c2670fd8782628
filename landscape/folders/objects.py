"""A folder in an object store, by way of obstore: an object is put whole or not at all, and stays."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from landscape.errors import StoreError
from landscape.folders.base import Folder, Log, R, T
from landscape.folders.object_log import ObjectLog
from landscape.folders.refusals import beyond_end, has_credentials, missing_bucket, store_error
from landscape.folders.settings import FIRST_WAIT, make_store

PART = 16 << 20
SIDE_BY_SIDE = 8
CREDENTIAL_SECONDS = 10.0
LONGEST_WAIT = 5.0  # between two tries

Tag = dict[str, Any]

_guards: dict[str, Callable[[], None]] = {}  # by the name of a folder, what is asked before anything in it is written


class ObjectFolder(Folder):
    """Objects below a prefix. Errors of the network are `StoreError`, never taken for an absent object."""

    def __init__(self, url: str, settings: Mapping[str, str], seconds: float, retry: float) -> None:
        self.name, self._settings, self._seconds, self._retry = url, settings, seconds, retry
        self.store: Any = make_store(url, settings, seconds, retry)

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

    def ask(self, question: Callable[[], R], *, may_be_absent: bool = False) -> R:
        """What obstore answers. It tries again by itself, but not where an answer breaks off."""
        for wait in self._waits():
            try:
                with self.speaking(may_be_absent=may_be_absent):
                    return question()
            except StoreError as error:
                if wait is None or not error.passing:
                    raise
                time.sleep(wait)
        raise AssertionError

    async def ask_async(self, question: Callable[[], Awaitable[R]], *, may_be_absent: bool = False) -> R:
        """The same within an event loop."""
        for wait in self._waits():
            try:
                with self.speaking(may_be_absent=may_be_absent):
                    return await question()
            except StoreError as error:
                if wait is None or not error.passing:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError

    def _waits(self) -> Iterator[float | None]:
        """Seconds to wait before the next try; None where there is to be none."""
        end, wait = time.monotonic() + self._retry, FIRST_WAIT
        while time.monotonic() + wait < end:
            yield wait
            wait = min(2 * wait, LONGEST_WAIT)
        yield None

    @contextlib.contextmanager
    def guarded(self, check: Callable[[], None]) -> Iterator[None]:
        """Have `check` asked before each write at or below this folder, from anywhere in this process."""
        _guards[self.name] = check
        try:
            yield
        finally:
            _guards.pop(self.name, None)

    def check_guard(self) -> None:
        """Ask every guard of this folder, and of those above it, whether this process may write.

        Raises:
            LandscapeError: another driver has taken the run over.
        """
        for held, check in tuple(_guards.items()):
            if self.name == held or self.name.startswith(held + "/"):
                check()

    # -- reading ----------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is any object below the prefix."""
        # The first question of every command: where there are no credentials, asking the machine for some takes long.
        asked = self if has_credentials(self._settings) else self.brisk(CREDENTIAL_SECONDS)
        return asked.ask(lambda: any(len(batch) > 0 for batch in obstore.list(asked.store, chunk_size=1)))

    def read(self, path: str) -> bytes | None:
        """The whole object; None where there is none."""
        found = self.read_tagged(path)
        return None if found is None else found[0]

    def read_tagged(self, path: str) -> tuple[bytes, Tag, datetime] | None:
        """Content, the tag that `replace` compares, and when it was put by the store's clock."""

        def get() -> tuple[bytes, Tag, datetime]:
            found = obstore.get(self.store, path)
            meta = found.meta
            return bytes(found.bytes()), _tag(meta), meta["last_modified"]

        try:
            return self.ask(get, may_be_absent=True)
        except FileNotFoundError:
            return None

    def read_range(self, path: str, start: int, count: int) -> bytes:
        """`count` bytes from `start` on, fewer where the object ends before.

        Raises:
            FileNotFoundError: there is no such object.
        """

        def get() -> bytes:
            try:
                return bytes(obstore.get_range(self.store, path, start=start, length=count))
            except BaseError as error:
                if beyond_end(error):
                    return b""
                raise

        return self.ask(get, may_be_absent=True)

    @contextlib.contextmanager
    def fetched(self, path: str) -> Iterator[Path]:
        """A copy of the object in a temporary folder, which goes with the block.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with tempfile.TemporaryDirectory(prefix="landscape-") as folder:
            local = Path(folder) / path.rpartition("/")[2]
            self._download(path, local)
            yield local

    def _download(self, path: str, local: Path) -> None:
        """In parts side by side: one request for all could last longer than a request may."""
        try:
            size = self.ask(lambda: int(obstore.head(self.store, path)["size"]), may_be_absent=True)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.place(path)) from None
        with open(local, "wb") as file:

            def fetch(start: int) -> None:
                os.pwrite(file.fileno(), self.read_range(path, start, min(PART, size - start)), start)

            self.map(fetch, range(0, size, PART))

    def names(self, below: str) -> list[str]:
        """The last parts of the keys right below, sorted; empty where there are none."""
        found = self.ask(lambda: obstore.list_with_delimiter(self.store, prefix=below or None))
        return sorted(each["path"].rpartition("/")[2] for each in found["objects"])

    def folders(self, below: str) -> list[str]:
        """The prefixes right below that hold objects, by their last parts, sorted."""
        found = self.ask(lambda: obstore.list_with_delimiter(self.store, prefix=below or None))
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"])

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`function` of each item in order, `SIDE_BY_SIDE` of them at once."""
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return list(pool.map(function, items))

    # -- writing ----------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Do nothing: a prefix is there with its first object."""

    def refuse_unwritable(self) -> None:
        """Ask for the bucket once; whether it takes objects shows when the lock is put.

        Raises:
            StoreError: there is no such bucket, the credentials do not serve, or the store does not answer.
        """
        self.exists()  # a bucket that is not there, or credentials that do not serve; the lock is the first write

    def write(self, path: str, data: bytes) -> None:
        """Put an object, where this process may write."""
        self.check_guard()
        self.ask(lambda: obstore.put(self.store, path, data))

    @contextlib.contextmanager
    def whole(self, path: str) -> Iterator[Path]:
        """A file of a temporary folder to fill; it is put at `path` when the block ends well."""
        with tempfile.TemporaryDirectory(prefix="landscape-") as folder:
            local = Path(folder) / path.rpartition("/")[2]
            yield local
            self.check_guard()
            self.ask(lambda: obstore.put(self.store, path, local))

    def copy(self, source: str, target: str) -> None:
        """Have the store copy the object; one of more than 5 GB is fetched and put.

        Raises:
            FileNotFoundError: there is no such object.
        """
        self.check_guard()
        try:
            self.ask(lambda: obstore.copy(self.store, source, target), may_be_absent=True)
        except StoreError as error:
            if error.passing:
                raise
            # Stores copy no object of more than 5 GB at once.
            with self.fetched(source) as file, self.whole(target) as local:
                file.rename(local)

    def sync_names(self, below: str) -> None:
        """Do nothing: a deleted object stays deleted."""

    def create(self, path: str, data: bytes) -> Tag | None:
        """Put an object that must not be there; its tag, or None where it is there.

        That may be our own: where an answer is lost it is put again.
        """
        return self._put_if(path, data, "create")

    def replace(self, path: str, data: bytes, tag: Tag) -> Tag | None:
        """Put an object that must still be the one of `tag`; its new tag, or None where it is not, like `create`."""
        return self._put_if(path, data, {key: value for key, value in tag.items() if value is not None})

    def _put_if(self, path: str, data: bytes, mode: Any) -> Tag | None:
        def put() -> Tag | None:
            try:
                return _tag(obstore.put(self.store, path, data, mode=mode))
            except (AlreadyExistsError, PreconditionError, FileNotFoundError) as error:
                if missing_bucket(error):
                    raise
                return None

        return self.ask(put)

    def delete(self, path: str) -> None:
        """Delete one object, if it is there."""
        self.check_guard()
        with contextlib.suppress(FileNotFoundError):
            self.ask(lambda: obstore.delete(self.store, path), may_be_absent=True)

    def delete_below(self, path: str) -> None:
        """Delete all objects below a prefix, listed batch by batch."""

        def delete() -> None:
            for batch in obstore.list(self.store, prefix=path):
                obstore.delete(self.store, [each["path"] for each in batch])

        self.check_guard()
        self.ask(delete)

    def log(self, path: str) -> Log:
        """A log that is put as one object."""
        return ObjectLog(self, path)


def _tag(meta: Any) -> Tag:
    return {"e_tag": meta.get("e_tag"), "version": meta.get("version")}
