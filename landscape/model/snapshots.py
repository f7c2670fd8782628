"""The snapshots of a run: each written whole and read back; together they are the run's trajectory."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError, safe_open

from landscape import __version__
from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.files import PARTIAL, Folder, Place, left_by_the_dead
from landscape.core.folders import open_folder, split_path
from landscape.core.validation import Unit, ranges
from landscape.model.run_files import (
    FOLDER,
    HISTORY_FILE,
    REPLACING,
    SNAPSHOT_FORMAT,
    SNAPSHOT_NAME,
    STAGED,
    contents,
    read_info,
    reason_of,
    refusing_disk_errors,
    write_info,
    writing,
)

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.model.parameters import State

HEADER, LARGEST_HEADER = 16384, 100_000_000  # bytes of a header: read at once, and the most that safetensors allows
UNITS: tuple[Unit, ...] = ("epoch", "step")


@dataclass(frozen=True)
class Snapshot:
    """The file that holds the weights at one epoch or step.

    Args:
        unit: of `number`.
        number: the epoch or step.
        path: the whole path or URL of the file.
        step: how many steps were done then; None if the file does not record it.
        epoch: how many epochs were done then; None if the file does not record it.
        source: the checkpoint that it was imported from; empty if it was collected.
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
        from safetensors.torch import load_file  # needs torch, which listing snapshots does not

        from landscape.model.parameters import state_digest

        folder, name = split_path(self.path)
        try:
            with folder.fetched(name) as file:
                state = load_file(file)
                with safe_open(file, framework="pt") as opened:
                    metadata = opened.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise LandscapeError(f"{_damaged(self.path)}: {reason_of(error)}") from None
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
            JobError: one of them was not collected; lists the collected ones.
        """
        if numbers == "all":
            return self
        return Trajectory(self.run, self.unit, tuple(self.snapshot(int(number)) for number in sorted(set(numbers))))

    def snapshot(self, number: int) -> Snapshot:
        """The snapshot of one epoch or step.

        Raises:
            JobError: it was not collected; lists the collected ones.
        """
        for snapshot in self.snapshots:
            if snapshot.number == number:
                return snapshot
        collected = f"{self.unit}s {ranges(self.numbers)}" if self.snapshots else "none"
        raise JobError(
            f"trajectory: {self.unit} {number} is not in run {quoted(self.run)}; collected there: {collected}"
        )


def read_trajectory(run: Place) -> Trajectory:
    """The snapshots of a run; only the headers of their files are read.

    Returns:
        The trajectory; empty if the run holds no snapshots, or does not exist.

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
        raise LandscapeError(f"run {quoted(folder.name)} holds snapshots by epoch and by step; move one kind away")
    counted = sorted(
        (snapshot for snapshot in snapshots if snapshot.unit == unit), key=lambda snapshot: snapshot.number
    )
    return Trajectory(_name_of(run), unit, tuple(folder.map(_read_metadata, counted)))


def _name_of(run: Place) -> str:
    return run.name if isinstance(run, Folder) else str(run)


def _read_metadata(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the step, epoch and source that its file records.

    If the file is damaged, the snapshot is unchanged: loading it will report the damage.
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
    return f"snapshot {quoted(path)} is damaged; restore it, or delete it and collect or import it again"


def snapshot_files(run: Place, info: Mapping[str, Any] | None = None) -> list[tuple[Unit, int, str]]:
    """The unit, number and path of every snapshot that counts.

    Args:
        info: the contents of run.json; default: read it.

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
        below: the folder in the run to write it to.
        about: further entries of its metadata (step, epoch, versions, source); None values are omitted.

    Returns:
        Its path in the run.
    """
    from safetensors.torch import save_file

    from landscape.model.parameters import state_digest

    entries = {"format": SNAPSHOT_FORMAT, "unit": unit, "number": number, "digest": state_digest(state), **about}
    metadata = {key: str(value) for key, value in entries.items() if value is not None}
    path = f"{below}/{unit}-{number:05d}.safetensors"
    with writing(run, path) as temporary:
        save_file(dict(state), temporary, metadata)
    return path


def can_be_stored(tensor: Tensor) -> bool:
    """Whether safetensors stores such a tensor: a dense one, of a type that it knows."""
    import torch
    from safetensors.torch import save

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return False
    try:
        save({"tensor": torch.empty(0, dtype=tensor.dtype)})
    except (KeyError, SafetensorError):
        return False
    return True


def versions() -> dict[str, str]:
    """The versions of Python, torch and this package, as snapshots and run.json record them."""
    return {"python": platform.python_version(), "torch": version("torch"), "landscape": __version__}


# ----------------------------------------------------------------------------------------------------
# Replacing the trajectory of a run: a crash at any moment leaves the old one or the new one.
#
# 1. The new files are written into a folder of their own beside the trajectory.
# 2. One whole write of run.json names them as the snapshots and the history that count. Before it, every reader sees
# the old files; after it, the new ones.
# 3. The old files are deleted, and the new ones are copied to their usual places.
# 4. run.json is written again without those names, and the folder of step 1 is deleted.
#
# Steps 3 and 4 may be repeated, so the next process that writes to the run finishes them after a crash.

# Temporary files directly in the folder of a run have these stems; the driver has others.
OWN_STEMS = ("run", "history", "checkpoint", "launch")
HEAD = 4096  # bytes at the beginning of a snapshot that hold the name of its format


@contextlib.contextmanager
def staging(folder: Folder) -> Iterator[str]:
    """The name of a folder to write the new files into; it is deleted when the block ends.

    It stays if run.json names files in it, which `finish_replacement` needs, or if run.json cannot be read.
    """
    name = f".{FOLDER}-{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}"
    try:
        yield name
    finally:
        with contextlib.suppress(LandscapeError, OSError):
            if not any(path.startswith(f"{name}/") for path in _paths(read_info(folder).get(REPLACING))):
                folder.delete_below(name)


def _paths(replacing: Any) -> list[str]:
    """The paths that run.json names under `REPLACING`; empty if it has no such entry."""
    return [] if replacing is None else [*replacing["snapshots"], *filter(None, [replacing["history"]])]


def replace_trajectory(folder: Folder, info: Mapping[str, Any], snapshots: Sequence[str], history: str | None) -> None:
    """Make these the run's snapshots, history and run.json, and nothing else.

    Args:
        snapshots: the paths of the snapshots in the run, staged or already in place.
        history: the path of a staged history, HISTORY_FILE to keep the present one, or None for none.
    """
    named = {"snapshots": list(snapshots), "history": history}
    if _is_any_missing(folder, named):
        raise LandscapeError(
            f"run {quoted(folder.name)}: another process has removed the files that were to replace its trajectory; "
            "do it again"
        )
    write_info(folder, {**info, REPLACING: named})
    finish_replacement(folder)


def _is_any_missing(folder: Folder, replacing: Any) -> bool:
    """Whether a file that run.json names is missing; HISTORY_FILE itself may be absent."""
    paths = [path.rpartition("/") for path in _paths(replacing)]
    names = {below: folder.names(below) for below in {below for below, _, _ in paths if below}}
    return any(below and name not in names[below] for below, _, name in paths)


def finish_replacement(folder: Folder) -> None:
    """Finish an interrupted replacement that run.json names, if there is one."""
    info = read_info(folder)
    if REPLACING not in info:
        return
    new = contents(folder, info)
    if _is_any_missing(folder, info[REPLACING]):
        raise LandscapeError(
            f"run {quoted(folder.name)}: files that its run.json names under {REPLACING!r} are gone; restore them, or "
            "delete run.json and import or collect again"
        )
    with refusing_disk_errors(folder.name):
        _move(folder, new.snapshots, new.history)
        write_info(folder, {key: value for key, value in info.items() if key != REPLACING})
        for staged in {path.rpartition("/")[0] for path in _paths(info[REPLACING])} - {"", FOLDER}:
            folder.delete_below(staged)


def _move(folder: Folder, snapshots: Sequence[str], history: str | None) -> None:
    """Delete the old files, then copy the new ones to their usual places.

    While run.json names the new files, only these count. Afterwards, every snapshot in the folder counts, so the
    deletions are synced first: no old file may reappear after a power cut.
    """
    names = {path.rpartition("/")[2] for path in snapshots}
    for name in folder.names(FOLDER):
        if SNAPSHOT_NAME.fullmatch(name) and name not in names:
            folder.delete(f"{FOLDER}/{name}")
    folder.sync_names(FOLDER)
    for path in snapshots:
        if not path.startswith(f"{FOLDER}/"):
            folder.copy(path, f"{FOLDER}/{path.rpartition('/')[2]}")
    if history is None:
        folder.delete(HISTORY_FILE)
        folder.sync_names("")
    elif history != HISTORY_FILE:
        folder.copy(history, HISTORY_FILE)


def remove_leftovers(folder: Folder) -> None:
    """Delete the temporary files of processes that have ended, recognised by their exact names."""
    with refusing_disk_errors(folder.name):
        used = {path.rpartition("/")[0] for path in _paths(read_info(folder).get(REPLACING))}
        for name in folder.folders(""):
            # In an object store, the writer may be on another machine, so its process number means nothing here.
            if STAGED.fullmatch(name) and name not in used and ("://" in folder.name or _is_abandoned(name)):
                folder.delete_below(name)
        for name in folder.names(""):
            if (left_by_the_dead(name) or "").partition(".")[0] in OWN_STEMS:
                folder.delete(name)
        for name in folder.names(FOLDER):
            stem = left_by_the_dead(name)
            if (stem and SNAPSHOT_NAME.fullmatch(f"{stem}.safetensors")) or _is_cut_off(folder, name):
                folder.delete(f"{FOLDER}/{name}")


def _is_abandoned(staged: str) -> bool:
    """Whether the process in the name of a staging folder has ended."""
    match = STAGED.fullmatch(staged)
    return match is not None and left_by_the_dead(f".{FOLDER}-{match[1]}{PARTIAL}") is not None


def _is_cut_off(folder: Folder, name: str) -> bool:
    """Whether a file is a temporary file of safetensors with the beginning of a snapshot, or empty."""
    if not (name.startswith(".tmp") and len(name) == len(".tmp") + 6):
        return False
    head = folder.read_range(f"{FOLDER}/{name}", 0, HEAD)
    return not head or SNAPSHOT_FORMAT.encode() in head
