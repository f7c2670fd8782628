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

from landscape.core.base import Folder, Log, R, T
from landscape.core.errors import StoreError
from landscape.core.object_log import ObjectLog
from landscape.core.refusals import beyond_end, has_credentials, missing_bucket, store_error
from landscape.core.settings import FIRST_WAIT, make_store

PART = 16 << 20
SIDE_BY_SIDE = 8
CREDENTIAL_SECONDS = 10.0
LONGEST_WAIT = 5.0  # between two tries

Tag = dict[str, Any]

_guards: dict[str, Callable[[], None]] = {}  # by the name of a folder: the check before each write in it


class ObjectFolder(Folder):
    """Objects below a prefix. Errors of the network are `StoreError`, never taken for an absent object."""

    def __init__(self, url: str, settings: Mapping[str, str], seconds: float, retry: float) -> None:
        self.name, self._settings, self._seconds, self._retry = url, settings, seconds, retry
        self.store: Any = make_store(url, settings, seconds, retry)

    def brisk(self, seconds: float) -> ObjectFolder:
        """The same folder with shorter time limits, for requests whose answer is of no use after so many seconds."""
        return ObjectFolder(self.name, self._settings, min(seconds / 2, self._seconds), seconds)

    @contextlib.contextmanager
    def speaking(self, *, may_be_absent: bool = False) -> Iterator[None]:
        """Turn the exceptions of obstore into a `StoreError` of one line.

        Args:
            may_be_absent: let the FileNotFoundError of an object that is not there pass.
        """
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            if may_be_absent and isinstance(error, FileNotFoundError) and not missing_bucket(error):
                raise
            raise store_error(self.name, error, self._settings) from None

    def ask(self, question: Callable[[], R], *, may_be_absent: bool = False) -> R:
        """The answer of a request, repeated where the answer breaks off: obstore repeats only what fails before."""
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
        """The answer of a request as `ask` gives it, within an event loop."""
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
        """While the block runs, call `check` before each write of this process at or below this folder."""
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
        # Every command asks this first. Without credentials in the environment obstore asks the machine, for long.
        asked = self if has_credentials(self._settings) else self.brisk(CREDENTIAL_SECONDS)
        return asked.ask(lambda: any(len(batch) > 0 for batch in obstore.list(asked.store, chunk_size=1)))

    def read(self, path: str) -> bytes | None:
        """The whole object; None where there is none."""
        tagged = self.read_tagged(path)
        return None if tagged is None else tagged[0]

    def read_tagged(self, path: str) -> tuple[bytes, Tag, datetime] | None:
        """The content of an object, the tag that `replace` compares, and when it was put by the store's clock."""

        def get() -> tuple[bytes, Tag, datetime]:
            answer = obstore.get(self.store, path)
            meta = answer.meta
            return bytes(answer.bytes()), _tag(meta), meta["last_modified"]

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
        """Fetch an object in parts, several at once: one request for all could exceed the time limit of a request."""
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
        listing = self.ask(lambda: obstore.list_with_delimiter(self.store, prefix=below or None))
        return sorted(entry["path"].rpartition("/")[2] for entry in listing["objects"])

    def folders(self, below: str) -> list[str]:
        """The prefixes right below that hold objects, by their last parts, sorted."""
        listing = self.ask(lambda: obstore.list_with_delimiter(self.store, prefix=below or None))
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in listing["common_prefixes"])

    def stamps(self, below: str) -> dict[str, str]:
        """The objects below a prefix by their paths in it, each with its tag, or its time and size."""

        def list_all() -> dict[str, str]:
            return {
                entry["path"].removeprefix(f"{below}/"): str(entry["e_tag"] or (entry["last_modified"], entry["size"]))
                for batch in obstore.list(self.store, prefix=below or None)
                for entry in batch
            }

        return self.ask(list_all)

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
        self.exists()

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
        """Put an object that must not be there yet; its tag, or None where one is there.

        That one may be our own: a request is repeated where its answer is lost.
        """
        return self._put_if(path, data, "create")

    def replace(self, path: str, data: bytes, tag: Tag) -> Tag | None:
        """Replace an object that must still have this tag; its new tag, or None where it has another one or is gone.

        As with `create`, the object that is there may be our own.
        """
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
                obstore.delete(self.store, [entry["path"] for entry in batch])

        self.check_guard()
        self.ask(delete)

    def log(self, path: str) -> Log:
        """A log that is put as one object."""
        return ObjectLog(self, path)


def _tag(meta: Any) -> Tag:
    return {"e_tag": meta.get("e_tag"), "version": meta.get("version")}
