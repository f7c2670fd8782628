"""The calls by which Python changes a disk, caught one by one: to die at any of them, and to log what became durable.

Everything below `root` goes through `handler`, one call at a time, from whatever thread it comes.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch

# As they were before anything was replaced.
REAL = {name: getattr(os, name) for name in ("open", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link")}
REAL_FSYNC, REAL_OPEN, REAL_SAVE = os.fsync, io.open, safetensors.torch.save_file


@dataclass(frozen=True)
class Call:
    """One change of the disk that is about to be made."""

    kind: str  # create, write, rename, link, unlink, mkdir, rmdir, fsync
    path: str
    target: str = ""
    data: bytes = b""
    truncates: bool = False


Handler = Callable[[Call, Callable[..., Any]], Any]


class Disk:
    """Replaces the functions of this process that change files; for good, so install it in a process of its own.

    `handler(call, perform)` decides: `perform()` makes the change; that of a write takes the bytes to write.
    """

    def __init__(self, root: Path, handler: Handler) -> None:
        self._root, self._handler, self._lock = str(root), handler, threading.RLock()

    def install(self) -> None:
        for name, kind in (("unlink", "unlink"), ("remove", "unlink"), ("mkdir", "mkdir"), ("rmdir", "rmdir")):
            setattr(os, name, self._one_path(REAL[name], kind))
        for name, kind in (("replace", "rename"), ("rename", "rename"), ("link", "link")):
            setattr(os, name, self._two_paths(REAL[name], kind))
        os.fsync, os.open = self._fsync, self._os_open  # type: ignore[assignment]
        io.open = builtins.open = self._io_open  # type: ignore[assignment]
        # safetensors writes from Rust, past Python.
        safetensors.torch.save_file = self._save

    def change(self, call: Call, perform: Callable[..., Any]) -> Any:
        with self._lock:
            return self._handler(call, perform)

    def is_below(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root + "/")

    def _one_path(self, real: Any, kind: str) -> Any:
        def replaced(path: Any, *given: Any, dir_fd: int | None = None, **options: Any) -> Any:
            place = _absolute(path, dir_fd)
            perform = lambda: real(path, *given, dir_fd=dir_fd, **options)  # noqa: E731
            changes = os.path.lexists(place) == (kind != "mkdir")  # else it raises
            return self.change(Call(kind, place), perform) if changes and self.is_below(place) else perform()

        return replaced

    def _two_paths(self, real: Any, kind: str) -> Any:
        def replaced(source: Any, target: Any, **options: Any) -> Any:
            call = Call(kind, _absolute(source), _absolute(target))
            perform = lambda: real(source, target, **options)  # noqa: E731
            return self.change(call, perform) if self.is_below(call.target) else perform()

        return replaced

    def _fsync(self, descriptor: int) -> None:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        if self.is_below(place) or place == os.path.dirname(self._root):
            self.change(Call("fsync", place), lambda: REAL_FSYNC(descriptor))
        else:
            REAL_FSYNC(descriptor)

    def _os_open(self, path: Any, flags: int, *given: Any, dir_fd: int | None = None) -> int:
        place = _absolute(path, dir_fd)
        perform = lambda: REAL["open"](path, flags, *given, dir_fd=dir_fd)  # noqa: E731
        if not flags & (os.O_CREAT | os.O_TRUNC) or not self.is_below(place):
            return int(perform())
        return int(self.change(Call("create", place, truncates=bool(flags & os.O_TRUNC)), perform))

    def _io_open(self, file: Any, mode: str = "r", buffering: int = -1, *given: Any, **options: Any) -> Any:
        place = "" if isinstance(file, int) else _absolute(file)
        if not self.is_below(place) or not set(mode) & set("wax+"):
            return REAL_OPEN(file, mode, buffering, *given, **options)
        if "x" not in mode and "w" not in mode and "a" not in mode:
            raise NotImplementedError(f"{mode}: changing a file in place")
        make = lambda: _Watched(self, place, mode.replace("b", "").replace("t", ""))  # noqa: E731
        raw = self.change(Call("create", place, truncates="w" in mode), make)
        if buffering == 0:
            return raw
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *given, **options)

    def _save(self, tensors: Any, path: Any, metadata: Any = None) -> None:
        from safetensors.torch import save

        place, data = _absolute(path), save(tensors, metadata)
        self.change(Call("create", place, truncates=True), lambda: Path(place).write_bytes(b""))

        def write(given: bytes) -> None:
            with REAL_OPEN(place, "wb") as file:
                file.write(given)
            if given is data:
                REAL_SAVE(tensors, path, metadata)

        self.change(Call("write", place, data=data), write)


class _Watched(io.FileIO):
    """An open file whose every write, as the operating system gets it, is a change."""

    def __init__(self, disk: Disk, place: str, mode: str) -> None:
        super().__init__(place, mode)
        self._disk, self._place = disk, place

    def write(self, data: Any) -> int:
        whole = bytes(data)
        self._disk.change(Call("write", self._place, data=whole), super().write)
        return len(whole)


def _absolute(path: Any, dir_fd: int | None = None) -> str:
    place = os.fsdecode(path)
    if dir_fd is not None:
        place = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), place)
    return os.path.abspath(place)


def perform(call: Call, change: Callable[..., Any]) -> Any:
    return change(call.data) if call.kind == "write" else change()


def die_at(number: int, torn: bool = False) -> Handler:
    """Kill this process before its `number`-th change (from 0); `torn`: after half of the bytes, if that is a write."""
    seen = 0

    def handle(call: Call, change: Callable[..., Any]) -> Any:
        nonlocal seen
        if seen == number:
            if torn and call.kind == "write":
                change(call.data[: len(call.data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
        return perform(call, change)

    return handle
