"""The landscapes that are served: the values on disk of each, and a file of the values that were served.

This file is RUN/served/LANDSCAPE-IDENTITY.points: a header that names the landscape, and rows of equal length. A row
holds the coordinates of a point, its values and a CRC32C. Rows are appended; a kill loses at most those that are being
written. The identity is the digest of all that decides the values, so another landscape, plan or network has another
file.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import google_crc32c
import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from cluster.serving.replica import ComputedValues, Curvature, DerivativeKind, Gradient, refuse_gone, revision_of
from cluster.serving.requests import NOT_FOUND, LandscapeInfo, Refusal, describe_stored
from cluster.serving.sources import LandscapeSource
from landscape.core.errors import JobError, quoted
from landscape.core.files import fsync, make_folder, whole_file
from landscape.core.grid import Floats
from landscape.store.landscape import LandscapeStore
from landscape.surface.derived import derive
from landscape.surface.surface import NOT_FINITE, OK, RISE_STDERR, Surface

FOLDER, LOCK = "served", ".lock"
MAGIC = b"landscape served points 1\n"
CRC = struct.Struct("<I")
READ_ROWS = 1 << 14  # at once

log = logging.getLogger("landscape")


class PointFile:
    """The file of one landscape, open for appending, by one process only (`lock_point_folder`).

    Raises:
        JobError: the file belongs to another landscape, or cannot be written.
    """

    def __init__(self, folder: Path, landscape: str, info: LandscapeInfo) -> None:
        self.path = folder / f"{landscape}-{info.identity}.points"
        self._point, self._row = 8 * len(info.axes), 8 * len(info.columns)
        self._length = self._point + self._row + CRC.size
        header = _header(info)
        self._begin, self._places = len(header), dict[bytes, int]()
        try:
            if not self.path.exists() or self.path.stat().st_size < len(header):
                with whole_file(self.path) as temporary:
                    temporary.write_bytes(header)
            self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            if os.pread(self._file, len(header), 0) != header:
                raise JobError(f"keep: {quoted(str(self.path), 300)} is damaged; move it away to begin a new one")
            self._end = self._read()
        except OSError as error:
            raise JobError(f"keep: {quoted(str(self.path), 300)} cannot be written: {error.strerror}") from None

    def __len__(self) -> int:
        return len(self._places)

    def get(self, point: bytes) -> bytes | None:
        """The row of a point; None if it is not kept, or damaged."""
        place = self._places.get(point)
        if place is None:
            return None
        read = os.pread(self._file, self._length, place)
        content, check = read[: -CRC.size], read[-CRC.size :]
        if content[: self._point] != point or check != _crc(content):
            log.warning("keep: %s is damaged; a value is computed again", self.path)
            del self._places[point]
            return None
        return content[self._point :]

    def latest(self) -> tuple[bytes, bytes] | None:
        """The point that was kept last, and its row; None if the file is empty."""
        point = next(reversed(self._places), None)
        row = None if point is None else self.get(point)
        return None if point is None or row is None else (point, row)

    def commit(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Append rows of points that are not kept yet; they are on the disk when this returns.

        Raises:
            OSError: the disk is full, or gone; the rows before these are still kept.
        """
        new = [(point, row) for point, row in dict(rows).items() if point not in self._places]
        if not new:
            return
        content = b"".join(point + row + _crc(point + row) for point, row in new)
        try:
            written = os.pwrite(self._file, content, self._end)
            if written < len(content):
                raise OSError(28, os.strerror(28))
            os.fdatasync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        for number, (point, _) in enumerate(new):
            self._places[point] = self._end + number * self._length
        self._end += len(content)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self) -> int:
        """Read the sound rows and cut off a row that a kill left incomplete; returns where the file ends."""
        place = end = self._begin
        while block := os.pread(self._file, READ_ROWS * self._length, place):
            for start in range(0, len(block) - self._length + 1, self._length):
                content, check = block[start : start + self._length - CRC.size], block[start:][: self._length]
                if check[-CRC.size :] == _crc(content):
                    self._places[content[: self._point]] = place + start
                    end = place + start + self._length
            if len(block) < READ_ROWS * self._length:
                break
            place += len(block)
        if end < os.fstat(self._file).st_size:
            log.info("%s: the last rows are incomplete, and are computed again", self.path)
            os.ftruncate(self._file, end)
            os.fsync(self._file)
        return end


class PointFiles:
    """The open files of a service.

    Versions that are the same landscape share one: with a file each, they would overwrite each other's rows.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[Path, str, str], PointFile] = {}

    def points_of(self, folder: Path, landscape: str, info: LandscapeInfo) -> PointFile:
        """The file of a landscape, opened when it is first asked for."""
        place = folder, landscape, info.identity
        if place not in self._open:
            self._open[place] = PointFile(folder, landscape, info)
        return self._open[place]

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()


def _header(info: LandscapeInfo) -> bytes:
    known = {
        "identity": info.identity,
        "axes": [axis.name for axis in info.axes],
        "columns": list(info.columns),
    }
    content = json.dumps(known, separators=(",", ":")).encode()
    return MAGIC + CRC.pack(len(content)) + content + _crc(content)


def _crc(content: bytes) -> bytes:
    return CRC.pack(google_crc32c.value(content))


@contextlib.contextmanager
def lock_point_folder(run: str) -> Iterator[Path]:
    """Within the block, only this process keeps values of a run; yields their folder.

    Raises:
        JobError: another service keeps values there, or the run is no folder on this machine.
    """
    if "://" in run:
        raise JobError(f"keep: needs a run in a folder, and {quoted(run, 300)} is a URL; leave out --keep")
    folder = Path(run) / FOLDER
    try:
        make_folder(folder)
        with FileLock(folder / LOCK, timeout=0, mode=0o600):
            fsync(folder)
            yield folder
    except Timeout:
        raise JobError(
            f"keep: another service keeps values of run {quoted(run, 300)}; end it, or leave out --keep"
        ) from None
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise JobError(f"keep: run {quoted(run, 300)} cannot be written: {error.strerror}; leave out --keep") from None


# ----------------------------------------------------------------------------------------------------
# The points of a landscape on disk, with those of its refinement, found by their coordinates.


@dataclass(frozen=True, eq=False)
class StoredPoints:
    """The values of a surface in memory.

    Args:
        surface: as read, with its levels.
        columns: the names of a point's values, in their order; a value that the surface lacks is NaN.
    """

    surface: Surface
    columns: tuple[str, ...]

    def find(self, points: Floats) -> tuple[NDArray[np.bool_], Floats]:
        """Which of the points [P, axes] were evaluated and are held, and the values of those, [held, columns]."""
        merged = self.surface
        held, indices = np.ones(len(points), bool), []
        for column, axis in enumerate(merged.axes):
            index, on_axis = _places(axis.coordinates, points[:, column])
            held &= on_axis
            indices.append(index)
        place = tuple(reversed(indices))
        status = merged.status[place]
        held &= (status == OK) | (status == NOT_FINITE)
        if merged.interpolated is not None:
            held &= merged.interpolated[place] == 0
        chosen = tuple(index[held] for index in place)
        nothing = np.full(int(held.sum()), np.nan)
        values = [merged.observables[name][chosen] if name in merged.observables else nothing for name in self.columns]
        return held, np.stack(values, axis=1)


def _places(coordinates: Floats, wanted: Floats) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The index of each wanted coordinate on an axis, and whether the axis has it to the bit."""
    order = np.argsort(coordinates)
    found = np.searchsorted(coordinates, wanted, sorter=order).clip(0, len(coordinates) - 1)
    index = order[found]
    return index, coordinates[index] == wanted


def _content_state(store: LandscapeStore) -> Sequence[object]:
    """A state that changes when a landscape or one of its levels gets values, or is replaced."""
    records = [level.record for level in (store, *store.levels())]
    return [(record.digest, record.provenance.created, record.progress) for record in records]


# ----------------------------------------------------------------------------------------------------
# A landscape as the service knows it: its values on disk, and where its served values are kept.

PROMISED_SECONDS = 2.0  # the oldest reading of the disk that an answer may use: docs/howto/serve.md promises it
EARLY_SECONDS = 1.0  # after which the disk is read while requests are answered, so that under load none waits for it


class Replicas(Protocol):
    """The replicas, which compute; each call may go to another one."""

    async def points(self, key: str, points: Floats) -> ComputedValues:
        """The values at points [P, axes]; raises a Refusal."""

    async def derivative(self, key: str, kind: DerivativeKind, point: Sequence[float]) -> Gradient | Curvature:
        """The first or the second derivatives of the loss along the axes at a point; raises a Refusal."""

    async def describe(self, key: str) -> LandscapeInfo:
        """The description of a landscape; raises a Refusal."""


@dataclass
class ServedLandscape:
    """One landscape that is served.

    Attributes:
        info: its description when the service began; a landscape that replaced it under its name is refused.
        revision: distinguishes it from another landscape of its name; empty until the disk is first read.
        stored: the values on disk when it was last read.
        point_file: its served values on disk; None if they are not kept.
    """

    source: LandscapeSource
    info: LandscapeInfo
    stored: StoredPoints | None = None
    point_file: PointFile | None = None
    clock: Callable[[], float] = time.monotonic
    revision: str = field(default="", init=False)
    _read_at: float = field(default=-1e9, init=False)  # when the last finished reading began
    _state: Sequence[object] = field(default=(), init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _failure: Exception | None = field(default=None, init=False)

    def values(self, table: Floats, rise: bool) -> dict[str, Floats]:
        """The values of points by name, [P] each, computed and derived ones, from a table [P, columns].

        Args:
            rise: whether they include the error of the rise.
        """
        named: dict[str, Floats] = dict(zip(self.info.columns, np.ascontiguousarray(table.T), strict=True))
        error = named.pop(RISE_STDERR)
        named |= derive(dict(self.info.derived), named)
        return {**named, RISE_STDERR: error} if rise else named

    async def refresh(self) -> None:
        """Read the disk again unless the last reading is at most two seconds old.

        Raises:
            NotFoundError: the run is gone.
            Refusal: the landscape is gone, or another one has its name.
        """
        now = self.clock()
        if self._failure is not None or self._read_at < now - PROMISED_SECONDS:
            await asyncio.shield(self._reading())
        if self._read_at < now - PROMISED_SECONDS:  # that reading had begun before, and was slow
            await asyncio.shield(self._reading())
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if now - self._read_at >= EARLY_SECONDS:
            self._reading()

    def refuse_other_revision(self, revision: str) -> None:
        """Refuse values that a replica computed of another landscape, which has taken this one's name.

        Raises:
            Refusal: the revision is another one.
        """
        if revision != self.revision:
            raise self._replaced()

    def read_disk(self) -> None:
        """Read the values on disk."""
        began = self.clock()
        try:
            refuse_gone(self.source)
            store = LandscapeStore.find(self.source.run, self.source.landscape)
            if store is None and self.source.job is None:
                raise Refusal(
                    NOT_FOUND, f"landscape: {quoted(self.source.landscape)} is gone from its run; put it back"
                )
            self.revision = self.revision or revision_of(self.source, self.info, store)
            state = () if store is None else _content_state(store)
            if state != self._state:
                self.stored, self._state = self._stored_points(store), state
        finally:
            self._read_at = began

    def _reading(self) -> asyncio.Task[None]:
        """The reading that is under way, or else a new one."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(asyncio.to_thread(self._try_to_read))
        return self._task

    def _try_to_read(self) -> None:
        try:
            self.read_disk()
            self._failure = None
        except Exception as error:  # the next request raises it
            self._failure = error

    def _stored_points(self, store: LandscapeStore | None) -> StoredPoints | None:
        """The values on disk; None if the disk has none of this landscape."""
        if store is None or self._is_another(store):
            return None
        if store.record.accuracy is not None:  # an estimate: a point that is asked for is the mean over all samples
            return None
        values = StoredPoints(store.read_surface().merged(), self.info.columns)
        after = LandscapeStore.find(self.source.run, self.source.landscape)
        # Some of the values may be of another landscape that has replaced this one meanwhile.
        return None if after is None or self._is_another(after) else values

    def _is_another(self, store: LandscapeStore) -> bool:
        """Whether the landscape on disk has another identity: a job's values are then not read from it.

        Raises:
            Refusal: it has replaced the landscape of a run that is served.
        """
        now = describe_stored(store)
        if now is None or revision_of(self.source, now, store) == self.revision:
            return False
        if self.source.job is None:
            raise self._replaced()
        return True

    def _replaced(self) -> Refusal:
        name = quoted(self.source.landscape)
        return Refusal(NOT_FOUND, f"landscape: {name} was computed again since this service began; restart the service")


async def check_point_file(file: PointFile, key: str, replicas: Replicas) -> None:
    """Refuse a file of values if a replica computes other ones.

    The identity in its name covers weights and samples, but not the code that computes with them.

    Raises:
        JobError: other code, or another machine, computed the values.
        Refusal: no replica answers.
    """
    latest = file.latest()
    if latest is None:
        return
    point, row = latest
    computed = await replicas.points(key, np.frombuffer(point)[None])
    if computed.whole and not np.array_equal(computed.table[0], np.frombuffer(row), equal_nan=True):
        raise JobError(
            f"keep: {quoted(str(file.path), 300)} holds other values than this machine and code compute now; "
            "move it away to begin a new one"
        )


def rows_as_bytes(points: Floats) -> list[bytes]:
    """The coordinates of each point [P, axes] as bytes, which identify it."""
    content, length = np.ascontiguousarray(points).tobytes(), 8 * points.shape[1]
    return [content[start : start + length] for start in range(0, len(content), length)]
