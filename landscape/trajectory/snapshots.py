"""The snapshots of a run: written whole, read back, chosen by their numbers."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from landscape import __version__
from landscape.errors import JobError, LandscapeError, message_of, shown
from landscape.fields import Unit
from landscape.folders import Folder, Place, open_folder, split_path
from landscape.parameters import State, state_digest
from landscape.trajectory.run_files import (
    FOLDER,
    SNAPSHOT_FORMAT,
    SNAPSHOT_NAME,
    contents,
    read_info,
    writing,
)

HEADER, LARGEST_HEADER = 16384, 100_000_000  # bytes: what is read at once, and what safetensors allows
UNITS: tuple[Unit, ...] = ("epoch", "step")


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
    info = read_info(folder)
    found = [Snapshot(unit, number, folder.place(path)) for unit, number, path in snapshot_files(folder, info)]
    units = sorted({each.unit for each in found})
    recorded = info.get("unit")
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
        step, epoch = (int(metadata[key]) if metadata.get(key) else None for key in ("step", "epoch"))
    except (ValueError, OSError, RecursionError):
        return snapshot
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
    found = header.get("__metadata__") if isinstance(header, dict) else None
    return {key: str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _damaged(path: str) -> str:
    return f"snapshot {shown(path)} is damaged; restore it, or delete it and collect or import it again"


def _line(error: BaseException) -> str:
    reason = isinstance(error, OSError) and error.strerror
    return reason or message_of(error) or type(error).__name__


def snapshot_files(run: Place, info: Mapping[str, Any] | None = None) -> list[tuple[Unit, int, str]]:
    """Unit, number and path, relative to the run, of every snapshot; `info` spares reading run.json again."""
    paths = contents(run, read_info(run) if info is None else info).snapshots
    matches = [(SNAPSHOT_NAME.fullmatch(path.rpartition("/")[2]), path) for path in paths]
    return [(_unit(match[1]), int(match[2]), path) for match, path in matches if match]


def _unit(word: str) -> Unit:
    return "epoch" if word == "epoch" else "step"


def write_snapshot(run: Place, unit: Unit, number: int, state: State, *, below: str = FOLDER, **about: Any) -> str:
    """Write one snapshot whole, and return its path in the run.

    `about` (step, epoch, versions, source) joins its metadata, None left out; `below` is the folder to write it to.
    """
    described = {"format": SNAPSHOT_FORMAT, "unit": unit, "number": number, "digest": state_digest(state), **about}
    metadata = {key: str(value) for key, value in described.items() if value is not None}
    path = f"{below}/{unit}-{number:05d}.safetensors"
    with writing(run, path) as temporary:
        save_file(dict(state), temporary, metadata)
    return path


def versions() -> dict[str, str]:
    """The versions that decide what a snapshot holds."""
    return {"python": platform.python_version(), "torch": torch.__version__, "landscape": __version__}
