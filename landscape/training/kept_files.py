"""The checkpoints of a run, each one file, whole and synced, with a digest; and how collecting starts.

The last two checkpoints are kept:

    <run>/checkpoints/step-00000400.pt     a dict, for torch.load(…, weights_only=True)
    <run>/checkpoints/begun                a mark: there is no checkpoint yet, and the training may begin anew

If the last checkpoint is damaged, the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, LandscapeError, one_line, quoted
from landscape.core.files import Folder, left_by_the_dead
from landscape.core.validation import LARGEST_SEED, Unit, between
from landscape.job.job import CollectLandscape
from landscape.model.history import HistoryLines, finite, keep_beside, number_in, read_history, read_lines
from landscape.model.parameters import persistent_buffers
from landscape.model.run_files import (
    CHECKPOINTS,
    HISTORY_FILE,
    NAME,
    NETWORK,
    PROBLEM,
    checkpoint_numbers,
    checkpoint_path,
    read_info,
    refusing_disk_errors,
    write_info,
    writing,
)
from landscape.model.snapshots import read_trajectory, replace_trajectory, snapshot_files, staging, versions

log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# The values that a checkpoint can hold, and their digest.

ALLOWED = "tensors, numbers, text, None, and lists, tuples and dicts of these"


def to_plain(name: str, value: Any) -> Any:
    """`value` as `torch.load(weights_only=True)` reads it back, with its tensors on the CPU.

    Tensors that share their memory still do.

    Raises:
        JobError: it holds something else; names the place.
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
            return {_key(name, key): to_plain(f"{name}[{quoted(key, 60)}]", member) for key, member in value.items()}
        case list():
            return [to_plain(f"{name}[{k}]", member) for k, member in enumerate(value)]
        case tuple():
            return tuple(to_plain(f"{name}[{k}]", member) for k, member in enumerate(value))
    raise JobError(f"keep: {name} must be of {ALLOWED}, not {type(value).__name__}; convert it, or leave it out")


def _tensor(name: str, value: Tensor) -> Tensor:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise JobError(f"keep: {name} must be a dense tensor with data; convert it, or leave it out")
    tensor = value.detach().as_subclass(Tensor).cpu()
    # Saving a view would also save the rest of its memory.
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _key(name: str, key: Any) -> Any:
    if isinstance(key, np.generic):
        key = key.item()
    if isinstance(key, (str, int, float)):
        return key
    raise JobError(f"keep: {name} must have keys that are text or numbers, not {quoted(key)}; convert them")


def checkpoint_digest(value: Any) -> str:
    """SHA-256 of a result of `to_plain`, in hexadecimal: over types, structure and every bit of the tensors."""
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
        step, epoch: how many were done and recorded.
        world: the number of ranks.
        values: by name: plain values, and the states of objects.
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
    before = [earlier for earlier in checkpoint_numbers(folder) if earlier < number]
    with refusing_disk_errors(folder.place(CHECKPOINTS)):
        _delete_others(folder, {number, *before[1 - KEPT :]})


def _save(saved: dict[str, Any], file: BinaryIO) -> None:
    try:
        torch.save(saved, file)
    except RuntimeError as error:
        # After a failed write, torch still ends its archive, and complains of its wrong size.
        raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def _fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields by name, without copies of the tensors in them."""
    return {name: getattr(checkpoint, name) for name in NAMES}


def _delete_others(folder: Folder, kept: set[int]) -> None:
    """Delete all other checkpoints, also those with larger numbers, and the leftovers of dead writers."""
    for name in folder.names(CHECKPOINTS):
        match = NAME.fullmatch(name)
        if (match and int(match[1]) not in kept) or left_by_the_dead(name) or name == BEGUN:
            folder.delete(f"{CHECKPOINTS}/{name}")
    folder.sync_names(CHECKPOINTS)


def read_last(folder: Folder) -> Checkpoint | None:
    """The last undamaged checkpoint; None if the run holds no checkpoint.

    Raises:
        JobError: there are checkpoints, and none can be read; a newer version wrote the last one; or a folder has the
            name of one.
        LandscapeError: the checkpoints cannot be accessed.
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
    rest = ", and the one before it is too" if len(numbers) > 1 else ""
    raise JobError(f"{reason}{rest}; restore one, or begin anew with overwrite")


def _refuse_folders(folder: Folder) -> None:
    """Refuse a folder with the name of a checkpoint, since no checkpoint could replace it."""
    for name in filter(NAME.fullmatch, folder.folders(CHECKPOINTS)):
        place = quoted(folder.place(f"{CHECKPOINTS}/{name}"))
        raise JobError(f"checkpoint {place} must be a file, not a folder; move it away, then start again")


def _read(folder: Folder, path: str) -> tuple[Checkpoint | None, str]:
    """The checkpoint, or None and its fault."""
    place = quoted(folder.place(path))
    try:
        with folder.fetched(path) as file:
            saved, damage = _load(file)
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


def _load(file: Path) -> tuple[Any, str]:
    """The content of the file, or None and the reason: a damaged file may make torch raise any exception."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True), ""
    except Exception as error:
        return None, one_line(error, 120)


def may_begin_anew(folder: Folder) -> bool:
    """Whether a training began in this run and was stopped before its first checkpoint."""
    return BEGUN in folder.names(CHECKPOINTS)


def mark_begun(folder: Folder) -> None:
    """Mark that the training may begin anew until there is a checkpoint; deletes the present checkpoints."""
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
    """The seed, if every generator can take it.

    Raises:
        JobError: it is no whole number in the range of seeds.
    """
    try:
        return between(0, LARGEST_SEED)(seed)
    except ValueError as error:
        raise JobError(f"seed: {error}") from None


def generator_states(device: torch.device) -> States:
    """The states of the global generators, as tensors and plain values.

    Args:
        device: of the rank; the states of other GPUs are not taken.
    """
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002  # the global one
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [str(name), [int(key) for key in keys], int(position), int(has_gauss), float(gauss)],
        "random": _lists(random.getstate()),
    }


def set_generator_states(states: States, device: torch.device) -> None:
    """Set the global generators to these states; that of a GPU is unchanged if the states have none."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    name, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, internal, next_gauss = states["random"]
    random.setstate((version, tuple(internal), next_gauss))


def seed_generators(seed: int, rank: int = 0) -> None:
    """Seed the global generators of a rank: ranks draw different numbers, the same in every run."""
    number = int.from_bytes(hashlib.sha256(f"{seed}/{rank}".encode()).digest()[:8], "little")
    torch.manual_seed(number >> 1)  # all GPUs too; it takes 63 bits
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)


def _lists(value: Any) -> Any:
    return [_lists(element) for element in value] if isinstance(value, tuple) else value


# ----------------------------------------------------------------------------------------------------
# The files of a run when collecting starts: refused, kept or dropped as a training begins or continues.


# The keys in which two starts of one training may differ.
CHANGING = ("created", "steps_per_epoch", "versions")
UNRECORDED = object()  # a value that JSON cannot hold


def describe_run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    options: CollectLandscape,
    network: Mapping[str, Any],
    problem: str | None = None,
) -> dict[str, Any]:
    """The contents of run.json when collecting begins; `steps_per_epoch` is None until an epoch has ended.

    Args:
        network: the options that the model and the data were made with.
        problem: the callback of the run's landscapes, if it is known.
    """
    optional = {NETWORK: _as_far_as_json(network), PROBLEM: problem}
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "buffers": sum(buffer.numel() for buffer in persistent_buffers(model).values()),
        "optimiser": None if optimizer is None else type(optimizer).__name__,
        "hyperparameters": [] if optimizer is None else [_hyperparameters(group) for group in optimizer.param_groups],
        "learning_rate": learning_rate(optimizer),
        "steps_per_epoch": None,
        "unit": options.unit,
        "collect_landscape": options.model_dump(mode="json"),
        "versions": versions(),
    } | {name: value for name, value in optional.items() if value}


def kept_of(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of the former run.json that a continued training keeps.

    With the same optimiser, these include its settings, since a schedule has changed some by now.
    """
    names = ["created", "steps_per_epoch"]
    if before.get("optimiser") == now["optimiser"]:
        names += ["learning_rate", "hyperparameters"]
    return {key: before[key] for key in names if key in before}


def learning_rate(optimizer: torch.optim.Optimizer | None) -> float | None:
    """The learning rate of the first parameter group; None without one, or if it is not finite."""
    groups = [] if optimizer is None else optimizer.param_groups[:1]
    return finite(float(groups[0]["lr"])) if groups and "lr" in groups[0] else None


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters, and without values that JSON cannot hold."""
    return _as_far_as_json({name: value for name, value in group.items() if name != "params"})


def _as_far_as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not UNRECORDED}


def _plain(value: Any) -> Any:
    """A value of JSON, or `UNRECORDED`."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return finite(value)
    if isinstance(value, (tuple, list)):
        return [None if element is UNRECORDED else element for element in map(_plain, value)]
    return UNRECORDED


INTERRUPTED = "interrupted"  # the history of a training that was killed before its first snapshot
DAMAGED = "damaged"  # the history as it was before its damaged lines were left out


def refuse_existing(folder: Folder, unit: Unit, starting: bool, overwrite: bool) -> None:
    """Refuse a run whose trajectory this training must not replace or cannot continue.

    Args:
        starting: whether the training begins, and does not continue.
        overwrite: whether the trajectory may be replaced.
    """
    files = snapshot_files(folder)
    if not files or (starting and overwrite):
        return
    if starting:
        kinds = " and ".join(sorted({f"{counted}s" for counted, _, _ in files}))
        raise JobError(
            f"run: {quoted(folder.name)} already holds a trajectory of {len(files)} {kinds}; name another run, "
            "give overwrite=True to replace it, or start_epoch or start_step to go on"
        )
    collected = read_trajectory(folder)
    if collected.snapshots and collected.unit != unit:
        raise JobError(
            f"unit: the run was collected by {collected.unit}, not by {unit}; keep to it or name another run"
        )


def steps_and_epochs(folder: Folder, start_step: int, start_epoch: int | None) -> tuple[int, int, int]:
    """How many steps and epochs a continued training has done, and how many steps since its last epoch ended.

    A step of 0 or an epoch of None is unknown: it is read from the history, else computed from the steps per epoch.
    """
    per_epoch = read_info(folder).get("steps_per_epoch")
    lines = [
        (number_in(line, "step"), number_in(line, "epoch"), line.get("epoch_end")) for line in read_history(folder)
    ]
    complete = [(step, epoch, end) for step, epoch, end in lines if step is not None and epoch is not None]
    if not start_step:
        start_epoch = start_epoch or 0
        steps = [step for step, epoch, _ in complete if epoch <= start_epoch]
        start_step = max(steps, default=start_epoch * (per_epoch or 0))
    elif start_epoch is None:
        ended = [epoch for step, epoch, end in complete if end and step <= start_step]
        start_epoch = max(ended, default=start_step // per_epoch if per_epoch else 0)
    ends = [step for step, epoch, end in complete if end and epoch == start_epoch]
    return start_step, start_epoch, max(0, start_step - ends[-1]) if ends else 0


def begin_run(folder: Folder, info: Mapping[str, Any], overwrite: bool) -> None:
    """Make the run hold nothing but `info`: its history is kept under another name, or dropped with `overwrite`.

    Raises:
        JobError: the history is that of another training.
    """
    with refusing_disk_errors(folder.place(HISTORY_FILE)):
        history = folder.read(HISTORY_FILE)
    if not history and not snapshot_files(folder):
        write_info(folder, info)
        return
    if history and not overwrite:
        _refuse_other_training(folder, info)
        keep_beside(folder, history, INTERRUPTED)
    replace_trajectory(folder, info, [], None)


def _refuse_other_training(folder: Folder, info: Mapping[str, Any]) -> None:
    """Refuse to begin in a run with the history of another training."""
    before, now = (
        {key: value for key, value in about.items() if key not in CHANGING} for about in (read_info(folder), info)
    )
    if before != json.loads(json.dumps(now)):
        raise JobError(
            f"run: {quoted(folder.name)} holds a history of another training ({HISTORY_FILE}) and no snapshots; name "
            "another run, give overwrite=True to replace it, or move it away"
        )


def continue_run(folder: Folder, info: Mapping[str, Any], unit: Unit, step: int, epoch: int) -> None:
    """Drop the snapshots and the lines of the history after this step and epoch.

    Damaged lines of the history are dropped, with a warning; the former file is kept under another name.
    """
    lines = read_lines(folder)
    if lines.damaged:
        _keep_damaged(folder, lines)
    data = b"".join(text for text, line in lines.readable if _is_done(line, step, epoch))
    files = snapshot_files(folder)
    last = epoch if unit == "epoch" else step
    paths = [path for counted, number, path in files if counted != unit or number <= last]
    if data == lines.data and len(paths) == len(files):
        write_info(folder, info)
        return
    with staging(folder) as staged:
        history = f"{staged}/{HISTORY_FILE}" if data else None
        if history:
            with refusing_disk_errors(folder.place(history)):
                folder.write(history, data)
        replace_trajectory(folder, info, paths, history)


def _is_done(line: Mapping[str, Any], step: int, epoch: int) -> bool:
    """Whether a line of the history belongs to the training up to this step and epoch."""
    its_step, its_epoch = number_in(line, "step"), number_in(line, "epoch")
    if its_step is not None and its_step > step:
        return False
    return not line.get("epoch_end") or its_epoch is None or its_epoch <= epoch


def _keep_damaged(folder: Folder, lines: HistoryLines) -> None:
    name = keep_beside(folder, lines.data, DAMAGED)
    count = len(lines.damaged)
    log.warning(
        "history %s: %d damaged line%s (first: line %d) left out of it; the file as it was is kept as %s",
        quoted(folder.place(HISTORY_FILE)), count, "s are" if count > 1 else " is", lines.damaged[0], name,
    )  # fmt: skip
