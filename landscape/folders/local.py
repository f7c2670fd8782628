"""A folder of this machine: files appear whole, and stay after a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from landscape.errors import JobError, shown
from landscape.folders.base import Folder, Log, R, T
from landscape.folders.files import fsync, make_folder, open_plain, partial_path, whole_file


class LocalFolder(Folder):
    def __init__(self, root: Path) -> None:
        self.root, self.name = root, str(root)

    def place(self, path: str) -> str:
        return str(self.root / path)

    def exists(self) -> bool:
        try:
            return self.root.is_dir()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # so that it cannot be there
                return False
            raise

    def make(self) -> None:
        make_folder(self.root)

    def refuse_unwritable(self) -> None:
        above = next(each for each in (self.root, *self.root.parents) if each.exists())
        if not above.is_dir():
            raise JobError(f"run: {shown(str(above))} is a file, not a folder; name another run")
        if os.access(above, os.W_OK | os.X_OK):
            return
        if os.statvfs(above).f_flag & os.ST_RDONLY:
            raise JobError(f"run: {shown(str(above))} is mounted read-only; mount it for writing or name another run")
        raise JobError(f"run: no permission to write in {shown(str(above))}; change its rights or name another run")

    def read(self, path: str) -> bytes | None:
        try:
            with open_plain(self.root / path) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_range(self, path: str, start: int, count: int) -> bytes:
        with open_plain(self.root / path) as file:
            file.seek(start)
            return file.read(count)

    @contextlib.contextmanager
    def fetched(self, path: str) -> Iterator[Path]:
        open_plain(self.root / path).close()  # whatever opens it next would wait for a pipe
        yield self.root / path

    @contextlib.contextmanager
    def whole(self, path: str) -> Iterator[Path]:
        with whole_file(self.root / path) as temporary:
            yield temporary

    def write(self, path: str, data: bytes) -> None:
        with self.whole(path) as temporary:
            temporary.write_bytes(data)

    def copy(self, source: str, target: str) -> None:
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
        if (self.root / below).is_dir():
            fsync(self.root / below)

    def names(self, below: str) -> list[str]:
        return sorted(each.name for each in self._entries(below) if not _is_folder(each))

    def folders(self, below: str) -> list[str]:
        return sorted(each.name for each in self._entries(below) if _is_folder(each))

    def _entries(self, below: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / below) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def delete_below(self, path: str) -> None:
        if (self.root / path).exists():
            shutil.rmtree(self.root / path)

    def log(self, path: str) -> Log:
        return LocalLog(self.root / path)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return [function(each) for each in items]


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
        with open(self._path, "ab", buffering=0) as file:
            file.write(line)

    def sync(self) -> None:
        if self._path.exists():
            fsync(self._path)
            fsync(self._path.parent)
