"""Weights from files that others wrote: safetensors and `torch.save`, never anything that must be unpickled freely."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from landscape.errors import JobError, NotFoundError, message_of, shown
from landscape.folders import Folder, Place, open_folder
from landscape.replacement import finish, remove_leftovers, replace, staging
from landscape.run_files import FOLDER, HISTORY_FILE, SNAPSHOT_FORMAT, read_info
from landscape.snapshots import UNITS, Trajectory, read_trajectory, snapshot_files, versions, write_snapshot
from landscape.spec import Unit

NESTED_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
WRAPPER_PREFIXES = ("module.", "_orig_mod.")


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """Named tensors from a safetensors or `torch.save` file, on the CPU, without the prefixes of DDP and compile.

    A checkpoint may hold them itself or under `state_dict`, `model_state_dict`, `model`, `net`, ….

    Raises:
        NotFoundError: there is no such file.
        JobError: it holds no named tensors, or could only be read by running the code pickled in it.
    """
    file = Path(path)
    if "://" in str(path):
        raise JobError(f"weights {shown(str(path))} must be a file of this machine; fetch it first")
    if not file.exists():
        raise NotFoundError(f"weights file {shown(str(path))} does not exist")
    if not file.is_file():
        raise JobError(f"weights {shown(str(path))} is a folder, not a file; name the file in it")
    if _is_safetensors(file):
        tensors, metadata = _read_safetensors(file)
        return tensors if metadata.get("format") == SNAPSHOT_FORMAT else strip_prefixes(tensors)
    return strip_prefixes(_find_state(_read_torch(file), file))


def _is_safetensors(file: Path) -> bool:
    """By content: eight bytes of header length, then the header, a JSON object."""
    try:
        with open(file, "rb") as opened:
            return opened.read(9)[8:] == b"{" or file.suffix == ".safetensors"
    except OSError as error:
        raise JobError(f"weights {shown(str(file))} cannot be read: {error.strerror}") from None


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(str(file), framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise JobError(f"weights {shown(str(file))} is not a whole safetensors file: {_line(error)}") from None


def _read_torch(file: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of old formats before it refuses them
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise JobError(_why_not_unpickled(file, error)) from None
    except Exception as error:  # torch.load raises whatever a file that is no checkpoint leads it to
        raise JobError(
            f"weights {shown(str(file))} is no checkpoint: {_line(error)[:160]}; give safetensors or torch.save files"
        ) from None


def _why_not_unpickled(file: Path, error: Exception) -> str:
    with open(file, "rb") as opened:
        is_pickle = opened.read(1) in (b"\x80", b"P")  # a pickle, or the zip archive that torch puts one in
    if not is_pickle or "Unsupported" not in str(error):
        return f"weights {shown(str(file))} is no checkpoint; give safetensors or torch.save files"
    return (
        f"weights {shown(str(file))} holds pickled objects, which run code when they are loaded, and is never loaded "
        "that way; save the weights alone: torch.save(model.state_dict(), path)"
    )


def _line(error: BaseException) -> str:
    return message_of(error) or type(error).__name__


def _find_state(found: Any, file: Path, depth: int = 2) -> dict[str, Tensor]:
    """The mapping of names to tensors in a checkpoint: itself, or under one of the usual keys."""
    if isinstance(found, Mapping):
        plain = {key: value for key, value in found.items() if not str(key).endswith("_extra_state")}
        if plain and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in plain.items()):
            return plain
        for key in NESTED_KEYS if depth else ():
            if isinstance(found.get(key), Mapping):
                return _find_state(found[key], file, depth - 1)
    held = f"a mapping with {', '.join(map(str, list(found)[:6])) or 'nothing'}" if isinstance(found, Mapping) else None
    raise JobError(
        f"weights {shown(str(file))} must hold named tensors, itself or under {', '.join(NESTED_KEYS[:4])}, not "
        f"{held or type(found).__name__}; save them alone: torch.save(model.state_dict(), path)"
    )


def strip_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the leading `module.` and `_orig_mod.` that all names share, however often."""
    names = list(tensors)
    for prefix in _shared_prefixes(names):
        names = [name.removeprefix(prefix) for name in names]
    return dict(zip(names, tensors.values(), strict=True))


def _shared_prefixes(names: Iterable[str]) -> list[str]:
    names, found = list(names), []
    while names:
        prefix = next((each for each in WRAPPER_PREFIXES if all(name.startswith(each) for name in names)), None)
        if prefix is None:
            break
        found.append(prefix)
        names = [name.removeprefix(prefix) for name in names]
    return found


def import_checkpoints(
    paths: Sequence[str | Path], run: Place, unit: Unit = "epoch", *, overwrite: bool = False
) -> Trajectory:
    """Make existing checkpoints the trajectory of `run`: the first given becomes epoch (or step) 1, the next 2, ….

    All files are checked before anything is written.

    Raises:
        NotFoundError: a file does not exist.
        JobError: a file is no checkpoint, two differ in names or shapes, or the run has a trajectory already.
    """
    if unit not in UNITS:
        raise JobError(f"unit: must be 'epoch' or 'step', not {shown(unit)}")
    if isinstance(paths, (str, Path)) or not paths:
        raise JobError(f"checkpoints: must be a list of one file or more, in the order of training, not {shown(paths)}")
    folder = open_folder(run)
    finish(folder)
    there = snapshot_files(folder)
    if there and not overwrite:
        kinds = " and ".join(sorted({f"{each[0]}s" for each in there}))
        raise JobError(
            f"run: {shown(str(run))} already holds a trajectory of {len(there)} {kinds}; "
            "name another run or give overwrite=True (--overwrite)"
        )
    files = [Path(path) for path in paths]
    _refuse_own(files, folder)
    _refuse_different(files)
    known = read_info(folder)
    info = _imported_info(files) | ({} if overwrite else known) | {"unit": unit}
    # A history belongs to the snapshots that were collected with it, not to those that were imported.
    history = HISTORY_FILE if not there or "imported" in known else None
    remove_leftovers(folder)
    with staging(folder) as staged:
        written = []
        for number, file in enumerate(files, 1):
            state = {name: tensor.clone().contiguous() for name, tensor in load_weights(file).items()}
            about: dict[str, Any] = {"source": file.name, unit: number, **versions()}
            written.append(write_snapshot(folder, unit, number, state, below=staged, **about))
        replace(folder, info, written, history)
    return read_trajectory(run)


def _refuse_own(files: Iterable[Path], folder: Folder) -> None:
    own = Path(folder.place(FOLDER)).resolve()
    for file in files:
        if file.resolve().parent == own:
            raise JobError(
                f"checkpoints: {shown(str(file))} is part of the run it would be imported into; copy it first"
            )


def _refuse_different(files: Sequence[Path]) -> None:
    """Refuse checkpoints of different networks; one is held in memory at a time."""
    first: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes = {name: tuple(tensor.shape) for name, tensor in load_weights(file).items()}
        first = first or shapes
        difference = _first_difference(first, shapes)
        if difference:
            raise JobError(
                f"checkpoints: must be of one network, but {shown(str(file))} {difference} in {shown(str(files[0]))}; "
                "leave one of them out"
            )


def _first_difference(first: Mapping[str, tuple[int, ...]], other: Mapping[str, tuple[int, ...]]) -> str:
    for name, shape in first.items():
        if name not in other:
            return f"lacks {shown(name)}, which is"
        if other[name] != shape:
            return f"has {shown(name)} of shape {other[name]}, which is {shape}"
    return next((f"has {shown(name)}, which is not" for name in other if name not in first), "")


def _imported_info(files: Sequence[Path]) -> dict[str, Any]:
    tensors = load_weights(files[0])
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": None,
        "parameters": None,
        "tensors": len(tensors),
        "optimiser": None,
        "learning_rate": None,
        "steps_per_epoch": None,
        "imported": [file.name for file in files],
        "versions": versions(),
    }
