"""Served values on disk, beside the run: appended row by row, each with its checksum, safe against kills.

RUN/served/LANDSCAPE-IDENTITY.points is a header, which names what the values are of, and rows of equal length: the
coordinates, the values, a CRC32C. The identity is the digest of all that decides the values, so that those of another
landscape, plan or network are in another file.
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

from cluster.serving.replica import ComputedValues, Curvature, Gradient, mark_of, refuse_gone
from cluster.serving.requests import NOT_FOUND, LandscapeInfo, Refusal, describe_stored
from cluster.serving.sources import LandscapeSource
from landscape.core.errors import JobError, quoted
from landscape.core.files import fsync, make_folder, whole_file
from landscape.core.grid import Floats
from landscape.store.landscape import LandscapeStore
from landscape.surface.surface import NOT_FINITE, OK, Surface

FOLDER, LOCK = "served", ".lock"
MAGIC = b"landscape served points 1\n"
CRC = struct.Struct("<I")
READ_ROWS = 1 << 14  # at once

log = logging.getLogger("landscape")


class KeptPoints:
    """The file of one landscape, open for appending. One process alone has it, see `keeping`.

    Raises:
        JobError: the file is of something else, or cannot be written.
    """

    def __init__(self, folder: Path, landscape: str, described: LandscapeInfo) -> None:
        self.path = folder / f"{landscape}-{described.identity}.points"
        self._point, self._row = 8 * len(described.axes), 8 * len(described.columns)
        self._length = self._point + self._row + CRC.size
        header = _header(described)
        self._begin, self._places = len(header), dict[bytes, int]()
        try:
            if not self.path.exists() or self.path.stat().st_size < len(header):
                with whole_file(self.path) as temporary:
                    temporary.write_bytes(header)
            self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            if os.pread(self._file, len(header), 0) != header:
                raise JobError(
                    f"keep: {quoted(str(self.path), 300)} is damaged; move it away, and values are kept anew"
                )
            self._end = self._read()
        except OSError as error:
            raise JobError(f"keep: {quoted(str(self.path), 300)} cannot be written: {error.strerror}") from None

    def __len__(self) -> int:
        return len(self._places)

    def get(self, point: bytes) -> bytes | None:
        """The row of a point; None where it is not kept, or is not what was written."""
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
        """The point that was kept last, and its row; None where nothing is kept."""
        point = next(reversed(self._places), None)
        row = None if point is None else self.get(point)
        return None if point is None or row is None else (point, row)

    def commit(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Append rows of points that are not kept yet; they are on the disk when this returns.

        Raises:
            OSError: the disk is full, or gone; what was kept before still is.
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
        """Take in the sound rows, and cut off what a kill has left half written; returns where the file ends."""
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
            log.info("%s: the last rows were not written whole, and are computed again", self.path)
            os.ftruncate(self._file, end)
            os.fsync(self._file)
        return end


class KeptFiles:
    """The open files of a service: one for all versions that are the same landscape, which would else write into it by
    turns and mix their values.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[Path, str, str], KeptPoints] = {}

    def points_of(self, folder: Path, landscape: str, described: LandscapeInfo) -> KeptPoints:
        """The file of a landscape, opened when it is first asked for."""
        place = folder, landscape, described.identity
        if place not in self._open:
            self._open[place] = KeptPoints(folder, landscape, described)
        return self._open[place]

    def close(self) -> None:
        """Close all files."""
        for kept in self._open.values():
            kept.close()


def _header(described: LandscapeInfo) -> bytes:
    known = {
        "identity": described.identity,
        "axes": [axis.name for axis in described.axes],
        "columns": list(described.columns),
    }
    content = json.dumps(known, separators=(",", ":")).encode()
    return MAGIC + CRC.pack(len(content)) + content + _crc(content)


def _crc(content: bytes) -> bytes:
    return CRC.pack(google_crc32c.value(content))


@contextlib.contextmanager
def keeping(run: str) -> Iterator[Path]:
    """Within the block, this process alone keeps values of a run; gives the folder that they lie in.

    Raises:
        JobError: another service keeps values there, or the run is no folder of this machine.
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
# Points that a landscape on disk holds, those of its refinement among them, found by their coordinates.


@dataclass(frozen=True, eq=False)
class StoredPoints:
    """The values of a surface in memory.

    Args:
        surface: as it is read, its levels beside it.
        columns: the names of a point's values, in their order. Names that an earlier version did not keep are NaN.
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
    """The place of each wanted coordinate on an axis, and whether it is there to the bit."""
    order = np.argsort(coordinates)
    found = np.searchsorted(coordinates, wanted, sorter=order).clip(0, len(coordinates) - 1)
    index = order[found]
    return index, coordinates[index] == wanted


def read_stored(store: LandscapeStore, columns: tuple[str, ...]) -> StoredPoints:
    """All values of a landscape and its levels."""
    return StoredPoints(store.read_surface().merged(), columns)


def state_of(store: LandscapeStore) -> Sequence[object]:
    """What changes when the store gets values, or is another one: of the landscape, and of each level."""
    records = [each.record for each in (store, *store.levels())]
    return [(each.digest, each.provenance.created, each.progress) for each in records]


# ----------------------------------------------------------------------------------------------------
# A landscape as the service knows it: what is on disk of it by now, and where its served values are kept.

PROMISED_SECONDS = 2.0  # an answer is of the disk as it was at most so long ago: docs/howto/serve.md promises it
EARLY_SECONDS = 1.0  # after which the disk is looked at beside the answers, so that under load no request waits for it


class Replicas(Protocol):
    """Those who compute; each call may be answered by another one."""

    async def points(self, key: str, points: Floats) -> ComputedValues:
        """The values at points [P, axes]; raises a Refusal."""

    async def gradient(self, key: str, point: Sequence[float]) -> Gradient:
        """The slopes at a point; raises a Refusal."""

    async def curvature(self, key: str, point: Sequence[float]) -> Curvature:
        """The second derivatives at a point; raises a Refusal."""

    async def describe(self, key: str) -> LandscapeInfo:
        """What is known of a landscape; raises a Refusal."""


@dataclass
class ServedLandscape:
    """One landscape that is served.

    Attributes:
        described: what it was when the service began; another one is not answered for.
        mark: tells what is answered for from another landscape of that name; empty until the first look.
        stored: the values on disk, as of the last look.
        kept: its served values on disk; None where they are not kept.
    """

    source: LandscapeSource
    described: LandscapeInfo
    stored: StoredPoints | None = None
    kept: KeptPoints | None = None
    clock: Callable[[], float] = time.monotonic
    mark: str = field(default="", init=False)
    _looked: float = field(default=-1e9, init=False)  # when the last look that has ended began
    _state: Sequence[object] = field(default=(), init=False)
    _looking: asyncio.Task[None] | None = field(default=None, init=False)
    _failure: Exception | None = field(default=None, init=False)

    async def look(self) -> None:
        """See to it that what is known of the disk is at most two seconds old.

        Raises:
            NotFoundError: the run is gone.
            Refusal: the landscape is gone, or another one has its name.
        """
        asked = self.clock()
        if self._failure is not None or self._looked < asked - PROMISED_SECONDS:
            await asyncio.shield(self._looks())
        if self._looked < asked - PROMISED_SECONDS:  # that look was under way already, and takes long
            await asyncio.shield(self._looks())
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if asked - self._looked >= EARLY_SECONDS:
            self._looks()

    def _looks(self) -> asyncio.Task[None]:
        """The look that is under way; where there is none, one begins."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(asyncio.to_thread(self._try_to_look))
        return self._looking

    def refuse_another(self, mark: str) -> None:
        """Refuse what a replica has computed of another landscape, which has this one's name by now.

        Raises:
            Refusal: it has.
        """
        if mark != self.mark:
            raise self._anew()

    def _anew(self) -> Refusal:
        name = quoted(self.source.landscape)
        return Refusal(NOT_FOUND, f"landscape: {name} was computed anew since this service began; start it again")

    def _try_to_look(self) -> None:
        try:
            self.look_now()
            self._failure = None
        except Exception as error:  # which the next request gets
            self._failure = error

    def look_now(self) -> None:
        """Take in what the disk has by now."""
        began = self.clock()
        try:
            refuse_gone(self.source)
            store = LandscapeStore.find(self.source.run, self.source.landscape)
            if store is None and self.source.job is None:
                raise Refusal(
                    NOT_FOUND, f"landscape: {quoted(self.source.landscape)} is gone from its run; put it back"
                )
            self.mark = self.mark or mark_of(self.source, self.described, store)
            state = () if store is None else state_of(store)
            if state != self._state:
                self.stored, self._state = self._read(store), state
        finally:
            self._looked = began

    def _read(self, store: LandscapeStore | None) -> StoredPoints | None:
        """The values on disk; None where there are none of what is served."""
        if store is None or self._is_another(store):
            return None
        values = read_stored(store, self.described.columns)
        after = LandscapeStore.find(self.source.run, self.source.landscape)
        # Another landscape that has taken the place meanwhile may have given some of the values.
        return None if after is None or self._is_another(after) else values

    def _is_another(self, store: LandscapeStore) -> bool:
        """Whether the landscape on disk is of something else, or by another plan: a job's values are not taken from it.

        Raises:
            Refusal: it is what is served.
        """
        now = describe_stored(store)
        if now is None or mark_of(self.source, now, store) == self.mark:
            return False
        if self.source.job is None:
            raise self._anew()
        return True


async def refuse_other_kept(kept: KeptPoints, key: str, replicas: Replicas) -> None:
    """Refuse kept values where a replica computes others.

    The identity by which they are kept has weights and samples, and not the code that computes with them.

    Raises:
        JobError: they are of other code, or of another machine.
        Refusal: no replica computes.
    """
    known = kept.latest()
    if known is None:
        return
    point, row = known
    computed = await replicas.points(key, np.frombuffer(point)[None])
    if computed.whole and not np.array_equal(computed.table[0], np.frombuffer(row), equal_nan=True):
        raise JobError(
            f"keep: {quoted(str(kept.path), 300)} holds other values than are computed now, as of other code or "
            "another machine; move it away, and values are kept anew"
        )


def plain_bytes(points: Floats) -> list[bytes]:
    """The coordinates of each point [P, axes] as bytes, by which it is known."""
    content, length = np.ascontiguousarray(points).tobytes(), 8 * points.shape[1]
    return [content[start : start + length] for start in range(0, len(content), length)]
