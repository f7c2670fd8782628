"""Reads weights from files of other programs, safetensors and `torch.save`, and never runs code in them."""

from __future__ import annotations

import json
import logging
import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from landscape.core.errors import JobError, LandscapeError, NotFoundError, NotRetried, one_line, quoted
from landscape.model.mindspore_files import SOFTWARE, is_checkpoint
from landscape.model.packed_file import Archive, part_of
from landscape.model.packed_model import read_tensors
from landscape.model.run_files import SNAPSHOT_FORMAT, reason_of

log = logging.getLogger("landscape")

NESTED_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
DEEPEST = 2  # levels of nested mappings in which the tensors are searched
WRAPPER_PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and of torch.compile
# A file may hold a few numbers and declare that they fill a huge tensor (strides of 0). A tensor is read if it takes at
# most this many times the size of the file, or at most this many bytes.
LARGEST_SPREAD, FREE_SPREAD = 16, 64 << 20


def load_weights(path: str | Path, *, again: bool = False) -> dict[str, Tensor]:
    """Named tensors from a safetensors or `torch.save` file, on the CPU, without the prefixes of DDP and compile.

    A checkpoint may hold them itself or under `state_dict`, `model_state_dict`, `model`, `net`, …. A folder may hold
    the shards of a model and their index, as Hugging Face writes them. The tensors of safetensors are views of the
    file, of which only what is read takes memory.

    Args:
        again: whether the file was loaded before; then its warnings are not repeated.

    Raises:
        NotFoundError: there is no such file.
        JobError: the file holds no named tensors, or could only be read by running pickled code.
    """
    file = Path(path)
    if "://" in str(path):
        raise JobError(f"weights {quoted(str(path))} must be a file of this machine; fetch it first")
    if (part := part_of(path)) is not None:
        return read_tensors(Archive(part[0]), part[1])
    if not file.exists():
        raise NotFoundError(f"weights file {quoted(str(path))} does not exist")
    if file.is_dir():
        shards = shards_of(file)
        return strip_prefixes({name: tensor for shard in shards for name, tensor in _read(shard, again=again).items()})
    if not file.is_file():
        raise JobError(f"weights {quoted(str(path))} is a pipe or a device, not a file; name the file of weights")
    state = _read(file, again=again)
    # Our own snapshots have no prefixes of wrappers: a layer may really be called `module`.
    is_own = _is_safetensors(file) and _metadata_of(file).get("format") == SNAPSHOT_FORMAT
    return state if is_own else strip_prefixes(state)


class WeightsChanged(NotRetried):
    """A file of weights was written to: every later value of this process would be wrong."""


class ReadFile:
    """A file of weights, or a folder of shards, which is read while a job runs: nothing may be written to it.

    The tensors of safetensors are views of the file, so they would change too; others are in memory.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._seen = self._look()

    @classmethod
    def if_mapped(cls, path: str | Path) -> ReadFile | None:
        """The file, if its tensors are views of it."""
        found = cls(path)
        names = [name for name, *_ in found._seen]
        return found if names and all(name.endswith(SAFETENSORS) for name in names) else None

    def refuse_changes(self) -> None:
        """Raises WeightsChanged if the file is not the one that it was at the beginning."""
        if self._look() != self._seen:
            raise WeightsChanged(
                f"weights {quoted(str(self._path))} were written to, replaced or removed while they are read; compute "
                "anew, and save other weights under another name"
            )

    def _look(self) -> list[tuple[str, int, int, int]]:
        try:
            files = shards_of(self._path) if self._path.is_dir() else [self._path]
            return [(file.name, *_marks_of(file)) for file in files]
        except (OSError, LandscapeError):
            return []


def _marks_of(file: Path) -> tuple[int, int, int]:
    stat = file.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _read(file: Path, *, again: bool) -> dict[str, Tensor]:
    """The tensors of a file by the names that it has for them."""
    state = _read_safetensors(file)[0] if _is_safetensors(file) else _find_state(_read_torch(file), file, again=again)
    _refuse_unusual_tensors(state, file)
    return state


def _metadata_of(file: Path) -> dict[str, str]:
    with safe_open(str(file), framework="pt") as opened:
        return opened.metadata() or {}


INDEX = ".index.json"  # of the shards of a model
SAFETENSORS = ".safetensors"
SHARDS = (SAFETENSORS, ".bin")


def shards_of(folder: Path) -> list[Path]:
    """The files of weights in a folder: those that its index names, or the only one.

    Raises:
        JobError: there is none, or more than one and no index, or the index names no files of the folder.
    """
    if (folder / ".metadata").is_file():
        raise JobError(
            f"weights {quoted(str(folder))} is a distributed checkpoint of torch, whose index is a pickle, which runs "
            "code when it is read; make one file of it: python -m torch.distributed.checkpoint.format_utils "
            "dcp_to_torch FOLDER FILE"
        )
    kind = SHARDS[0] if any(folder.glob(f"*{SHARDS[0]}*")) else SHARDS[1]
    indices = sorted(folder.glob(f"*{kind}{INDEX}"))
    files = sorted(folder.glob(f"*{kind}"))
    if not indices and len(files) == 1:
        return files
    if not indices:
        found = "several: " + ", ".join(file.name for file in files[:3]) if files else "none"
        raise JobError(
            f"weights {quoted(str(folder))}: a folder must hold one file of weights, or shards with their index "
            f"(model.safetensors{INDEX}), not {found}; name the file"
        )
    index = indices[0]
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        shards = [folder / name for name in names]
        outside = [name for name in names if Path(name).name != name]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise JobError(f"weights {quoted(str(index))} is no index of shards: {one_line(error)}") from None
    missing = [shard.name for shard in shards if not shard.is_file()]
    if outside or missing or not shards:
        what = f"names {quoted((outside or missing or ['nothing'])[0])}, which is not in its folder"
        raise JobError(f"weights {quoted(str(index))} {what}; fetch all shards")
    return shards


def read_about(path: str | Path) -> dict[str, Any]:
    """The entries of a checkpoint beside its weights, such as `epoch` or `global_step`.

    Returns:
        The metadata of a safetensors file; the top-level values of a `torch.save` file that are no mappings; of a
        folder, what the trainer of transformers has left there.

    Raises:
        JobError: the file cannot be read, or is no checkpoint.
    """
    file = Path(path)
    if file.is_dir():
        return _trainer_state(file)
    if _is_safetensors(file):
        return dict(_read_safetensors(file)[1])
    checkpoint = _read_torch(file)
    if not isinstance(checkpoint, Mapping):
        return {}
    return {str(key): value for key, value in checkpoint.items() if not isinstance(value, Mapping)}


def _trainer_state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return {}
    return {key: state[key] for key in ("global_step", "epoch") if key in state} if isinstance(state, dict) else {}


def _refuse_unusual_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Refuse tensors that do not hold one number per element, and those far larger than their file."""
    most = max(FREE_SPREAD, LARGEST_SPREAD * file.stat().st_size)
    for name, tensor in tensors.items():
        kind = unusual_kind(tensor)
        if not kind and tensor.numel() * tensor.element_size() > most:
            kind = f"a tensor of {tensor.numel()} elements spread from a file of {file.stat().st_size} bytes"
        if kind:
            raise JobError(
                f"weights {quoted(str(file))}: {quoted(name)} is {kind}, which is not read; save it as an ordinary "
                "tensor"
            )


def unusual_kind(tensor: Tensor) -> str:
    """Why this is no ordinary tensor, in words; empty if it is one."""
    if nn.parameter.is_lazy(tensor):
        return "a tensor without a shape (a lazy layer's)"
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
    """Whether the file begins with eight bytes of header length and a JSON object, or has the suffix of safetensors."""
    try:
        with open(file, "rb") as opened:
            return opened.read(9)[8:] == b"{" or file.suffix == ".safetensors"
    except OSError as error:
        raise JobError(f"weights {quoted(str(file))} cannot be read: {error.strerror}") from None


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(str(file), framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise JobError(f"weights {quoted(str(file))} is not a whole safetensors file: {reason_of(error)}") from None


def _read_torch(file: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of old formats before it refuses them
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load may raise any exception for a file that is no checkpoint
        if is_checkpoint(file):
            raise JobError(
                f"weights {quoted(str(file))} is a checkpoint of {SOFTWARE}; `landscape import-mindspore FOLDER --run "
                "RUN` imports its folder"
            ) from None
        if isinstance(error, pickle.UnpicklingError):
            raise JobError(_why_not_unpickled(file, error)) from None
        raise JobError(
            f"weights {quoted(str(file))} is no checkpoint: {reason_of(error)[:160]}; give safetensors or torch.save "
            "files"
        ) from None


def _why_not_unpickled(file: Path, error: Exception) -> str:
    with open(file, "rb") as opened:
        is_pickle = opened.read(1) in (b"\x80", b"P")  # a pickle, or a zip archive, into which torch puts the pickle
    if not is_pickle or "Unsupported" not in str(error):
        return f"weights {quoted(str(file))} is no checkpoint; give safetensors or torch.save files"
    return (
        f"weights {quoted(str(file))} holds pickled objects, which run code when they are loaded, and is never loaded "
        "that way; save the weights alone: torch.save(model.state_dict(), path)"
    )


def _find_state(checkpoint: Any, file: Path, depth: int = DEEPEST, *, again: bool = False) -> dict[str, Tensor]:
    """The mapping of names to tensors in a checkpoint: the checkpoint itself, or a mapping under a usual key.

    `depth` is how many further levels may be searched.
    """
    if isinstance(checkpoint, Mapping):
        state = {key: value for key, value in checkpoint.items() if not str(key).endswith("_extra_state")}
        if depth < DEEPEST:
            # Below the top, a state dict may hold counters beside its tensors. At the top, plain values may mean
            # anything, so a mapping with such values does not count as a state dict.
            state = {key: value for key, value in state.items() if not isinstance(value, (int, float, str, NoneType))}
        if state and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()):
            return state
        for key in NESTED_KEYS if depth else ():
            if isinstance(checkpoint.get(key), Mapping):
                state = _find_state(checkpoint[key], file, depth - 1, again=again)
                if not again:
                    _warn_of_other_weights(checkpoint, key, state, file)
                return state
        kind = f"a mapping with {', '.join(map(str, list(checkpoint)[:6])) or 'nothing'}"
    else:
        kind = type(checkpoint).__name__
    raise JobError(
        f"weights {quoted(str(file))} must hold named tensors, itself or under {', '.join(NESTED_KEYS[:4])}, not "
        f"{kind}; save them alone: torch.save(model.state_dict(), path)"
    )


def _warn_of_other_weights(checkpoint: Mapping[Any, Any], used: str, state: Mapping[str, Tensor], file: Path) -> None:
    """Warn which weights are used from a checkpoint with several networks, such as a moving average."""
    names = _bare_names(state)
    others = [key for key in checkpoint if key != used and isinstance(checkpoint[key], Mapping)]
    unused = [quoted(str(key)) for key in others if names <= _bare_names(checkpoint[key])]
    if unused:
        log.warning(
            "weights %s: the weights under %r are used; %s holds weights of the same names: to use these, save them "
            "alone",
            quoted(str(file)), used, ", ".join(unused),
        )  # fmt: skip


def _bare_names(state: Iterable[Any]) -> set[str]:
    """The names without prefixes; some may have none, such as the counter of an averaged model."""
    names = {str(name) for name in state}
    for prefix in WRAPPER_PREFIXES:
        names = {name.removeprefix(prefix) for name in names}
    return names


def strip_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without the leading `module.` and `_orig_mod.` that all their names share, however often.

    Example:
        >>> import torch
        >>> list(strip_prefixes({"module._orig_mod.weight": torch.ones(1), "module._orig_mod.bias": torch.ones(1)}))
        ['weight', 'bias']
    """
    names = list(tensors)
    while names:
        shared = [prefix for prefix in WRAPPER_PREFIXES if all(name.startswith(prefix) for name in names)]
        if not shared:
            break
        names = [name.removeprefix(shared[0]) for name in names]
    return dict(zip(names, tensors.values(), strict=True))
