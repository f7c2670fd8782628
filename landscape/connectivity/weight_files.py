"""Files of weights that were made here, each with what it was made from, so that it is made once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from landscape.digests import canonical_json
from landscape.errors import JobError, LandscapeError, message_of, shown
from landscape.parameters import State
from landscape.trajectory.run_files import SNAPSHOT_FORMAT
from landscape.trajectory.weight_files import read_about

MADE_OF = "made_of"  # the metadata of the file


def read_made(file: Path, made_of: Mapping[str, Any], what: str) -> bool:
    """Whether the file is there and was made from the same; what a name says of it is `what`.

    Raises:
        JobError: it holds something else.
    """
    if not file.exists():
        return False
    if read_about(file).get(MADE_OF) != canonical_json(made_of):
        raise JobError(
            f"{what}: {shown(str(file))} holds other weights than would be made now; name another file, or remove it"
        )
    return True


def write_made(file: Path, weights: State, made_of: Mapping[str, Any]) -> None:
    """Write weights whole, then rename.

    Raises:
        LandscapeError: they cannot be written.
    """
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    metadata = {"format": SNAPSHOT_FORMAT, MADE_OF: canonical_json(made_of)}
    try:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, beside, metadata)
        os.replace(beside, file)
    except OSError as error:
        raise LandscapeError(f"weights {shown(str(file))} cannot be written: {message_of(error)}") from None
    finally:
        beside.unlink(missing_ok=True)
