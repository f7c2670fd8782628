"""Locks that give a run one driver: a file lock that dies with its owner, or in an object store one that is renewed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from landscape.core.errors import JobError, LandscapeError, StoreError, flat, quoted
from landscape.core.files import Folder, LocalFolder
from landscape.core.folders import open_folder
from landscape.core.system import is_alive

# ----------------------------------------------------------------------------------------------------
# The lock of a run in an object store: an object put by condition, which its living owner puts again and again.
#
# Clocks are never compared. A newcomer takes a lock over once it stayed unchanged for a whole lease by its own clock.
# An owner that could not renew for that long asks the store whether it still owns the run before it writes again.

log = logging.getLogger("landscape")

CARD = "driver.json"
LEASE_SECONDS = 30.0
LONGEST_LEASE = 86400.0
BEATS = 6  # renewals per lease
SETTING = "LANDSCAPE_STORE_LEASE"


def _clock() -> float:
    """Seconds that also pass while the machine sleeps, where the system counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def lease_seconds(card: bytes) -> float:
    """The seconds for which the owner of a lock may fail to renew it, as its card says.

    Args:
        card: the content of the lock, which describes its owner.
    """
    try:
        seconds = float(json.loads(card)["lease"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return LEASE_SECONDS
    return seconds if 0 < seconds <= LONGEST_LEASE else LEASE_SECONDS


@contextlib.contextmanager
def lease(folder: Any, card: str = CARD) -> Iterator[None]:
    """Own the run in `folder` while the block runs; each write there first checks that this process still owns it.

    Args:
        card: the object that is the lock.

    Raises:
        LandscapeError: another living driver owns the run; the message names it.
    """
    try:
        seconds = float(os.environ.get(SETTING, LEASE_SECONDS))
    except ValueError:
        raise JobError(f"{SETTING}: must be a number of seconds, not {quoted(os.environ[SETTING])}") from None
    held = Lease(folder, seconds, path=card)
    held.acquire()
    beating = threading.Thread(target=held.beat, name="lease", daemon=True)
    beating.start()
    try:
        with folder.guarded(held.check):
            yield
    finally:
        held.stop()
        beating.join()
        held.release()


class Lease:
    """One process's claim to a run."""

    def __init__(self, folder: Any, seconds: float, clock: Callable[[], float] = _clock, path: str = CARD) -> None:
        self._folder, self._seconds, self._clock, self._path = folder, seconds, clock, path
        self._brisk = folder.brisk(seconds / 3)  # a late renewal is useless
        self._card = {
            "pid": os.getpid(), "host": socket.gethostname(), "started": time.time(),
            "id": uuid.uuid4().hex, "lease": seconds, "beat": 0,
        }  # fmt: skip
        self._tag: Any = None
        self._renewed = 0.0
        self._lost = ""
        self._lock, self._stopped = threading.Lock(), threading.Event()

    # -- taking the lock --------------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Take the lock; if another driver holds it, watch for a whole lease whether that driver renews it.

        Raises:
            LandscapeError: the other driver lives; the message names it.
        """
        began = self._clock()
        self._tag = self._folder.create(self._path, self._data())
        while self._tag is None:
            began = self._claim()
        self._renewed = began

    def _claim(self) -> float:
        """Try once to take the lock, if it is free or its owner does not renew it for a whole lease.

        Returns:
            When the request that may have taken the lock began, by our clock.
        """
        lock = self._folder.read_tagged(self._path)
        began = self._clock()
        if lock is None:
            self._tag = self._folder.create(self._path, self._data())
        elif self._is_mine(lock[0]):
            self._tag = lock[1]  # our request succeeded, and only its answer was lost
        else:
            tag = self._watch(lock[0], lock[1])
            began = self._clock()
            self._tag = self._folder.replace(self._path, self._data(), tag) if tag else None
        return began

    def _watch(self, card: bytes, tag: Any) -> Any:
        """Watch another driver's lock for a whole lease.

        Returns:
            The tag of the lock, which stayed the same; None if the lock was deleted.

        Raises:
            LandscapeError: the lock was renewed, so its owner lives.
        """
        seconds = lease_seconds(card)
        log.warning("run %r is locked by %s; watching for %g s whether it is alive", *self._who(card), seconds)
        began = self._clock()
        while self._clock() - began < seconds:
            time.sleep(seconds / BEATS / 2)
            try:
                lock = self._brisk.read_tagged(self._path)
            except StoreError:
                began = self._clock()  # if we cannot read the lock, its owner may have been unable to renew it
                continue
            if lock is None:
                return None
            if lock[1] != tag:
                run, owner = self._who(lock[0])
                raise LandscapeError(f"run: {quoted(run)} is being written by {owner}; wait for it or stop it first")
        log.warning("run %r: %s has not renewed its lock for %g s; taking the lock over", *self._who(card), seconds)
        return tag

    def _who(self, card: bytes) -> tuple[str, str]:
        try:
            owner = json.loads(card)
            return self._folder.name, f"process {flat(str(owner['pid']), 20)} on {flat(str(owner['host']), 100)}"
        except (ValueError, KeyError, TypeError, RecursionError):
            return self._folder.name, "another driver"

    def _is_mine(self, card: bytes) -> bool:
        return self._card["id"].encode() in card  # type: ignore[attr-defined]

    def _data(self) -> bytes:
        return json.dumps(self._card).encode()

    # -- keeping the lock -------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Renew the lock until `stop` is called. A failed renewal is tried again; writes are protected by `check`."""
        while not self._stopped.wait(self._seconds / BEATS):
            with contextlib.suppress(LandscapeError):
                self.renew()

    def check(self) -> None:
        """Raise unless this process owns the run; asks the store only if the last renewal is half a lease ago.

        Raises:
            LandscapeError: another driver has taken the run over.
            StoreError: the store does not answer.
        """
        if self._lost or self._clock() - self._renewed > self._seconds / 2:
            self.renew()

    def renew(self) -> None:
        """Put the lock again with the next beat, and note the time of the request by our own clock.

        Raises:
            LandscapeError: another driver has taken the run over.
            StoreError: the store does not answer.
        """
        with self._lock:
            if self._lost:
                raise LandscapeError(self._lost)
            began = self._clock()
            self._card["beat"] = int(self._card["beat"]) + 1  # type: ignore[call-overload]
            tag = self._brisk.replace(self._path, self._data(), self._tag)
            if tag is None:
                tag = self._after_conflict()
            self._tag, self._renewed = tag, began

    def _after_conflict(self) -> Any:
        """The tag of the lock after a conflict, if we put the lock ourselves and only the answer was lost.

        Raises:
            LandscapeError: another driver put the lock, or it was deleted.
        """
        lock = self._brisk.read_tagged(self._path)
        if lock is not None and self._is_mine(lock[0]):
            return lock[1]
        run, owner = self._who(lock[0]) if lock else (self._folder.name, "another driver, which has ended,")
        self._lost = (
            f"run: {quoted(run)} was taken over by {owner} while this one was silent; what is committed is intact, and "
            "this driver stops writing"
        )
        raise LandscapeError(self._lost)

    # -- leaving the lock -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End `beat`."""
        self._stopped.set()

    def release(self) -> None:
        """Delete the lock if it is ours; if the store does not answer, the lease runs out by itself."""
        with contextlib.suppress(LandscapeError):
            self.renew()
            self._brisk.delete(self._path)


# ----------------------------------------------------------------------------------------------------

LOCK = "driver.lock"
# One training and one measurement at a time write a run, beside the one driver that computes landscapes of it.
TRAINING_LOCK, TRAINING_CARD = "training.lock", "training.json"
MEASURING_LOCK, MEASURING_CARD = "measuring.lock", "measuring.json"
LONGEST_CARD = 1 << 16
ASKING_SECONDS = 0.5


@contextlib.contextmanager
def run_lock(run: str) -> Iterator[None]:
    """Hold the run's lock while the block runs.

    On this machine the operating system frees the lock when the process ends; in an object store the lock expires once
    it is no longer renewed.

    Raises:
        JobError: the run cannot be a folder.
        LandscapeError: another living driver holds the lock; the message names it.
    """
    folder = open_folder(run)
    with lease(folder) if "://" in folder.name else _file_lock(run, folder, LOCK, CARD):
        yield


@contextlib.contextmanager
def training_lock(run: str) -> Iterator[bytes]:
    """Hold the run's lock against other trainings while the block runs; landscapes may be computed meanwhile.

    Yields:
        The content of the file in the run that describes this process.

    Raises:
        JobError: the run cannot be a folder.
        LandscapeError: another living training holds the lock; the message names it.
    """
    folder = open_folder(run)
    with (
        lease(folder, TRAINING_CARD) if "://" in folder.name else _file_lock(run, folder, TRAINING_LOCK, TRAINING_CARD)
    ):
        yield folder.read(TRAINING_CARD) or b""


@contextlib.contextmanager
def measuring_lock(run: str) -> Iterator[None]:
    """Hold the run's lock against other measurements while the block runs; landscapes may be computed meanwhile.

    Raises:
        JobError: the run cannot be a folder.
        LandscapeError: another living measurement holds the lock; the message names it.
    """
    folder = open_folder(run)
    with (
        lease(folder, MEASURING_CARD)
        if "://" in folder.name
        else _file_lock(run, folder, MEASURING_LOCK, MEASURING_CARD)
    ):
        yield


@contextlib.contextmanager
def _file_lock(run: str, folder: Folder, path: str, card: str) -> Iterator[None]:
    LocalFolder(Path(folder.name)).refuse_packed()
    try:
        folder.make()
    except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
        reason = error.strerror or "no folder can be made there"
        raise JobError(f"run: must be a folder, not {quoted(run)} ({reason}); name another place") from None
    owner, place = Path(folder.place(card)), Path(folder.place(path))
    if place.is_symlink():
        raise LandscapeError(f"run: {quoted(str(place), 300)} is a link, which is not followed; remove it")
    lock = FileLock(place)
    try:
        # A process that checks whether a driver is alive holds the lock for an instant.
        lock.acquire(timeout=ASKING_SECONDS)
    except Timeout:
        raise LandscapeError(
            f"run: {quoted(run)} is being {'measured' if card == MEASURING_CARD else 'written'} by "
            f"{_describe(folder, card)}; wait for it or stop it first"
        ) from None
    try:
        owner.unlink(missing_ok=True)  # the file may be a link, through which another file would be overwritten
        try:
            with open(owner, "x") as file:
                file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(owner)) from None  # a failed write names no file
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _describe(folder: Folder, path: str) -> str:
    owner = _owner(folder, path)
    return f"process {owner['pid']} on {flat(owner['host'], 100)}" if owner else "another driver"


def _owner(folder: Folder, path: str) -> dict[str, Any]:
    """The content of the file that describes a run's owner; empty where it cannot be read."""
    if Path(folder.place(path)).is_symlink():
        return {}
    try:
        card = json.loads(folder.read_range(path, 0, LONGEST_CARD))
    except (OSError, ValueError, RecursionError):
        return {}
    well_formed = isinstance(card, dict) and type(card.get("pid")) is int and isinstance(card.get("host"), str)
    return card if well_formed else {}


def driver_alive(run: str) -> bool:
    """Whether the driver of this run is alive, judged by its lock, which the operating system releases at its end.

    Where the file system has no locks, the process id in `CARD` decides, if the process is of this machine.
    """
    return _is_alive(run, LOCK, CARD)


def training_alive(run: str) -> bool:
    """Whether a training that writes this run is alive, judged as `driver_alive` judges a driver."""
    return _is_alive(run, TRAINING_LOCK, TRAINING_CARD)


def living_driver(run: str) -> str:
    """The driver of this run in words, such as `process 12 on host`; empty if none is alive."""
    return _describe(open_folder(run), CARD) if driver_alive(run) else ""


def living_measurement(run: str) -> str:
    """The measurement of this run in words, likewise."""
    return _describe(open_folder(run), MEASURING_CARD) if _is_alive(run, MEASURING_LOCK, MEASURING_CARD) else ""


def _is_alive(run: str, path: str, card: str) -> bool:
    folder: Any = open_folder(run)
    if "://" in folder.name:
        return _renewed(folder, card)
    held = _is_held(Path(folder.place(path)))
    return _is_running(_owner(folder, card)) if held is None else held


def _is_held(lock: Path) -> bool | None:
    """Whether a process holds a file's lock; None where that is unknown. It needs no right to write."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    else:
        return False
    finally:
        os.close(descriptor)


def _is_running(owner: dict[str, Any]) -> bool:
    if not owner:
        return False
    if owner["host"] != socket.gethostname():
        return True  # whether a process on another machine is alive, only the lock itself could tell
    return is_alive(owner["pid"])


def _renewed(folder: Any, path: str) -> bool:
    """Whether the lock in an object store was put within its lease; the two clocks may differ by less than that."""
    lock = folder.read_tagged(path)
    return lock is not None and (datetime.now(UTC) - lock[2]).total_seconds() < lease_seconds(lock[0])
