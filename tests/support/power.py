"""What a power cut may leave: a model of a disk that keeps nothing but what was synced, and as little as it likes.

A file's bytes are safe after an fsync of the file; a name (made, renamed, removed) after an fsync of its folder.
Whatever is not may be kept or lost, each for itself; bytes may also be lost in part.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disk import Call, perform

Mark = tuple[Any, ...]


@dataclass
class Inode:
    """A file: its bytes now, and as they were synced last; None where they never were."""

    data: bytes = b""
    safe: bytes | None = None


@dataclass
class Folder:
    """Its names now, as they were synced last, and what each was in between."""

    names: dict[str, Node] = field(default_factory=dict)
    safe: dict[str, Node] = field(default_factory=dict)
    between: dict[str, list[Node | None]] = field(default_factory=dict)

    def set(self, name: str, node: Node | None) -> None:
        if node is None:
            self.names.pop(name, None)
        else:
            self.names[name] = node
        self.between.setdefault(name, []).append(node)

    def sync(self) -> None:
        self.safe, self.between = dict(self.names), {}


Node = Inode | Folder


class Log:
    """Changes in their order, with marks between them of what was promised by then."""

    def __init__(self) -> None:
        self.entries: list[Call | Mark] = []

    def __call__(self, call: Call, change: Callable[..., Any]) -> Any:
        done = perform(call, change)
        self.entries.append(call)
        return done

    def mark(self, *promise: Any) -> None:
        self.entries.append(promise)


class Model:
    """The disk below `root` after a number of changes."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.top = Folder()

    def apply(self, call: Call) -> None:
        getattr(self, f"_{call.kind}")(call)

    def _find(self, path: str) -> Node:
        node: Node = self.top
        for name in Path(path).relative_to(self._root).parts:
            assert isinstance(node, Folder)
            node = node.names[name]
        return node

    def _place(self, path: str) -> tuple[Folder, str]:
        folder = self._find(os.path.dirname(path))
        assert isinstance(folder, Folder)
        return folder, os.path.basename(path)

    def _create(self, call: Call) -> None:
        folder, name = self._place(call.path)
        if name not in folder.names:
            folder.set(name, Inode())
        file = folder.names[name]
        if call.truncates and isinstance(file, Inode):
            file.data = b""

    def _write(self, call: Call) -> None:
        file = self._find(call.path)
        assert isinstance(file, Inode)
        file.data += call.data

    def _rename(self, call: Call) -> None:
        (folder, name), (other, new) = self._place(call.path), self._place(call.target)
        node = folder.names[name]
        folder.set(name, None)
        other.set(new, node)

    def _link(self, call: Call) -> None:
        folder, name = self._place(call.target)
        folder.set(name, self._find(call.path))

    def _unlink(self, call: Call) -> None:
        folder, name = self._place(call.path)
        folder.set(name, None)

    _rmdir = _unlink

    def _mkdir(self, call: Call) -> None:
        folder, name = self._place(call.path)
        folder.set(name, Folder())

    def _fsync(self, call: Call) -> None:
        node = self._find(call.path)
        if isinstance(node, Folder):
            node.sync()
        else:
            node.safe = node.data

    # -- worlds -----------------------------------------------------------------------------------------------

    def materialise(self, place: Path, choose: Chooser) -> None:
        """Write one of the disks that may be found afterwards."""
        self._write_folder(self.top, place, choose)

    def _write_folder(self, folder: Folder, place: Path, choose: Chooser) -> None:
        place.mkdir(parents=True, exist_ok=True)
        for name in sorted({*folder.safe, *folder.between}):
            node = choose.name([folder.safe.get(name), *folder.between.get(name, [])])
            if isinstance(node, Folder):
                self._write_folder(node, place / name, choose)
            elif node is not None:
                (place / name).write_bytes(choose.content(node.safe, node.data))


def fingerprint(place: Path) -> str:
    """Of every name and byte below a folder: what holds of a disk holds of all that are equal."""
    found = hashlib.sha256()
    for path in sorted(place.rglob("*")):
        found.update(repr((path.relative_to(place).as_posix(), path.is_file() and path.read_bytes())).encode())
    return found.hexdigest()


@dataclass(frozen=True)
class Chooser:
    """Of what was not synced: keep all (1), lose all (0), or as chance has it."""

    keep: float
    chance: random.Random

    def name(self, history: list[Node | None]) -> Node | None:
        """One of what the name stood for since its folder was synced."""
        if self.keep in (0, 1):
            return history[-1] if self.keep else history[0]
        return self.chance.choice(history)

    def content(self, safe: bytes | None, data: bytes) -> bytes:
        if safe == data or self.keep == 1:
            return data
        if self.keep == 0:
            return safe or b""
        torn = data[: self.chance.randrange(len(data) + 1)]
        zeros = torn + bytes(len(data) - len(torn))  # the length has reached the disk, the bytes have not
        return self.chance.choice([safe or b"", torn, zeros, data])
