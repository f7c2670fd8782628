"""Whether a training may begin in a run: in an empty one, in one that it has begun before, or where it overwrites."""

from __future__ import annotations

from landscape.core.errors import JobError, shown
from landscape.core.files import Folder
from landscape.model.run_files import HISTORY_FILE, checkpoint_numbers
from landscape.model.snapshots import snapshot_files
from landscape.training.checkpoints import mark_begun, may_begin_anew


def mark_start(folder: Folder, overwrite: bool) -> None:
    """Mark the run as one that may be begun anew until there is a checkpoint, if it is this training's.

    Args:
        overwrite: whether whatever it holds may go.

    Raises:
        JobError: it has checkpoints that were not asked for, or another training's trajectory.
    """
    if overwrite or may_begin_anew(folder):
        mark_begun(folder)  # again, since a kill may have left checkpoints that were to go
        return
    name = shown(folder.name)
    if checkpoint_numbers(folder):
        raise JobError(f"run: {name} holds checkpoints; call resume before collector, or name another run")
    if snapshot_files(folder):
        raise JobError(
            f"run: {name} holds a trajectory that this training did not make; name another run, or overwrite it"
        )
    if not folder.read(HISTORY_FILE):
        mark_begun(folder)
