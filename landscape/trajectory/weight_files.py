"""Weights from files that others wrote: safetensors and `torch.save`, never anything that must be unpickled freely."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from landscape.errors import JobError, NotFoundError, message_of, shown
from landscape.trajectory.run_files import SNAPSHOT_FORMAT

log = logging.getLogger("landscape")

NESTED_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
DEEPEST = 2  # mappings in mappings in which the tensors are looked for
WRAPPER_PREFIXES = ("module.", "_orig_mod.")
LARGEST_SPREAD, FREE_SPREAD = 16, 64 << 20  # times a file's size may a tensor in it take, and bytes that any may


def load_weights(path: str | Path, *, again: bool = False) -> dict[str, Tensor]:
    """Named tensors from a safetensors or `torch.save` file, on the CPU, without the prefixes of DDP and compile.

    A checkpoint may hold them itself or under `state_dict`, `model_state_dict`, `model`, `net`, ….

    Args:
        again: the file was loaded before, so that a warning of it has been given.

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
        kind = "a folder" if file.is_dir() else "a pipe or a device"
        raise JobError(f"weights {shown(str(path))} is {kind}, not a file; name the file of weights")
    if _is_safetensors(file):
        tensors, metadata = _read_safetensors(file)
        found = tensors if metadata.get("format") == SNAPSHOT_FORMAT else strip_prefixes(tensors)
    else:
        found = strip_prefixes(_find_state(_read_torch(file), file, again=again))
    _refuse_without_values(found, file)
    return found


def read_about(path: str | Path) -> dict[str, Any]:
    """What a checkpoint says besides its weights, such as `epoch` or `global_step`: the values that are no mappings."""
    file = Path(path)
    if _is_safetensors(file):
        return dict(_read_safetensors(file)[1])
    found = _read_torch(file)
    return {str(key): found[key] for key in found if not isinstance(found[key], Mapping)} if _is_map(found) else {}


def _is_map(found: Any) -> bool:
    return isinstance(found, Mapping)


def _refuse_without_values(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Refuse tensors that do not hold a number per element, or far more of them than the file has bytes."""
    most = max(FREE_SPREAD, LARGEST_SPREAD * file.stat().st_size)
    for name, tensor in tensors.items():
        what = _kind_without_values(tensor)
        if not what and tensor.numel() * tensor.element_size() > most:
            what = f"a tensor of {tensor.numel()} elements spread from a file of {file.stat().st_size} bytes"
        if what:
            raise JobError(
                f"weights {shown(str(file))}: {shown(name)} is {what}, which is not read; save it as an ordinary tensor"
            )


def _kind_without_values(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return "a sparse tensor"
    if tensor.is_meta:
        return "a tensor without data (meta device)"
    if tensor.is_quantized:
        return "a quantised tensor"
    return f"of type {tensor.dtype}" if tensor.dtype in (torch.complex32, torch.complex128) else ""


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


def _find_state(found: Any, file: Path, depth: int = DEEPEST, *, again: bool = False) -> dict[str, Tensor]:
    """The mapping of names to tensors in a checkpoint: itself, or under one of the usual keys."""
    if isinstance(found, Mapping):
        plain = {key: value for key, value in found.items() if not str(key).endswith("_extra_state")}
        if depth < DEEPEST:  # counters and the like beside the tensors of a state dict; at the top they may be anything
            plain = {key: value for key, value in plain.items() if not isinstance(value, (int, float, str, NoneType))}
        if plain and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in plain.items()):
            return plain
        for key in NESTED_KEYS if depth else ():
            if isinstance(found.get(key), Mapping):
                state = _find_state(found[key], file, depth - 1, again=again)
                if not again:
                    _tell_of_others(found, key, state, file)
                return state
    held = f"a mapping with {', '.join(map(str, list(found)[:6])) or 'nothing'}" if isinstance(found, Mapping) else None
    raise JobError(
        f"weights {shown(str(file))} must hold named tensors, itself or under {', '.join(NESTED_KEYS[:4])}, not "
        f"{held or type(found).__name__}; save them alone: torch.save(model.state_dict(), path)"
    )


def _tell_of_others(found: Mapping[Any, Any], taken: str, state: Mapping[str, Tensor], file: Path) -> None:
    """A checkpoint with an average beside its weights holds two networks; say which one it is."""
    names = _bare_names(state)
    others = [key for key in found if key != taken and isinstance(found[key], Mapping)]
    same = [shown(str(key)) for key in others if names <= _bare_names(found[key])]
    if same:
        log.warning(
            "weights %s: those of %r are taken; %s holds such weights too: save them alone to take them",
            shown(str(file)), taken, ", ".join(same),
        )  # fmt: skip


def _bare_names(state: Iterable[Any]) -> set[str]:
    """Without prefixes, each for itself: an average has a counter without one."""
    names = {str(name) for name in state}
    for prefix in WRAPPER_PREFIXES:
        names = {name.removeprefix(prefix) for name in names}
    return names


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
