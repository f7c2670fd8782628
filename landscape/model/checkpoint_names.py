"""The names of a training's checkpoints in its run; `landscape.training.checkpoints` writes and reads them.

<run>/checkpoints/step-00000400.pt
"""

from __future__ import annotations

import re

from landscape.core.files import Folder

FOLDER = "checkpoints"
NAME = re.compile(r"step-(\d{8,15})\.pt")


def checkpoint_path(number: int) -> str:
    """The path in the run of the checkpoint with this number."""
    return f"{FOLDER}/step-{number:08d}.pt"


def checkpoint_numbers(folder: Folder) -> list[int]:
    """The numbers of the checkpoints that a run holds, ascending."""
    return sorted(int(match[1]) for match in map(NAME.fullmatch, folder.names(FOLDER)) if match)
