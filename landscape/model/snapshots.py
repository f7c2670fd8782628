"""The snapshots of a run: each written whole and read back; together they are the run's trajectory."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError, safe_open

from landscape import __version__
from landscape.core.errors import JobError, LandscapeError, message_of, shown
from landscape.core.files import Folder, Place
from landscape.core.folders import open_folder, split_path
from landscape.core.validation import Unit, ranges
from landscape.model.run_files import FOLDER, SNAPSHOT_FORMAT, SNAPSHOT_NAME, contents, read_info, writing

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.model.parameters import State

HEADER, LARGEST_HEADER = 16384, 100_000_000  # bytes of a header: read at once, and the most that safetensors allows
UNITS: tuple[Unit, ...] = ("epoch", "step")


@dataclass(frozen=True)
class Snapshot:
    """The file that holds the weights at one epoch or step.

    Args:
        unit: what `number` counts.
        number: the epoch or step.
        path: the whole path or URL of the file.
        step: how many steps were done then; None where the file does not say it.
        epoch: how many epochs were done then; None where the file does not say it.
        source: the checkpoint that it was imported from; empty where it was collected.
    """

    unit: Unit
    number: int
    path: str
    step: int | None = None
    epoch: int | None = None
    source: str = ""

    def load(self) -> dict[str, Tensor]:
        """The parameters and persistent buffers by name, on the CPU.

        Raises:
            LandscapeError: the file is damaged, or cannot be read; names it.
        """
        from safetensors.torch import load_file  # torch is needed for the values alone, not to list snapshots

        from landscape.model.arithmetic import state_digest

        folder, name = split_path(self.path)
        try:
            with folder.fetched(name) as file:
                state = load_file(file)
                with safe_open(file, framework="pt") as opened:
                    metadata = opened.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise LandscapeError(f"{_damaged(self.path)}: {_reason(error)}") from None
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
        """The epochs or steps of the snapshots, ascending."""
        return tuple(snapshot.number for snapshot in self.snapshots)

    def select(self, numbers: Sequence[int] | Literal["all"]) -> Trajectory:
        """The part of the trajectory with these epochs or steps, ascending, each once.

        Raises:
            JobError: one of them was not collected; lists those that were.
        """
        if numbers == "all":
            return self
        return Trajectory(self.run, self.unit, tuple(self.snapshot(int(number)) for number in sorted(set(numbers))))

    def snapshot(self, number: int) -> Snapshot:
        """The snapshot of one epoch or step.

        Raises:
            JobError: it was not collected; lists those that were.
        """
        for snapshot in self.snapshots:
            if snapshot.number == number:
                return snapshot
        there = f"{self.unit}s {ranges(self.numbers)}" if self.snapshots else "none"
        raise JobError(f"trajectory: {self.unit} {number} is not in run {shown(self.run)}; collected there: {there}")


def read_trajectory(run: Place) -> Trajectory:
    """The snapshots of a run, of whose files only the headers are read.

    Args:
        run: the run's folder or URL.

    Returns:
        The trajectory; an empty one where the run holds no snapshots, or does not exist.

    Raises:
        LandscapeError: run.json cannot be read; or the run holds snapshots by epoch and by step, and run.json does not
            say which of them count.
    """
    folder = open_folder(run)
    info = read_info(folder)
    snapshots = [Snapshot(unit, number, folder.place(path)) for unit, number, path in snapshot_files(folder, info)]
    units = sorted({snapshot.unit for snapshot in snapshots})
    recorded = info.get("unit")
    unit: Unit = recorded if recorded in UNITS else (units[0] if units else "epoch")
    if len(units) > 1 and recorded not in UNITS:
        raise LandscapeError(f"run {shown(folder.name)} holds snapshots by epoch and by step; move one kind away")
    counted = sorted(
        (snapshot for snapshot in snapshots if snapshot.unit == unit), key=lambda snapshot: snapshot.number
    )
    return Trajectory(_name_of(run), unit, tuple(folder.map(_described, counted)))


def _name_of(run: Place) -> str:
    return run.name if isinstance(run, Folder) else str(run)


def _described(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the step, epoch and source that its file records.

    A damaged file leaves it as it is: loading it will say what is wrong.
    """
    try:
        metadata = _metadata(*split_path(snapshot.path))
        step, epoch = (int(metadata[key]) if metadata.get(key) else None for key in ("step", "epoch"))
    except (ValueError, OSError, RecursionError):
        return snapshot
    return Snapshot(snapshot.unit, snapshot.number, snapshot.path, step, epoch, metadata.get("source", ""))


def _metadata(folder: Folder, name: str) -> dict[str, str]:
    """The metadata of a safetensors file, which begins with eight bytes of header length and the header as JSON."""
    start = folder.read_range(name, 0, HEADER)
    length = int.from_bytes(start[:8], "little")
    if not 0 < length <= LARGEST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    if length > len(start) - 8:
        start += folder.read_range(name, len(start), length + 8 - len(start))
    header = json.loads(start[8 : 8 + length])
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return {key: str(value) for key, value in metadata.items()} if isinstance(metadata, dict) else {}


def _damaged(path: str) -> str:
    return f"snapshot {shown(path)} is damaged; restore it, or delete it and collect or import it again"


def _reason(error: BaseException) -> str:
    reason = isinstance(error, OSError) and error.strerror
    return reason or message_of(error) or type(error).__name__


def snapshot_files(run: Place, info: Mapping[str, Any] | None = None) -> list[tuple[Unit, int, str]]:
    """The unit, number and path of every snapshot that counts.

    Args:
        run: the run.
        info: the contents of run.json; None reads it.

    Returns:
        One (unit, number, path) per snapshot, in no particular order; paths are relative to the run.

    Raises:
        LandscapeError: run.json cannot be read, or names other files than snapshots of this run.
    """
    paths = contents(run, read_info(run) if info is None else info).snapshots
    matches = [(SNAPSHOT_NAME.fullmatch(path.rpartition("/")[2]), path) for path in paths]
    return [(_unit(match[1]), int(match[2]), path) for match, path in matches if match]


def _unit(word: str) -> Unit:
    return "epoch" if word == "epoch" else "step"


def write_snapshot(run: Place, unit: Unit, number: int, state: State, *, below: str = FOLDER, **about: Any) -> str:
    """Write one snapshot, whole or not at all.

    Args:
        run: the run.
        unit: what `number` counts.
        number: the epoch or step.
        state: parameters and persistent buffers by name.
        below: the folder in the run to write it to.
        about: what else its metadata record (step, epoch, versions, source); values that are None are left out.

    Returns:
        Its path in the run.

    Raises:
        LandscapeError: the disk is full, or rights are missing.
    """
    from safetensors.torch import save_file

    from landscape.model.arithmetic import state_digest

    described = {
        "format": SNAPSHOT_FORMAT,
        "unit": unit,
        "number": number,
        "digest": state_digest(state),
        **about,
    }
    metadata = {key: str(value) for key, value in described.items() if value is not None}
    path = f"{below}/{unit}-{number:05d}.safetensors"
    with writing(run, path) as temporary:
        save_file(dict(state), temporary, metadata)
    return path


def versions() -> dict[str, str]:
    """The versions of Python, torch and this package, as snapshots and run.json record them."""
    return {"python": platform.python_version(), "torch": version("torch"), "landscape": __version__}
