"""Served values on disk, beside the run: appended row by row, each with its checksum, safe against kills.

RUN/served/LANDSCAPE-IDENTITY.points is a header, which names what the values are of, and rows of equal length: the
coordinates, the values, a CRC32C. The identity is the digest of all that decides the values, so that those of another
landscape, plan or network are in another file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import google_crc32c
from filelock import FileLock, Timeout

from cluster.serving.described import Described
from landscape.core.errors import JobError, shown
from landscape.core.files import fsync, make_folder, whole_file

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

    def __init__(self, folder: Path, landscape: str, described: Described) -> None:
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
                raise JobError(f"keep: {shown(str(self.path), 300)} is damaged; move it away, and values are kept anew")
            self._end = self._read()
        except OSError as error:
            raise JobError(f"keep: {shown(str(self.path), 300)} cannot be written: {error.strerror}") from None

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

    def points_of(self, folder: Path, landscape: str, described: Described) -> KeptPoints:
        """The file of a landscape, opened when it is first asked for."""
        place = folder, landscape, described.identity
        if place not in self._open:
            self._open[place] = KeptPoints(folder, landscape, described)
        return self._open[place]

    def close(self) -> None:
        """Close all files."""
        for kept in self._open.values():
            kept.close()


def _header(described: Described) -> bytes:
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
        raise JobError(f"keep: needs a run in a folder, and {shown(run, 300)} is a URL; leave out --keep")
    folder = Path(run) / FOLDER
    try:
        make_folder(folder)
        with FileLock(folder / LOCK, timeout=0, mode=0o600):
            fsync(folder)
            yield folder
    except Timeout:
        raise JobError(
            f"keep: another service keeps values of run {shown(run, 300)}; end it, or leave out --keep"
        ) from None
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise JobError(f"keep: run {shown(run, 300)} cannot be written: {error.strerror}; leave out --keep") from None
