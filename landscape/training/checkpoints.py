"""The checkpoints of a run: each one file, whole and synced, with a digest; the last two are kept.

    <run>/checkpoints/step-00000400.pt     a dict, for torch.load(…, weights_only=True)
    <run>/checkpoints/begun                there is no checkpoint yet: what the run holds may be begun anew

A last checkpoint that is damaged is passed over for the one before it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import torch

from landscape.core.errors import JobError, LandscapeError, one_line, shown
from landscape.core.files import Folder, left_by_the_dead
from landscape.model.run_files import (
    CHECKPOINTS,
    NAME,
    checkpoint_numbers,
    checkpoint_path,
    refusing_disk_errors,
    writing,
)
from landscape.training.contents import digest_of

BEGUN = "begun"
FORMAT, FAMILY = "landscape-checkpoint-1", "landscape-checkpoint-"
KEPT = 2
log = logging.getLogger("landscape")


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
    """Write a checkpoint, whole or not at all; then delete all but it and the one before it.

    Raises:
        LandscapeError: the disk is full, or rights are missing.
    """
    contents = _fields(checkpoint)
    saved = {"format": FORMAT, "digest": digest_of(contents), **contents}
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
        reason = reason or f"checkpoint {shown(folder.place(checkpoint_path(number)))} is damaged ({damage})"
    if not numbers:
        return None
    more = ", and the one before it is too" if len(numbers) > 1 else ""
    raise JobError(f"{reason}{more}; restore one, or begin anew with overwrite")


def _refuse_folders(folder: Folder) -> None:
    """Refuse a folder where a checkpoint is or will be, which no checkpoint could replace.

    Raises:
        JobError: names it.
    """
    for name in filter(NAME.fullmatch, folder.folders(CHECKPOINTS)):
        place = shown(folder.place(f"{CHECKPOINTS}/{name}"))
        raise JobError(f"checkpoint {place} must be a file, not a folder; move it away, then start again")


def _read(folder: Folder, path: str) -> tuple[Checkpoint | None, str]:
    """The checkpoint, or what is wrong with it."""
    place = shown(folder.place(path))
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
            f"checkpoint {place} is of format {shown(kind)}, which this version does not read; "
            "go on with the version that wrote it, or begin anew with overwrite"
        )
    if kind != FORMAT:
        return None, damage or "it is no checkpoint of a training"
    contents = {name: saved.get(name) for name in NAMES}
    if saved.get("digest") != digest_of(contents):
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
    """Record that the run may be begun anew until there is a checkpoint; those that it holds are deleted.

    Raises:
        LandscapeError: the disk is full, or rights are missing; or a folder has the name of a checkpoint.
    """
    _refuse_folders(folder)
    with refusing_disk_errors(folder.place(CHECKPOINTS)):
        folder.write(f"{CHECKPOINTS}/{BEGUN}", b"")
        for number in checkpoint_numbers(folder):
            folder.delete(checkpoint_path(number))
        folder.sync_names(CHECKPOINTS)
