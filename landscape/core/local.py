"""A folder of this machine: files appear whole, and stay after a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from landscape.core.base import Folder, Log, R, T
from landscape.core.errors import JobError, shown
from landscape.core.files import fsync, make_folder, open_plain, partial_path, whole_file


class LocalFolder(Folder):
    """A folder of this machine's file system."""

    def __init__(self, root: Path) -> None:
        self.root, self.name = root, str(root)

    def place(self, path: str) -> str:
        """The path of what lies at `path`, in the notation of this machine."""
        return str(self.root / path)

    def exists(self) -> bool:
        """Whether the folder is there. One whose name is too long for the file system is not."""
        try:
            return self.root.is_dir()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # no file of that name can exist
                return False
            raise

    def make(self) -> None:
        """Make the folder and those above it that are missing, and sync their names."""
        make_folder(self.root)

    def refuse_unwritable(self) -> None:
        """Look at the rights and the mount of the folder, or of the one that it would be made in.

        Raises:
            JobError: nothing can be written there; says why.
        """
        above = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        if not above.is_dir():
            raise JobError(f"run: {shown(str(above))} is a file, not a folder; name another run")
        if os.access(above, os.W_OK | os.X_OK):
            return
        if os.statvfs(above).f_flag & os.ST_RDONLY:
            raise JobError(f"run: {shown(str(above))} is mounted read-only; mount it for writing or name another run")
        raise JobError(f"run: no permission to write in {shown(str(above))}; change its rights or name another run")

    def read(self, path: str) -> bytes | None:
        """The whole file; None where there is none, or something on the way is no folder."""
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
        open_plain(self.root / path).close()  # refuse a pipe, which the caller would wait for
        yield self.root / path

    @contextlib.contextmanager
    def whole(self, path: str) -> Iterator[Path]:
        """A file beside `path` to fill; it is synced and takes the name when the block ends well."""
        with whole_file(self.root / path) as temporary:
            yield temporary

    def write(self, path: str, data: bytes) -> None:
        """Write a small file, whole and synced."""
        with self.whole(path) as temporary:
            temporary.write_bytes(data)

    def copy(self, source: str, target: str) -> None:
        """Give the file a second name, or copy it where the file system knows no second names.

        Raises:
            FileNotFoundError: there is no such file.
        """
        old, new = self.root / source, self.root / target
        make_folder(new.parent)
        linked = partial_path(new)
        try:
            os.link(old, linked)
        except OSError:  # the file system knows no second names
            with self.whole(target) as temporary:
                shutil.copyfile(old, temporary)
            return
        linked.replace(new)
        linked.unlink(missing_ok=True)  # where both were names of one file already, replacing leaves them
        fsync(new.parent)

    def sync_names(self, below: str) -> None:
        """Sync the folder `below`, where there is one."""
        if (self.root / below).is_dir():
            fsync(self.root / below)

    def names(self, below: str) -> list[str]:
        """The names of the files right below, sorted; also those of links that lead nowhere."""
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
                with contextlib.suppress(OSError):  # removed meanwhile
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
        """Delete one file, if it is there; its name is synced by `sync_names`."""
        (self.root / path).unlink(missing_ok=True)

    def delete_below(self, path: str) -> None:
        """Delete a folder with all that it holds, if it is there."""
        if (self.root / path).exists():
            shutil.rmtree(self.root / path)

    def rename(self, source: str, target: str, last: str) -> None:
        """Give a folder another path, at which nothing lies, at once."""
        os.rename(self.root / source, self.root / target)
        for above in {(self.root / path).parent for path in (source, target)}:
            fsync(above)

    def log(self, path: str) -> Log:
        """The file to add lines to, which is made with the first line."""
        return LocalLog(self.root / path)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`function` of each item in order, one after another: local files answer at once."""
        return [function(item) for item in items]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


class LocalLog(Log):
    """Each line is handed to the operating system at once: it outlives the process; `sync` is for power cuts."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, line: bytes) -> None:
        """Add one line, newline included, without a buffer."""
        with open(self._path, "ab", buffering=0) as file:
            file.write(line)

    def sync(self) -> None:
        """Sync the file and its name, where a line has been added."""
        if self._path.exists():
            fsync(self._path)
            fsync(self._path.parent)
