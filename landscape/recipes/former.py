"""Takes over the checkpoint that earlier versions of this package wrote after each epoch, as `<run>/checkpoint.pt`."""

from __future__ import annotations

from typing import Any

import torch

from landscape.core.errors import JobError, StoreError, one_line, shown
from landscape.core.files import Folder
from landscape.model.run_files import checkpoint_numbers
from landscape.recipes.settings import Settings
from landscape.training.checkpoints import (
    Checkpoint,
    generator_states,
    mark_begun,
    may_begin_anew,
    plain,
    seed_generators,
    write_checkpoint,
)

FORMER_FILE = "checkpoint.pt"


def take_over(folder: Folder, steps_per_epoch: int, overwrite: bool = False) -> None:
    """Make a former checkpoint one of today's, where the run has none of these; then delete it.

    Args:
        overwrite: the run is begun anew, whatever it holds: it is deleted alone.

    Raises:
        JobError: it cannot be read.
    """
    if FORMER_FILE not in folder.names(""):
        return
    if not (overwrite or checkpoint_numbers(folder) or may_begin_anew(folder)):
        try:
            with folder.fetched(FORMER_FILE) as path:
                saved = dict(torch.load(path, map_location="cpu", weights_only=True))
            _rewrite(folder, saved, steps_per_epoch)
        except (StoreError, OSError):
            raise
        except Exception as error:  # whatever a torn file makes torch raise
            place = shown(folder.place(FORMER_FILE))
            raise JobError(
                f"checkpoint {place} cannot be read: {one_line(error, 120)}; delete it, or begin anew with overwrite"
            ) from None
    folder.delete(FORMER_FILE)
    folder.sync_names("")


def _rewrite(folder: Folder, saved: dict[str, Any], steps_per_epoch: int) -> None:
    epoch = int(saved["metrics"]["epoch"])
    if epoch == 0:
        mark_begun(folder)
        return
    settings = Settings(**_renamed(saved["settings"]))  # what earlier versions did not know is as by default
    progress = {"epoch": epoch, "batch": 0, "seconds": 0.0, "metrics": saved["metrics"], "right": 0, "seen": 0}
    values = {
        "settings": settings.plain(),
        "model": saved["model"],
        "optimizer": saved["optimizer"],
        "progress": progress,
    }
    classes = {"settings": "SettingsOf", "model": "Module", "optimizer": "SGD"}
    seed_generators(settings.seed)  # nothing was drawn from the global ones
    generators = [generator_states(torch.device("cpu"))]
    step = epoch * steps_per_epoch
    checkpoint = Checkpoint(step, epoch, 1, plain("checkpoint", values), classes, generators)
    write_checkpoint(folder, step, checkpoint)


def _renamed(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings in today's words: a cosine that ended where it began was the only constant rate."""
    constant = {"schedule": "constant", "final": 0.0} if settings.get("final") == 1.0 else {}
    return settings | constant
