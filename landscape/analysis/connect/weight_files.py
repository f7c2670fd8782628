"""Files of weights that were made here, each with what it was made from, so that it is made once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from landscape.analysis.connect.bending import Progress
from landscape.analysis.connect.curve import Reached
from landscape.core.digests import canonical_json
from landscape.core.errors import JobError, LandscapeError, message_of, shown
from landscape.model.parameters import State
from landscape.model.run_files import SNAPSHOT_FORMAT
from landscape.model.weight_files import read_about

MADE_OF, LOSSES = "made_of", "losses"  # the metadata of the file
BEND, VELOCITY = "bend.", "velocity."  # what the names of tensors begin with while a bend is trained


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


def write_made(file: Path, weights: State, made_of: Mapping[str, Any], losses: Sequence[float] = ()) -> None:
    """Write weights whole, then rename.

    Args:
        losses: of the epochs of their training.

    Raises:
        LandscapeError: they cannot be written.
    """
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    metadata = {"format": SNAPSHOT_FORMAT, MADE_OF: canonical_json(made_of), LOSSES: json.dumps(list(losses))}
    try:
        with open(beside, "wb") as opened:
            opened.writelines(_in_order(save({name: each.contiguous() for name, each in weights.items()}, metadata)))
        os.replace(beside, file)
    except OSError as error:
        raise LandscapeError(
            f"weights {shown(str(file))} cannot be written: {error.strerror or message_of(error)}"
        ) from None
    finally:
        beside.unlink(missing_ok=True)


def _in_order(data: bytes) -> Iterator[bytes | memoryview]:
    """The parts of a safetensors file with its metadata sorted: safetensors orders them otherwise in each process."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight
    yield len(text).to_bytes(8, "little") + text
    yield memoryview(data)[end:]


def read_losses(file: Path) -> tuple[float, ...]:
    """The losses of the epochs that a file of weights was trained for; none where it does not say."""
    return tuple(json.loads(read_about(file).get(LOSSES, "[]")))


def write_progress(file: Path, progress: Progress, made_of: Mapping[str, Any]) -> None:
    """Keep how far the training of a bend is, beside its file.

    Raises:
        LandscapeError: it cannot be written.
    """
    reached = progress.reached
    tensors = {BEND + name: tensor for name, tensor in reached.bend.items()}
    tensors |= {VELOCITY + name: tensor for name, tensor in reached.velocity.items()}
    write_made(_beside(file), tensors, made_of, progress.losses)


def read_progress(file: Path, made_of: Mapping[str, Any]) -> Progress | None:
    """How far the training of this bend was; None where it was not begun, or where that is of another one."""
    beside = _beside(file)
    try:
        if not beside.exists() or read_about(beside).get(MADE_OF) != canonical_json(made_of):
            return None
        tensors = load_file(beside)
    except (JobError, OSError, SafetensorError):
        return None
    bend, velocity = (
        {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        for start in (BEND, VELOCITY)
    )
    return Progress(Reached(bend, velocity), read_losses(beside))


def remove_progress(file: Path) -> None:
    """Forget how far the training was, once the bend is there."""
    _beside(file).unlink(missing_ok=True)


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.stem}.training{file.suffix}")
