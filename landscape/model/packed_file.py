"""Packed files, of a problem or of a run: a zip of uncompressed members, each with its digest in the manifest.

Members are neither compressed nor nested, so they are never larger than the file. Names, sizes and places are checked
before a member is read. Nothing is mapped: if the file is truncated, or its server unreachable, a read fails with a
message, where a map would end the process.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import struct
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from landscape.core.errors import JobError, NotFoundError, message_of, quoted
from landscape.core.validation import parse_json

SUFFIX = ".landscape"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class FileKind:
    """A kind of packed files.

    Attributes:
        format, version: as their manifests state them.
        name: what messages call them.
        command: the command that writes one.
        members: the names that their members may have, beside the manifest.
        most_members: how many members they may have.
    """

    format: str
    version: int
    name: str
    command: str
    members: re.Pattern[str]
    most_members: int


_TENSORS = r"(tensors|trajectory|files|runs/[\w-]{1,80})/[\w-]{1,80}\.safetensors"
PROBLEM_FILE = FileKind(
    "landscape-portable", 1, "portable problem", "landscape pack JOB -o FILE",
    re.compile(rf"job\.yaml|graphs/\w{{1,80}}\.json|{_TENSORS}", re.ASCII), 20_000,
)  # fmt: skip
RUN_FORMAT = "landscape-run"  # of packed runs, whose kind `landscape/store/packed_run.py` holds
MOST_TEXT = 256 << 20  # bytes of a JSON or YAML member
AT_ONCE = 1 << 22  # bytes that are hashed at a time
REMEDY = "; copy the file again, or have it packed anew"


def names_a_file(reference: object) -> bool:
    """Whether a job's `problem` names the file of a portable problem, not a function."""
    return isinstance(reference, str) and reference.endswith(SUFFIX)


def part_of(place: str | Path) -> tuple[Path, str] | None:
    """For a place inside a portable problem, the file, and the name of a member or of a run in it; else None.

    It is None if the file does not exist:

    >>> part_of("/jobs/x.landscape/files/a.safetensors"), part_of("/jobs/x.landscape")
    (None, None)
    """
    file, suffix, member = str(place).partition(f"{SUFFIX}/")
    return (Path(f"{file}{SUFFIX}"), member) if suffix and member and Path(f"{file}{SUFFIX}").is_file() else None


class Archive:
    """The members of a file, which stays open; a member is compared with its digest at each read.

    Raises:
        NotFoundError: there is no such file.
        JobError: it is no file of this kind, is damaged, or of a newer version. Every method raises it for a member
            that is missing or changed, and for a truncated file.
    """

    def __init__(self, path: str | Path, kind: FileKind = PROBLEM_FILE) -> None:
        self.path, self.kind = Path(path), kind
        self.name = quoted(str(path), 100)
        try:
            with open(self.path, "rb") as opened:
                if kind is PROBLEM_FILE and format_of(opened) == RUN_FORMAT:
                    raise JobError(
                        f"{self.name} is a packed run, not a job; `landscape view {path}` shows it, and `landscape "
                        "pack JOB -o FILE` writes what computes again"
                    )
                self._places = _places(opened, kind)
                self._file = os.dup(opened.fileno())
                weakref.finalize(self, os.close, self._file)
        except FileNotFoundError:
            raise NotFoundError(f"{self.name} does not exist; `{kind.command}` writes such a file") from None
        except IsADirectoryError:
            raise JobError(f"{self.name} cannot be read: it is a folder") from None
        except OSError as error:
            raise JobError(f"{self.name} cannot be read: {error.strerror or message_of(error)}") from None
        except JobError:
            raise
        except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError, RuntimeError) as error:
            raise JobError(f"{self.name} is no whole {kind.name}: {message_of(error)}{REMEDY}") from None
        self.manifest = self._manifest()

    def __contains__(self, name: str) -> bool:
        return name in self._places

    @property
    def names(self) -> list[str]:
        """The names of all members."""
        return list(self._places)

    def size_of(self, name: str) -> int:
        """The number of a member's bytes."""
        if name not in self._places:
            raise self.damaged(f"it has no {quoted(name)}")
        return self._places[name][1]

    def bytes_of(self, name: str) -> bytes:
        """The bytes of a member, read into memory."""
        with self.reading(name) as member:
            return bytes(member.take(self.size_of(name)))

    @contextmanager
    def reading(self, name: str) -> Iterator[Member]:
        """A member to read from its beginning; at the end of the block, it is compared with its digest."""
        self.size_of(name)
        member = Member(self, name, *self._places[name])
        yield member
        member.skip()
        if name != MANIFEST:
            recorded = self._recorded.get(name)
            if not isinstance(recorded, Mapping) or recorded.get("sha256") != member.digest:
                raise self.damaged(f"{quoted(name)} is not what was packed, by its digest")

    def part(self, name: str, start: int, size: int) -> bytes:
        """Bytes of a member, without a comparison with its digest; fewer if the member ends before."""
        place, length = self._places[name]
        content = bytearray(max(0, min(size, length - start)))
        self.fill(place + start, memoryview(content))
        return bytes(content)

    def copy(self, name: str, opened: IO[bytes]) -> None:
        """Write a member to an open file."""
        with self.reading(name) as member:
            while member.left:
                opened.write(member.take(min(AT_ONCE, member.left)))

    def fill(self, start: int, buffer: memoryview) -> None:
        """Fill a buffer with bytes of the file."""
        filled = 0
        try:
            while filled < len(buffer):
                count = os.preadv(self._file, [buffer[filled:]], start + filled)
                if not count:
                    raise self.damaged("it has become shorter since it was opened")
                filled += count
        except OSError as error:
            raise JobError(f"{self.name} cannot be read: {error.strerror or message_of(error)}") from None

    def json_of(self, name: str) -> Any:
        """A member that holds JSON."""
        if self.size_of(name) > MOST_TEXT:
            raise self.damaged(f"{quoted(name)} has {self.size_of(name)} bytes, more than {MOST_TEXT}")
        content = self.bytes_of(name)
        try:
            return parse_json(content)
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"{quoted(name)} holds no JSON: {message_of(error)[:80]}") from None

    def damaged(self, why: str) -> JobError:
        """The error of a file that is not as it was packed."""
        return JobError(f"{self.name} cannot be taken: {why}{REMEDY}")

    def _manifest(self) -> dict[str, Any]:
        manifest = self.json_of(MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("format") != self.kind.format:
            raise JobError(f"{self.name} is no {self.kind.name}; `{self.kind.command}` writes one")
        version, known = manifest.get("version"), self.kind.version
        if version != known:
            newer = isinstance(version, int) and version > known
            raise JobError(
                f"{self.name} has version {quoted(version)} of the format, and this landscape reads {known}; "
                f"{'install a newer one' if newer else 'have it packed anew'}"
            )
        members = manifest.get("members")
        self._recorded: Mapping[str, Any] = members if isinstance(members, dict) else {}
        if set(self._recorded) != set(self._places) - {MANIFEST}:
            raise self.damaged("its members are not those that its manifest lists")
        return manifest


class Member:
    """A member that is read from its beginning.

    Attributes:
        left: bytes that are not read yet.
    """

    def __init__(self, archive: Archive, name: str, start: int, size: int) -> None:
        self._archive, self._place, self._hashed = archive, start, hashlib.sha256()
        self.name, self.left = name, size

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes read so far, in hexadecimal."""
        return self._hashed.hexdigest()

    def into(self, buffer: memoryview) -> None:
        """Fill a buffer with the next bytes.

        Raises:
            ValueError: the member has fewer.
            JobError: the file was truncated.
        """
        if len(buffer) > self.left:
            raise ValueError(f"it has {self.left} bytes where {len(buffer)} should be")
        for begin in range(0, len(buffer), AT_ONCE):
            part = buffer[begin : begin + AT_ONCE]
            self._archive.fill(self._place, part)
            self._hashed.update(part)
            self._place += len(part)
            self.left -= len(part)

    def take(self, count: int) -> bytearray:
        """The next bytes."""
        content = bytearray(count)
        self.into(memoryview(content))
        return content

    def skip(self, count: int | None = None) -> None:
        """Skip the next bytes, or all that are left.

        Raises:
            ValueError: `count` is negative: the next part was read already.
            JobError: the file was truncated.
        """
        if count is not None and count < 0:
            raise ValueError("parts of it lie in one another")
        end = 0 if count is None else max(0, self.left - count)
        while self.left > end:
            self.take(min(AT_ONCE, self.left - end))


def _read(opened: Any, start: int, size: int) -> bytes:
    if size > MOST_TEXT:
        raise ValueError(f"it has a text of {size} bytes, more than {MOST_TEXT}")
    opened.seek(start)
    data: bytes = opened.read(size)
    return data


def format_of(opened: IO[bytes]) -> str | None:
    """The format that the manifest of an open file states; None where it is no zip, or has no such manifest."""
    try:
        with zipfile.ZipFile(opened) as archive:
            info = archive.getinfo(MANIFEST)
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > MOST_TEXT:
                return None
            manifest = parse_json(archive.read(info))
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, struct.error, NotImplementedError, RuntimeError):
        return None
    return manifest.get("format") if isinstance(manifest, dict) else None


def _places(opened: Any, kind: FileKind) -> dict[str, tuple[int, int]]:
    """The place and the size of each member's bytes."""
    end = opened.seek(0, 2)
    places: dict[str, tuple[int, int]] = {}
    with zipfile.ZipFile(opened) as archive:
        infos = archive.infolist()
        if len(infos) > kind.most_members:
            raise ValueError(f"it has {len(infos)} members, more than {kind.most_members}")
        for info in infos:
            usable = info.filename == MANIFEST or kind.members.fullmatch(info.filename)
            if not usable or info.filename in places:
                raise ValueError(f"a member is called {quoted(info.filename, 60)}, or two are")
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & 1:
                raise ValueError(f"{quoted(info.filename)} is compressed or encrypted")
            opened.seek(info.header_offset)
            header = opened.read(30)
            if header[:4] != b"PK\x03\x04":
                raise ValueError(f"{quoted(info.filename)} is not where it should be")
            start = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
            if start + info.file_size > end:
                raise ValueError(f"{quoted(info.filename)} ends behind the end of the file")
            places[info.filename] = start, info.file_size
            if info.filename == MANIFEST and zlib.crc32(_read(opened, start, info.file_size)) != info.CRC:
                raise ValueError(f"{MANIFEST} is not what was packed")  # it lists the digests of all others
    if MANIFEST not in places:
        raise ValueError(f"it has no {MANIFEST}")
    following = sorted(places.values())
    if any(start + size > after for (start, size), (after, _) in itertools.pairwise(following)):
        raise ValueError("its members lie in one another")
    return places


# ----------------------------------------------------------------------------------------------------
# The reference by which a job names an ONNX model, with its samples and its criterion.

REFERENCE = re.compile(r"(?P<onnx>\S.*\.onnx) with (?P<data>\S.*\.npz) and (?P<criterion>\w+)")
WRITTEN = "MODEL.onnx with SAMPLES.npz and CRITERION"


def names_onnx(reference: object) -> bool:
    """Whether a job's `problem` names an ONNX model, with or without samples and criterion."""
    return isinstance(reference, str) and (reference.endswith(".onnx") or ".onnx with " in reference)


def onnx_files(reference: str) -> list[str]:
    """The files in the reference of an ONNX model: the model and the samples.

    >>> onnx_files("model.onnx with samples.npz and cross_entropy")
    ['model.onnx', 'samples.npz']
    """
    match = REFERENCE.fullmatch(reference)
    return [] if match is None else [match["onnx"], match["data"]]


def reference_of(fields: Mapping[str, Any]) -> str:
    """The reference from a job's `{onnx: …, data: …, criterion: …}`.

    Raises:
        ValueError: a key is missing, unknown or no text.

    >>> reference_of({"onnx": "m.onnx", "data": "s.npz", "criterion": "mse_loss"})
    'm.onnx with s.npz and mse_loss'
    """
    keys = ("onnx", "data", "criterion")
    if set(fields) != set(keys) or not all(isinstance(fields[key], str) and fields[key].strip() for key in keys):
        raise ValueError(
            f"must be {{onnx: MODEL.onnx, data: SAMPLES.npz, criterion: NAME}}, not {quoted(dict(fields))}"
        )
    return f"{fields['onnx']} with {fields['data']} and {fields['criterion']}"
