"""A folder in an object store, by way of obstore: an object is put whole or not at all, and is then durable."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url

from landscape.core.errors import JobError, StoreError, quoted
from landscape.core.files import Folder, LineLog, R, T, temporary_folder
from landscape.core.store_watch import watched
from landscape.core.system import sent_from

# ----------------------------------------------------------------------------------------------------
# A log in an object store. Objects cannot be appended to, so the whole log is put again from time to time.

LOG_SECONDS = 30.0


@dataclass
class _Lines:
    """The content of a log, apart from the log itself, so that it can be put when the log is garbage-collected."""

    folder: Folder
    path: str
    data: bytearray
    dirty: bool = False

    def put(self) -> None:
        """Put all lines, if some were added since the last put."""
        if self.dirty:
            self.folder.write(self.path, bytes(self.data))
            self.dirty = False


class ObjectLog(LineLog):
    """Keeps lines in memory, and puts all of them when synced, or after a while.

    A crash loses the lines of the last `LOG_SECONDS`, or of 20 times the duration of the last put, if that is longer.
    """

    def __init__(self, folder: Folder, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._wait = clock, LOG_SECONDS
        self._lines = _Lines(folder, path, bytearray(folder.read(path) or b""))
        self._put = clock()
        weakref.finalize(self, self._lines.put)  # a process that ends in an orderly way loses no line

    def add(self, line: bytes) -> None:
        """Keep one line, newline included, and put all lines if the last put was long ago."""
        self._lines.data += line
        self._lines.dirty = True
        if self._clock() - self._put >= self._wait:
            self.sync()

    def sync(self) -> None:
        """Put all lines now; the next put waits 20 times as long as this one took."""
        began = self._clock()
        self._lines.put()
        self._put = self._clock()
        self._wait = max(LOG_SECONDS, 20 * (self._put - began))


# ----------------------------------------------------------------------------------------------------
# Errors of an object store in one line without secrets.

_SECRET = re.compile(r"SECRET|KEY|TOKEN|PASSWORD|SIGNATURE|SAS|CREDENTIAL", re.IGNORECASE)
_CREDENTIALS = re.compile(r"KEY|TOKEN|CREDENTIAL|SERVICE_ACCOUNT|CLIENT_ID|SKIP_SIGNATURE")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_ASKS_MACHINE = re.compile(r"169\.254\.169\.254|metadata\.google|/metadata/identity|instance.?metadata", re.IGNORECASE)
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles in ~/.aws are not read)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


def has_credentials(settings: Mapping[str, str]) -> bool:
    """Whether the environment names credentials; without them, obstore asks the machine for its own."""
    return any(value and _CREDENTIALS.search(name) for name, value in settings.items())


def missing_bucket(error: BaseException) -> bool:
    """Whether the whole bucket is missing, not only an object in it: stores answer both by 404."""
    return _NO_BUCKET.search(str(error)) is not None


def beyond_end(error: BaseException) -> bool:
    """Whether the requested range begins at or after the end of the object."""
    return re.search(r"\b416\b|InvalidRange", str(error)) is not None


def store_error(name: str, error: BaseException, settings: Mapping[str, str]) -> StoreError:
    """An exception of obstore as ours, with its remedy."""
    text = str(error)
    scheme = name.partition("://")[0]
    variables = CREDENTIALS.get(
        {"s3a": "s3"}.get(scheme, "az" if scheme.startswith("a") else scheme), "the credentials"
    )
    kind = type(error).__name__
    reason = _reason(text, settings)
    if missing_bucket(error):
        reason, remedy = "there is no such bucket", "make it or name another"
    elif _ASKS_MACHINE.search(text):
        reason, remedy = "no credentials were found", f"set {variables}"
        if sent_from() is not None:
            remedy += (
                " where the Ray head is started, or in the Secret of --secret (only jobs on Slurm have the variables "
                "of the shell that sent them)"
            )
    elif kind in ("PermissionDeniedError", "UnauthenticatedError"):
        reason, remedy = f"access is refused ({reason})", f"mend {variables}, or what they are allowed to do"
    else:
        remedy = "see that it answers"
    return StoreError(
        f"store {quoted(name)}: {reason}; what was committed is intact: {remedy}, then give the same command again",
        reason=reason,
        passing=kind == "GenericError" and "HTTP error" in text and "builder error" not in text,
    )


def _reason(text: str, settings: Mapping[str, str]) -> str:
    """The cause alone, request and answer: without URLs, secrets and the library's own words."""
    code = re.search(r"<Code>(\w+)</Code>", text)
    line = text.partition("\n")[0]
    method = re.search(r"Error performing ([A-Z]+) ", line)
    line = re.sub(r"^.*(?:HTTP error|status code): ?|^Generic \w+ error: ?", "", line)
    line = re.sub(r"<.*", "", line)
    line = re.sub(r"\w+://\S+", "(its address)", line).strip(" :.")
    for name, value in settings.items():
        if len(value) > 3 and _SECRET.search(name):
            line = line.replace(value, "…")
    named = f"{line} ({code[1]})" if code else line
    return f"{method[1]}: {named}"[:200] if method else named[:200]


# ----------------------------------------------------------------------------------------------------
# The connection to an object store: settings of the environment, checked, and the options of obstore made from them.

REQUEST_SECONDS = 30.0  # without a byte, until a request is given up and tried again
RETRY_SECONDS = 180.0  # until a request that keeps failing is an error; credentials may expire after 5 minutes
SLOWEST = 20  # how many times longer a whole request may take: a large chunk on a slow line
FIRST_WAIT = 0.1  # seconds between two tries


def time_limits(settings: Mapping[str, str]) -> tuple[float, float]:
    """Seconds for one request, and for a request with all its retries."""
    return (
        _seconds(settings, "LANDSCAPE_STORE_TIMEOUT", REQUEST_SECONDS),
        _seconds(settings, "LANDSCAPE_STORE_RETRY", RETRY_SECONDS),
    )


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
        raise JobError(f"{name}: must be a number of seconds above 0, not {quoted(settings[name])}")
    return value


def make_store(url: str, settings: Mapping[str, str], seconds: float, retry: float) -> Any:
    """obstore's own store; credentials, endpoint and region come from the environment, as each cloud names them.

    Raises:
        JobError: the store cannot be set up; names the wrong setting.
    """
    _refuse_endpoints(settings)
    # These options replace those that obstore would read from the environment.
    client = {
        "allow_http": _allows_http(settings), "read_timeout": timedelta(seconds=seconds),
        "connect_timeout": timedelta(seconds=min(seconds, 5.0)), "timeout": timedelta(seconds=SLOWEST * seconds),
    }  # fmt: skip
    first = min(FIRST_WAIT, retry / 8)  # obstore crashes unless the longest wait is longer than the first
    backoff = {
        "init_backoff": timedelta(seconds=first),
        "max_backoff": timedelta(seconds=min(15.0, max(0.3, retry / 4))),
    }
    retries: Any = {"max_retries": 1000, "retry_timeout": timedelta(seconds=retry), "backoff": backoff}
    config: Any = {"account_name": settings["AZURE_STORAGE_ACCOUNT"]} if "AZURE_STORAGE_ACCOUNT" in settings else None
    try:
        return from_url(url, config=config, client_options=client, retry_config=retries)  # type: ignore[call-overload]
    except (BaseError, ValueError) as error:
        raise JobError(f"run: {quoted(url)} cannot be opened: {store_error(url, error, settings).reason}") from None


# ----------------------------------------------------------------------------------------------------

PART = 16 << 20
SIDE_BY_SIDE = 8
CREDENTIAL_SECONDS = 10.0
LONGEST_WAIT = 5.0  # seconds between two tries

Tag = dict[str, Any]

_guards: dict[str, Callable[[], None]] = {}  # by the name of a folder: the check before each write in it


class ObjectFolder(Folder):
    """Objects below a prefix. A network error is a `StoreError`, never mistaken for an absent object."""

    def __init__(self, url: str, settings: Mapping[str, str], seconds: float, retry: float) -> None:
        self.name, self._settings, self._seconds, self._retry = url, settings, seconds, retry
        self.store: Any = make_store(url, settings, seconds, retry)

    def brisk(self, seconds: float) -> ObjectFolder:
        """The same folder with shorter time limits, for requests whose answer is useless after `seconds`."""
        return ObjectFolder(self.name, self._settings, min(seconds / 2, self._seconds), seconds)

    @contextlib.contextmanager
    def speaking(self, *, may_be_absent: bool = False) -> Iterator[None]:
        """Turn the exceptions of obstore into a `StoreError` of one line.

        Args:
            may_be_absent: whether the FileNotFoundError of an absent object is raised as it is.
        """
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            if may_be_absent and isinstance(error, FileNotFoundError) and not missing_bucket(error):
                raise
            raise store_error(self.name, error, self._settings) from None

    def ask(self, question: Callable[[], R], *, may_be_absent: bool = False) -> R:
        """The answer of a request, repeated if the answer breaks off: obstore only repeats requests without one."""
        with watched(self.name, self._retry):
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
        with watched(self.name, self._retry):
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
        """Seconds to wait before the next try; None after the last one."""
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
        """Call every check of this folder, and of those above it, before a write of this process.

        Raises:
            LandscapeError: another driver has taken the run over.
        """
        for held, check in tuple(_guards.items()):
            if self.name == held or self.name.startswith(held + "/"):
                check()

    # -- reading ----------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is any object below the prefix."""
        # Every command asks this first. Without credentials in the environment, obstore asks the machine, for long.
        folder = self if has_credentials(self._settings) else self.brisk(CREDENTIAL_SECONDS)
        return folder.ask(lambda: any(len(batch) > 0 for batch in obstore.list(folder.store, chunk_size=1)))

    def read(self, path: str) -> bytes | None:
        """The whole object; None where there is none."""
        tagged = self.read_tagged(path)
        return None if tagged is None else tagged[0]

    def read_tagged(self, path: str) -> tuple[bytes, Tag, datetime] | None:
        """The content of an object, the tag that `replace` compares, and the time of its put by the store's clock."""

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
        """A copy of the object in a temporary folder, which is deleted after the block.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with temporary_folder() as folder:
            local = folder / path.rpartition("/")[2]
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
        """Do nothing: a prefix exists with its first object."""

    def refuse_unwritable(self) -> None:
        """Send one request to the bucket; whether it takes objects shows when the lock is put.

        Raises:
            StoreError: there is no such bucket, the credentials are refused, or the store does not answer.
        """
        self.exists()

    def write(self, path: str, data: bytes) -> None:
        """Put an object, if this process may write."""
        self.check_guard()
        self.ask(lambda: obstore.put(self.store, path, data))

    @contextlib.contextmanager
    def whole(self, path: str) -> Iterator[Path]:
        """A file in a temporary folder to fill; it is put at `path` when the block ends without an error."""
        with temporary_folder() as folder:
            local = folder / path.rpartition("/")[2]
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
        """Put an object that must not exist yet; its tag, or None if one exists.

        The existing object may be our own: a request is repeated when its answer is lost.
        """
        return self._put_if(path, data, "create")

    def replace(self, path: str, data: bytes, tag: Tag) -> Tag | None:
        """Replace an object that must still have this tag; its new tag, or None if it has another tag or is deleted.

        As with `create`, the existing object may be our own.
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
        """Delete one object, if it exists."""
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

    def log(self, path: str) -> LineLog:
        """A log that is put as one object."""
        return ObjectLog(self, path)


def _tag(meta: Any) -> Tag:
    return {"e_tag": meta.get("e_tag"), "version": meta.get("version")}
