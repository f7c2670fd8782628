"""What training leaves in a run folder: its layout on disk, whole-or-nothing writes, and reading it back.

    <run>/run.json                             what was trained, with which options
    <run>/history.jsonl                        one line per recorded step and per epoch
    <run>/trajectory/epoch-00003.safetensors   parameters and buffers of one epoch or step

All access to files is in the functions of the second half; nothing else in the project knows these names. A run
may lie in an object store as well: `landscape.folders` hides which.
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from landscape import __version__
from landscape.errors import JobError, LandscapeError, message_of, shown
from landscape.files import PARTIAL
from landscape.folders import Folder, Place, open_folder, split_path
from landscape.parameters import State, state_digest
from landscape.spec import Unit

SNAPSHOT_FORMAT = "landscape-snapshot-1"
INFO_FILE, HISTORY_FILE, FOLDER = "run.json", "history.jsonl", "trajectory"
HEADER, LARGEST_HEADER = 16384, 100_000_000  # bytes: what is read at once, and what safetensors allows
UNITS: tuple[Unit, ...] = ("epoch", "step")
LEFT_BY_CRASHES = (f"*{PARTIAL}*", f"{FOLDER}/*{PARTIAL}*", f"{FOLDER}/.tmp??????")  # the last is safetensors' own
_SNAPSHOT_NAME = re.compile(r"(epoch|step)-(\d{5,})\.safetensors")


@dataclass(frozen=True)
class Snapshot:
    """The weights at one epoch or step; `source` names the checkpoint it was imported from, or is empty."""

    unit: Unit
    number: int
    path: str
    step: int | None = None
    epoch: int | None = None
    source: str = ""

    def load(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers, on the CPU.

        Raises:
            LandscapeError: the file is damaged; names it.
        """
        folder, name = split_path(self.path)
        try:
            with folder.fetched(name) as file:
                state = load_file(file)
                with safe_open(file, framework="pt") as opened:
                    metadata = opened.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise LandscapeError(f"{_damaged(self.path)}: {_line(error)}") from None
        if metadata.get("digest") != state_digest(state):
            raise LandscapeError(f"{_damaged(self.path)}: its tensors do not match their digest")
        return state


@dataclass(frozen=True)
class Trajectory:
    """The snapshots of a run, in ascending order of their epochs or steps."""

    run: str
    unit: Unit
    snapshots: tuple[Snapshot, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(each.number for each in self.snapshots)

    def select(self, numbers: Sequence[int] | Literal["all"]) -> Trajectory:
        """The part with these epochs or steps, ascending, each once.

        Raises:
            JobError: one of them was not collected; lists those that were.
        """
        if numbers == "all":
            return self
        return Trajectory(self.run, self.unit, tuple(self.snapshot(int(each)) for each in sorted(set(numbers))))

    def snapshot(self, number: int) -> Snapshot:
        """The snapshot of one epoch or step; raises `JobError` like `select`."""
        for each in self.snapshots:
            if each.number == number:
                return each
        there = f"{self.unit}s {ranges(self.numbers)}" if self.snapshots else "none"
        raise JobError(f"trajectory: {self.unit} {number} is not in run {shown(self.run)}; collected there: {there}")


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in short: 0-3, 7, 10-40 by 10, at most 12 such pieces."""
    pieces: list[list[int]] = []
    for number in numbers:
        run = pieces[-1] if pieces else []
        if run and (len(run) == 1 or number - run[-1] == run[1] - run[0]):
            run.append(number)
        else:
            pieces.append([number])
    words = [word for piece in pieces for word in _piece(piece)]
    return ", ".join(words) if len(words) <= 12 else ", ".join([*words[:6], "…", *words[-5:]])


def _piece(run: list[int]) -> list[str]:
    if len(run) <= 2 and (len(run) == 1 or run[1] - run[0] > 1):
        return [str(number) for number in run]
    stride = run[1] - run[0]
    return [f"{run[0]}-{run[-1]}" + (f" by {stride}" if stride > 1 else "")]


def read_trajectory(run: Place) -> Trajectory:
    """The snapshots of a run; an empty trajectory where there are none. Reads their headers only.

    Raises:
        LandscapeError: the run holds snapshots by epoch and by step, and run.json does not say which count.
    """
    folder = open_folder(run)
    found = [Snapshot(unit, number, folder.place(path)) for unit, number, path in snapshot_files(folder)]
    units = sorted({each.unit for each in found})
    recorded = read_info(run).get("unit")
    unit: Unit = recorded if recorded in UNITS else (units[0] if units else "epoch")
    if len(units) > 1 and recorded not in UNITS:
        raise LandscapeError(f"run {shown(folder.name)} holds snapshots by epoch and by step; move one kind away")
    chosen = sorted((each for each in found if each.unit == unit), key=lambda each: each.number)
    return Trajectory(_named(run), unit, tuple(folder.map(_described, chosen)))


def _named(run: Place) -> str:
    return run.name if isinstance(run, Folder) else str(run)


def _described(snapshot: Snapshot) -> Snapshot:
    """With step, epoch and source from the file; a damaged one stays as it is and says so when it is loaded."""
    try:
        metadata = _metadata(*split_path(snapshot.path))
    except (ValueError, OSError):
        return snapshot
    step, epoch = (int(metadata[key]) if metadata.get(key) else None for key in ("step", "epoch"))
    return Snapshot(snapshot.unit, snapshot.number, snapshot.path, step, epoch, metadata.get("source", ""))


def _metadata(folder: Folder, name: str) -> dict[str, str]:
    """That of a safetensors file: eight bytes of header length, then the header, a JSON object."""
    start = folder.read_range(name, 0, HEADER)
    length = int.from_bytes(start[:8], "little")
    if not 0 < length <= LARGEST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    if length > len(start) - 8:
        start += folder.read_range(name, len(start), length + 8 - len(start))
    header = json.loads(start[8 : 8 + length])
    return header.get("__metadata__", {}) if isinstance(header, dict) else {}


def _damaged(path: str) -> str:
    return f"snapshot {shown(path)} is damaged; restore it, or delete it and collect or import it again"


def _line(error: BaseException) -> str:
    return message_of(error) or type(error).__name__


def read_info(run: Place) -> dict[str, Any]:
    """The contents of run.json; empty where there is none."""
    folder = open_folder(run)
    place = folder.place(INFO_FILE)
    try:
        found = json.loads(folder.read(INFO_FILE) or "{}")
    except (OSError, ValueError) as error:
        raise LandscapeError(f"{shown(place)} cannot be read: {_line(error)}; restore it or delete it") from None
    if not isinstance(found, dict):
        raise LandscapeError(f"{shown(place)} must hold one JSON object; restore it or delete it")
    return found


def read_history(run: Place) -> list[dict[str, Any]]:
    """The recorded steps and epochs, in order; empty where there are none.

    A line that is not whole ends the reading: a crash, or a writer at work, leaves at most the last one torn.
    """
    lines = (open_folder(run).read(HISTORY_FILE) or b"").split(b"\n")
    found: list[dict[str, Any]] = []
    for line in lines[:-1]:  # what follows the last newline was never finished
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def snapshot_files(run: Place) -> list[tuple[Unit, int, str]]:
    """Unit, number and path, relative to the run, of every finished snapshot."""
    matches = [_SNAPSHOT_NAME.fullmatch(name) for name in open_folder(run).names(FOLDER)]
    return [(_unit(match[1]), int(match[2]), f"{FOLDER}/{match[0]}") for match in matches if match]


def _unit(word: str) -> Unit:
    return "epoch" if word == "epoch" else "step"


def write_snapshot(run: Place, unit: Unit, number: int, state: State, **about: Any) -> None:
    """Write one snapshot whole; `about` (step, epoch, versions, source) joins its metadata, None left out."""
    described = {"format": SNAPSHOT_FORMAT, "unit": unit, "number": number, "digest": state_digest(state), **about}
    metadata = {key: str(value) for key, value in described.items() if value is not None}
    with writing(run, f"{FOLDER}/{unit}-{number:05d}.safetensors") as temporary:
        save_file(dict(state), temporary, metadata)


def write_info(run: Place, info: Mapping[str, Any]) -> None:
    with writing(run, INFO_FILE) as temporary:
        temporary.write_text(json.dumps(info, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_history(run: Place, lines: Sequence[Mapping[str, Any]]) -> None:
    """Replace the whole history."""
    with writing(run, HISTORY_FILE) as temporary:
        temporary.write_text("".join(history_line(line) for line in lines))


class History:
    """The history of a run that is being trained; lines survive as `Log` says."""

    def __init__(self, run: Place) -> None:
        self._folder = open_folder(run)
        self._log = self._folder.log(HISTORY_FILE)

    def append(self, line: Mapping[str, Any]) -> None:
        with refusing_disk_errors(self._folder.name):
            self._log.add(history_line(line).encode())

    def sync(self) -> None:
        with refusing_disk_errors(self._folder.name):
            self._log.sync()


def history_line(line: Mapping[str, Any]) -> str:
    return json.dumps(line, allow_nan=False) + "\n"


@contextlib.contextmanager
def writing(run: Place, path: str) -> Iterator[Any]:
    """A temporary file to fill, which then takes its place: readers and crashes see all of it or nothing."""
    folder = open_folder(run)
    with refusing_disk_errors(folder.place(path)), folder.whole(path) as temporary:
        yield temporary


@contextlib.contextmanager
def refusing_disk_errors(place: str) -> Iterator[None]:
    """Turn a full disk or missing rights into one line with its remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or _line(error)
        raise LandscapeError(
            f"{shown(place)} cannot be written: {reason}; what was collected is intact: make room or mend the rights"
        ) from None


def remove_trajectory(run: Place, beyond: Mapping[Unit, int] | None = None) -> None:
    """Delete snapshots, those up to `beyond` of their unit excepted; latest first, so that a beginning is left."""
    folder = open_folder(run)
    with refusing_disk_errors(folder.name):
        for unit, number, path in sorted(snapshot_files(folder), key=lambda each: -each[1]):
            if beyond is None or number > beyond.get(unit, -1):
                folder.delete(path)
        folder.remove_leftovers(LEFT_BY_CRASHES)
        if beyond is None:
            folder.delete(HISTORY_FILE)


def finite(value: Any) -> float | int | None:
    """A number for JSON, which has no NaN and no infinity: those become None."""
    return value if isinstance(value, int) or math.isfinite(value) else None


def versions() -> dict[str, str]:
    """The versions that decide what a snapshot holds."""
    return {"python": platform.python_version(), "torch": torch.__version__, "landscape": __version__}
