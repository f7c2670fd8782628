"""Files that appear whole or not at all and survive a power cut, and the folder of a run as the project needs it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, TypeVar, Union

from landscape.core.errors import JobError, quoted
from landscape.core.system import is_alive

PARTIAL = ".partial"
UNPACKED = ".unpacked"  # the file that marks a folder as the temporary copy of a packed run, and holds its digest
_PARTIAL_NAME = re.compile(rf"\.(.+?)-([1-9]\d*)(?:-[0-9a-f]{{8}})?{re.escape(PARTIAL)}(?:\.[^.]*)?")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the name of `path` when the block ends without an error."""
    temporary = partial_path(path)
    make_folder(path.parent)
    try:
        open(temporary, "xb").close()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # safetensors makes its files readable for their owner alone
        fsync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync(path.parent)


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading. A pipe or a device is refused, as reading it may never end.

    Raises:
        OSError: it is no regular file, or cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise kind(code, "is a folder" if stat.S_ISDIR(mode) else "is no file", str(path))
    return open(descriptor, "rb")


def partial_path(path: Path) -> Path:
    """A name beside `path` for a file that is being written.

    The name is hidden, holds the number of this process, and keeps the suffix, by which some writers choose a format.
    """
    # Without the random part, somebody could place a link under this name beforehand and redirect the write.
    return path.with_name(f".{path.stem[:80]}-{os.getpid()}-{uuid.uuid4().hex[:8]}{PARTIAL}{path.suffix}")


def left_by_the_dead(name: str) -> str | None:
    """The stem of the file that a dead process was writing under this partial name; None for other names.

    A name with the number of this process is of an earlier process: in a container every driver has the same number.
    """
    match = _PARTIAL_NAME.fullmatch(name)
    if match is None:
        return None
    pid = int(match[2])
    return match[1] if pid == os.getpid() or not is_alive(pid) else None


TEMPORARY = "landscape-tmp-"  # how the names of temporary folders begin
FRESH_SECONDS = 60.0  # in which a temporary folder may not be locked yet


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Within the block, an empty folder in the system's place for temporary files, which only this user may enter.

    It is locked as long as its process lives. What a killed process has left is not, and the next call deletes it. A
    fork of the process, which leaves the block too when it ends, deletes nothing.
    """
    _delete_left_folders()
    owner, name = os.getpid(), tempfile.mkdtemp(prefix=TEMPORARY)
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # of a file system without locks, where nothing is deleted either
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)
    finally:
        os.close(descriptor)
        if os.getpid() == owner:
            shutil.rmtree(name, ignore_errors=True)


def _delete_left_folders() -> None:
    for place in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):  # it is another user's, in use, or gone
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                state = os.fstat(descriptor)
                if state.st_uid == os.getuid() and time.time() - state.st_mtime > FRESH_SECONDS:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(descriptor)


def folder_of_user(variable: str, below_home: str, environment: Mapping[str, str]) -> Path | None:
    """This package's folder in a base folder of the XDG specification; None for a user without a home.

    Args:
        variable: of the environment, which may name the base folder.
        below_home: the base folder otherwise, relative to the home folder.
    """
    base = Path(environment.get(variable, ""))
    try:
        # The specification says to ignore relative paths.
        return (base if base.is_absolute() else Path.home() / below_home) / "landscape"
    except RuntimeError:
        return None


def make_folder(folder: Path) -> None:
    """Make a folder and the missing folders above it, and sync the name of each."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync(folder.parent)


def fsync(place: Path) -> None:
    """Write a file's data, or a folder's names, to the disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------------------------------
# The operations on a folder that holds a run, local or in an object store.

T = TypeVar("T")
R = TypeVar("R")


class LineLog(ABC):
    """A file of lines that grows."""

    @abstractmethod
    def add(self, line: bytes) -> None:
        """Add one line, newline included."""

    @abstractmethod
    def sync(self) -> None:
        """Make every line added so far survive this process and a power cut."""


class Folder(ABC):
    """A folder, whose `name` is for people; `path` is always relative to it, with slashes."""

    name: str

    def __str__(self) -> str:
        return self.name

    def place(self, path: str) -> str:
        """The whole path or URL of `path`."""
        return f"{self.name}/{path}"

    @abstractmethod
    def exists(self) -> bool:
        """Whether the folder, or any object below it, exists."""

    @abstractmethod
    def make(self) -> None:
        """Make the folder, where files need one."""

    @abstractmethod
    def refuse_unwritable(self) -> None:
        """Raise if nothing can be written here, as far as this can be seen without writing.

        Raises:
            JobError: with the reason.
        """

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """The whole file; None where there is none."""

    @abstractmethod
    def read_range(self, path: str, start: int, count: int) -> bytes:
        """`count` bytes from `start` on, fewer where the file ends before.

        Raises:
            FileNotFoundError: there is no such file.
        """

    @abstractmethod
    def fetched(self, path: str) -> AbstractContextManager[Path]:
        """A local file with the content of the file at `path`, while the block runs.

        Raises:
            FileNotFoundError: there is no such file.
        """

    @abstractmethod
    def whole(self, path: str) -> AbstractContextManager[Path]:
        """A local file to fill; it appears at `path`, whole and durable, when the block ends without an error."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a small file, whole and durable."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy a file that never changes to another path, whole and durable, replacing the file there.

        Raises:
            FileNotFoundError: there is no such file.
        """

    @abstractmethod
    def sync_names(self, below: str) -> None:
        """Make sure that files deleted right below this folder stay deleted after a power cut."""

    @abstractmethod
    def names(self, below: str) -> list[str]:
        """The names of the files right below, sorted; empty where there is no such folder."""

    @abstractmethod
    def folders(self, below: str) -> list[str]:
        """The names of the folders right below, sorted."""

    @abstractmethod
    def stamps(self, below: str) -> dict[str, str]:
        """The files below a folder at any depth, by their paths in it, each with a text that changes with its content.

        Links are left out.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete one file, if it exists."""

    @abstractmethod
    def delete_below(self, path: str) -> None:
        """Delete a folder with its contents, if it exists."""

    def rename(self, source: str, target: str, last: str) -> None:
        """Move a folder to another path, at which nothing exists.

        An object store has no such operation: its objects are copied, and then deleted at `source`.

        Args:
            last: the path in the folder of the file that is copied last to `target` and deleted first at `source`.
        """
        paths = [path for path in self.stamps(source) if path != last]
        self.map(lambda path: self.copy(f"{source}/{path}", f"{target}/{path}"), paths)
        self.copy(f"{source}/{last}", f"{target}/{last}")
        self.delete(f"{source}/{last}")
        self.delete_below(source)

    @abstractmethod
    def log(self, path: str) -> LineLog:
        """The file to add lines to."""

    @abstractmethod
    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`function` of each item in order, several at once where each waits for an answer."""


Place = Union[str, Path, Folder]  # a run as callers name it


class LocalFolder(Folder):
    """A folder of this machine's file system; its files appear whole, and survive a power cut."""

    def __init__(self, root: Path) -> None:
        self.root, self.name = root, str(root)

    def place(self, path: str) -> str:
        """The whole path of `path`, in the notation of this machine."""
        return str(self.root / path)

    def exists(self) -> bool:
        """Whether the folder exists; false if its name is too long for the file system."""
        try:
            return self.root.is_dir()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # no file of that name can exist
                return False
            raise

    def make(self) -> None:
        """Make the folder and the missing folders above it, and sync their names."""
        make_folder(self.root)

    def refuse_unwritable(self) -> None:
        """Check the rights and the mount of the folder, or of the folder that it would be made in.

        Raises:
            JobError: nothing can be written there; with the reason.
        """
        self.refuse_packed()
        above = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        if not above.is_dir():
            raise JobError(f"run: {quoted(str(above))} is a file, not a folder; name another run")
        if os.access(above, os.W_OK | os.X_OK):
            return
        if os.statvfs(above).f_flag & os.ST_RDONLY:
            raise JobError(f"run: {quoted(str(above))} is mounted read-only; mount it for writing or name another run")
        raise JobError(f"run: no permission to write in {quoted(str(above))}; change its rights or name another run")

    def refuse_packed(self) -> None:
        """Refuse to write a packed run, whose temporary copy ends with this process.

        Raises:
            JobError: the folder is such a copy.
        """
        if (self.root / UNPACKED).exists():
            raise JobError(
                f"run: must be a folder or URL to be written, not the packed run {quoted(self.root.name)}; give the "
                "command the run that it was packed from, or compute a job packed by `landscape pack JOB`"
            )

    def read(self, path: str) -> bytes | None:
        """The whole file; None where there is none, or a part of the path is no folder."""
        try:
            with open_plain(self.root / path) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_range(self, path: str, start: int, count: int) -> bytes:
        """`count` bytes from `start` on, fewer where the file ends before.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with open_plain(self.root / path) as file:
            file.seek(start)
            return file.read(count)

    @contextlib.contextmanager
    def fetched(self, path: str) -> Iterator[Path]:
        """The file itself, which is not copied.

        Raises:
            OSError: there is none, or it is a folder, a pipe or a device.
        """
        open_plain(self.root / path).close()  # refuses a pipe, on which the caller would wait
        yield self.root / path

    @contextlib.contextmanager
    def whole(self, path: str) -> Iterator[Path]:
        """A file beside `path` to fill; it is synced and renamed to `path` when the block ends without an error."""
        with whole_file(self.root / path) as temporary:
            yield temporary

    def write(self, path: str, data: bytes) -> None:
        """Write a small file, whole and synced."""
        with self.whole(path) as temporary:
            temporary.write_bytes(data)

    def copy(self, source: str, target: str) -> None:
        """Give the file a second name, or copy it where the file system has no hard links.

        Raises:
            FileNotFoundError: there is no such file.
        """
        old, new = self.root / source, self.root / target
        make_folder(new.parent)
        linked = partial_path(new)
        try:
            os.link(old, linked)
        except OSError:  # the file system has no hard links
            with self.whole(target) as temporary:
                shutil.copyfile(old, temporary)
            return
        linked.replace(new)
        linked.unlink(missing_ok=True)  # `replace` keeps both names where they were names of one file already
        fsync(new.parent)

    def sync_names(self, below: str) -> None:
        """Sync the folder `below`, where there is one."""
        if (self.root / below).is_dir():
            fsync(self.root / below)

    def names(self, below: str) -> list[str]:
        """The names of the files right below, sorted; broken links are among them."""
        return sorted(entry.name for entry in self._entries(below) if not _is_folder(entry))

    def folders(self, below: str) -> list[str]:
        """The names of the folders right below, sorted."""
        return sorted(entry.name for entry in self._entries(below) if _is_folder(entry))

    def stamps(self, below: str) -> dict[str, str]:
        """The files below a folder by their paths in it, each with its time, size and number in the file system."""
        stamps: dict[str, str] = {}
        waiting = [""]
        while waiting:
            inner = waiting.pop()
            for entry in self._entries(f"{below}/{inner}"):
                path = f"{inner}/{entry.name}" if inner else entry.name
                with contextlib.suppress(OSError):  # deleted meanwhile
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        stamps[path] = f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"
        return stamps

    def _entries(self, below: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / below) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, path: str) -> None:
        """Delete one file, if it exists; `sync_names` syncs the deletion."""
        (self.root / path).unlink(missing_ok=True)

    def delete_below(self, path: str) -> None:
        """Delete a folder with its contents, if it exists."""
        if (self.root / path).exists():
            shutil.rmtree(self.root / path)

    def rename(self, source: str, target: str, last: str) -> None:
        """Move a folder to another path, at which nothing exists, at once."""
        os.rename(self.root / source, self.root / target)
        for above in {(self.root / path).parent for path in (source, target)}:
            fsync(above)

    def log(self, path: str) -> LineLog:
        """The file to add lines to; the first line creates it."""
        return LocalLog(self.root / path)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`function` of each item in order, one after another: local files answer at once."""
        return [function(item) for item in items]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


class LocalLog(LineLog):
    """Passes each line to the operating system at once, so that it outlives the process; `sync` is for power cuts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if os.path.lexists(path):  # what cannot be added to is refused now, not at the first line
            open(path, "ab").close()

    def add(self, line: bytes) -> None:
        """Add one line, newline included, without a buffer."""
        with open(self._path, "ab", buffering=0) as file:
            file.write(line)

    def sync(self) -> None:
        """Sync the file and its name, where a line has been added."""
        if self._path.exists():
            fsync(self._path)
            fsync(self._path.parent)
