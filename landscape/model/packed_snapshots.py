"""The snapshots in a portable problem: those of the run that it was packed from, and of others that its job names."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from landscape.core.errors import LandscapeError
from landscape.core.files import Place
from landscape.model.history import log_end, went_on_to
from landscape.model.packed_file import Archive, names_a_file, part_of
from landscape.model.run_files import FOLDER, SNAPSHOT_NAME, writing
from landscape.model.snapshots import Snapshot, Trajectory, read_trajectory

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PackedSnapshot(Snapshot):
    """A snapshot that is a member of a file."""

    archive: Archive | None = None

    def load(self) -> dict[str, Tensor]:
        """The parameters and persistent buffers by name, on the CPU."""
        from landscape.model.packed_model import read_tensors

        assert self.archive is not None
        return read_tensors(self.archive, self.path)


def trajectory_of(run: str, problem: object, folder: Path) -> Trajectory:
    """The snapshots of a run; where it has none, those of its portable problem.

    Args:
        problem: the problem of the job.
        folder: the folder that a relative file lies in.
    """
    own = read_trajectory(run)
    if own.snapshots or not names_a_file(problem):
        return own
    packed = packed_trajectory(folder / str(problem), FOLDER)
    return Trajectory(run, packed.unit, packed.snapshots) if packed.snapshots else own


def trajectory_at(place: str) -> Trajectory:
    """The snapshots of the run at a folder or URL, or in a portable problem that holds them."""
    part = part_of(place)
    return read_trajectory(place) if part is None else packed_trajectory(*part)


def packed_trajectory(file: Path, below: str) -> Trajectory:
    """The snapshots that a file holds below a name, such as `trajectory`, or `runs/sgd` for another run."""
    archive = Archive(file)
    snapshots: list[PackedSnapshot] = []
    for member in archive.names:
        place, _, name = member.rpartition("/")
        match = SNAPSHOT_NAME.fullmatch(name) if place == below else None
        if match:
            unit, about = ("epoch" if match[1] == "epoch" else "step"), _about(archive, member)
            step, epoch = (int(about[key]) if about.get(key) else None for key in ("step", "epoch"))
            source = about.get("source", "")
            snapshots.append(PackedSnapshot(unit, int(match[2]), member, step, epoch, source, archive))  # type: ignore[arg-type]
    snapshots.sort(key=lambda snapshot: snapshot.number)
    return Trajectory(f"{file}/{below}", snapshots[0].unit if snapshots else "epoch", tuple(snapshots))


def logged_beyond(trajectory: Trajectory, snapshot: Snapshot) -> str:
    """How far the log of a trajectory's run goes beyond a snapshot, in the words of `went_on_to`.

    It is empty for a packed snapshot, which has no log, and where the log cannot be read, as no value depends on it.
    """
    if not isinstance(snapshot, PackedSnapshot):
        with contextlib.suppress(LandscapeError):
            return went_on_to(log_end(trajectory.run), snapshot)
    return ""


def bring_snapshots(run: str, problem: object, folder: Path) -> None:
    """Write the snapshots of a portable problem into a run that has none."""
    for snapshot in trajectory_of(run, problem, folder).snapshots:
        if isinstance(snapshot, PackedSnapshot) and snapshot.archive is not None:
            _write(run, snapshot.path, snapshot.archive)


def _write(run: Place, member: str, archive: Archive) -> None:
    with writing(run, member) as temporary, open(temporary, "wb") as opened:
        archive.copy(member, opened)


def _about(archive: Archive, member: str) -> dict[str, Any]:
    length = int.from_bytes(archive.part(member, 0, 8), "little")  # its digest is compared when it is loaded
    try:
        header = json.loads(archive.part(member, 8, length))
        about = header.get("__metadata__", {})
        return {str(key): str(value) for key, value in about.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise archive.damaged(f"{member!r} is no snapshot: {str(error)[:60]}") from None
