"""The checkpoints of a run: each one file, whole and synced, with a digest; the last two are kept.

    <run>/checkpoints/step-00000400.pt     a dict, for torch.load(…, weights_only=True)
    <run>/checkpoints/begun                there is no checkpoint yet: what the run holds may be begun anew

A last checkpoint that is damaged is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from landscape.core.errors import JobError, LandscapeError, one_line, quoted
from landscape.core.files import Folder, left_by_the_dead
from landscape.core.validation import LARGEST_SEED, between
from landscape.model.run_files import (
    CHECKPOINTS,
    NAME,
    checkpoint_numbers,
    checkpoint_path,
    refusing_disk_errors,
    writing,
)

log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# What a checkpoint can hold, and its digest.

ALLOWED = "tensors, numbers, text, None, and lists, tuples and dicts of these"


def to_plain(name: str, value: Any) -> Any:
    """`value` as `torch.load(weights_only=True)` reads it back, with its tensors on the CPU.

    Tensors that share their memory still do.

    Raises:
        JobError: it holds something else; names where.
    """
    match value:
        case Tensor():
            return _tensor(name, value)
        case np.generic():
            return to_plain(name, value.item())
        case bool() | None:
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case Mapping():
            return {_key(name, key): to_plain(f"{name}[{quoted(key, 60)}]", each) for key, each in value.items()}
        case list():
            return [to_plain(f"{name}[{k}]", each) for k, each in enumerate(value)]
        case tuple():
            return tuple(to_plain(f"{name}[{k}]", each) for k, each in enumerate(value))
    raise JobError(f"keep: {name} must be of {ALLOWED}, not {type(value).__name__}; convert it, or leave it out")


def _tensor(name: str, value: Tensor) -> Tensor:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise JobError(f"keep: {name} must be a dense tensor with data; convert it, or leave it out")
    tensor = value.detach().as_subclass(Tensor).cpu()
    # A view would take the whole of what it is a view of along into the file.
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _key(name: str, key: Any) -> Any:
    if isinstance(key, np.generic):
        key = key.item()
    if isinstance(key, (str, int, float)):
        return key
    raise JobError(f"keep: {name} must have keys that are text or numbers, not {quoted(key)}; convert them")


def checkpoint_digest(value: Any) -> str:
    """SHA-256 of what `to_plain` gives, in hexadecimal: of types, structure and every bit of the tensors."""
    algorithm = hashlib.sha256()

    def add(value: Any) -> None:
        match value:
            case Tensor():
                algorithm.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
                algorithm.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
            case dict():
                algorithm.update(f"dict {len(value)};".encode())
                for key, element in value.items():
                    add(key)
                    add(element)
            case list() | tuple():
                algorithm.update(f"{type(value).__name__} {len(value)};".encode())
                for element in value:
                    add(element)
            case _:
                text = f"{type(value).__name__} {value!r}".encode()
                algorithm.update(f"{len(text)};".encode() + text)

    add(value)
    return algorithm.hexdigest()


BEGUN = "begun"
FORMAT, FAMILY = "landscape-checkpoint-1", "landscape-checkpoint-"
KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A training between two steps.

    Args:
        step, epoch: how many of them were done and recorded.
        world: the number of ranks.
        values: what was kept, by name: plain values, and the states of objects.
        classes: the class of each object whose state is in `values`.
        generators: the states of each rank's generators.
    """

    step: int
    epoch: int
    world: int
    values: dict[str, Any]
    classes: dict[str, str]
    generators: list[dict[str, Any]]


NAMES = tuple(field.name for field in fields(Checkpoint))


def write_checkpoint(folder: Folder, number: int, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all; then delete all but it and the one before it."""
    contents = _fields(checkpoint)
    saved = {"format": FORMAT, "digest": checkpoint_digest(contents), **contents}
    with writing(folder, checkpoint_path(number)) as temporary, open(temporary, "wb") as file:
        _save(saved, file)
    before = [other for other in checkpoint_numbers(folder) if other < number]
    with refusing_disk_errors(folder.place(CHECKPOINTS)):
        _delete_others(folder, {number, *before[1 - KEPT :]})


def _save(saved: dict[str, Any], file: BinaryIO) -> None:
    try:
        torch.save(saved, file)
    except RuntimeError as error:
        # After a write that failed torch still ends its archive, and tells that its size is wrong.
        raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def _fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields by name, without copies of the tensors in them."""
    return {name: getattr(checkpoint, name) for name in NAMES}


def _delete_others(folder: Folder, kept: set[int]) -> None:
    """Delete the other checkpoints, those with larger numbers too, and what writers that have died left."""
    for name in folder.names(CHECKPOINTS):
        match = NAME.fullmatch(name)
        if (match and int(match[1]) not in kept) or left_by_the_dead(name) or name == BEGUN:
            folder.delete(f"{CHECKPOINTS}/{name}")
    folder.sync_names(CHECKPOINTS)


def read_last(folder: Folder) -> Checkpoint | None:
    """The last checkpoint that is whole; None where the run holds none.

    Raises:
        JobError: there are checkpoints, and none can be read; a newer version wrote the last one; or a folder has the
            name of one.
        LandscapeError: they cannot be reached.
    """
    _refuse_folders(folder)
    reason = ""
    numbers = checkpoint_numbers(folder)
    for number in reversed(numbers):
        checkpoint, damage = _read(folder, checkpoint_path(number))
        if checkpoint is not None:
            if reason:
                log.warning("%s; the training goes on from step %d", reason, checkpoint.step)
            return checkpoint
        reason = reason or f"checkpoint {quoted(folder.place(checkpoint_path(number)))} is damaged ({damage})"
    if not numbers:
        return None
    more = ", and the one before it is too" if len(numbers) > 1 else ""
    raise JobError(f"{reason}{more}; restore one, or begin anew with overwrite")


def _refuse_folders(folder: Folder) -> None:
    """Refuse a folder where a checkpoint is or will be, which no checkpoint could replace."""
    for name in filter(NAME.fullmatch, folder.folders(CHECKPOINTS)):
        place = quoted(folder.place(f"{CHECKPOINTS}/{name}"))
        raise JobError(f"checkpoint {place} must be a file, not a folder; move it away, then start again")


def _read(folder: Folder, path: str) -> tuple[Checkpoint | None, str]:
    """The checkpoint, or what is wrong with it."""
    place = quoted(folder.place(path))
    try:
        with folder.fetched(path) as file:
            saved, damage = _loaded(file)
    except FileNotFoundError:
        return None, "it is a link that leads nowhere"
    except OSError as error:
        raise LandscapeError(f"checkpoint {place} cannot be read: {error.strerror or one_line(error)}") from None
    kind = saved.get("format") if isinstance(saved, dict) else None
    if isinstance(kind, str) and kind.startswith(FAMILY) and kind != FORMAT:
        raise JobError(
            f"checkpoint {place} is of format {quoted(kind)}, which this version does not read; "
            "go on with the version that wrote it, or begin anew with overwrite"
        )
    if kind != FORMAT:
        return None, damage or "it is no checkpoint of a training"
    contents = {name: saved.get(name) for name in NAMES}
    if saved.get("digest") != checkpoint_digest(contents):
        return None, "its contents do not match their digest"
    checkpoint = Checkpoint(**contents)
    return (checkpoint, "") if _is_whole(checkpoint) else (None, "it lacks what a training goes on from")


def _is_whole(checkpoint: Checkpoint) -> bool:
    """Whether the fields have their types, and there are generators of every rank."""
    counts = (checkpoint.step, checkpoint.epoch, checkpoint.world)
    return (
        all(type(count) is int and count >= 0 for count in counts)
        and isinstance(checkpoint.values, dict)
        and isinstance(checkpoint.classes, dict)
        and isinstance(checkpoint.generators, list)
        and len(checkpoint.generators) == checkpoint.world
    )


def _loaded(file: Path) -> tuple[Any, str]:
    """What the file holds, or why it cannot be read: whatever a torn or flipped file makes torch raise."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True), ""
    except Exception as error:
        return None, one_line(error, 120)


def may_begin_anew(folder: Folder) -> bool:
    """Whether a training began in this run, and was stopped before its first checkpoint."""
    return BEGUN in folder.names(CHECKPOINTS)


def mark_begun(folder: Folder) -> None:
    """Record that the run may be begun anew until there is a checkpoint; those that it holds are deleted."""
    _refuse_folders(folder)
    with refusing_disk_errors(folder.place(CHECKPOINTS)):
        folder.write(f"{CHECKPOINTS}/{BEGUN}", b"")
        for number in checkpoint_numbers(folder):
            folder.delete(checkpoint_path(number))
        folder.sync_names(CHECKPOINTS)


# ----------------------------------------------------------------------------------------------------
# The states of a rank's random generators.

States = dict[str, Any]


def checked_seed(seed: int) -> int:
    """A seed that every generator takes.

    Raises:
        JobError: it is none.
    """
    try:
        return between(0, LARGEST_SEED)(seed)
    except ValueError as error:
        raise JobError(f"seed: {error}") from None


def generator_states(device: torch.device) -> States:
    """The states of the global generators, as tensors and plain values.

    Args:
        device: the one that the rank computes on; of other GPUs nothing is taken.
    """
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002  # the global one
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [str(name), [int(key) for key in keys], int(position), int(has_gauss), float(gauss)],
        "random": _lists(random.getstate()),
    }


def set_generator_states(states: States, device: torch.device) -> None:
    """Put the global generators into these states; that of a GPU stays as it is where the states have none."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    name, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, internal, next_gauss = states["random"]
    random.setstate((version, tuple(internal), next_gauss))


def seed_generators(seed: int, rank: int = 0) -> None:
    """Seed the global generators of a rank: each rank draws other numbers than the others, the same in every run."""
    number = int.from_bytes(hashlib.sha256(f"{seed}/{rank}".encode()).digest()[:8], "little")
    torch.manual_seed(number >> 1)  # all GPUs too; it takes 63 bits
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)


def _lists(value: Any) -> Any:
    return [_lists(element) for element in value] if isinstance(value, tuple) else value
