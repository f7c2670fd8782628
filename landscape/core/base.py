"""The operations on files that the project needs of a place that holds a run, local or in an object store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar, Union

T = TypeVar("T")
R = TypeVar("R")


class Log(ABC):
    """A file of lines that grows."""

    @abstractmethod
    def add(self, line: bytes) -> None:
        """Add one line, newline included."""

    @abstractmethod
    def sync(self) -> None:
        """Have every line added so far survive this process and a power cut."""


class Folder(ABC):
    """A folder by its `name` for people; `path` is always relative to it, with slashes."""

    name: str

    def place(self, path: str) -> str:
        """The whole path or URL of what lies at `path`."""
        return f"{self.name}/{path}"

    @abstractmethod
    def exists(self) -> bool:
        """Whether anything of the folder is there."""

    @abstractmethod
    def make(self) -> None:
        """Make the folder, where the place needs folders before it takes files."""

    @abstractmethod
    def refuse_unwritable(self) -> None:
        """Raise where nothing can be written here, as far as can be seen without writing.

        Raises:
            JobError: says why.
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
        """A local file to fill. When the block ends without an error it is at `path`, whole and to stay."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a small file, whole and to stay."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Put a file that never changes at another path too, whole and to stay, in place of what is there.

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
        """The files below a folder, at any depth, by their paths in it; the text differs between two contents of one.

        Links are left out.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete one file, if it is there."""

    @abstractmethod
    def delete_below(self, path: str) -> None:
        """Delete a folder with all that it holds, if it is there."""

    def rename(self, source: str, target: str, last: str) -> None:
        """Give a folder another path, at which nothing lies.

        An object store has no such change: its objects are copied, and those at `source` deleted afterwards.

        Args:
            last: the path in the folder of the file that is the last one to appear at `target`, and the first one to go
                from `source`.
        """
        paths = [path for path in self.stamps(source) if path != last]
        self.map(lambda path: self.copy(f"{source}/{path}", f"{target}/{path}"), paths)
        self.copy(f"{source}/{last}", f"{target}/{last}")
        self.delete(f"{source}/{last}")
        self.delete_below(source)

    @abstractmethod
    def log(self, path: str) -> Log:
        """The file to add lines to."""

    @abstractmethod
    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`function` of each item in order, side by side where each one waits for an answer."""


Place = Union[str, Path, Folder]  # a run as callers name it
