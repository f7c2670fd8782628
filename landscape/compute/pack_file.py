"""The zip of a portable problem, and its content as plain values: samples, the model's tree, inlined layers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.core.errors import JobError, LandscapeError, message_of, quoted
from landscape.evaluation.model_rounding import rounded_layers
from landscape.model.packed_file import MANIFEST, PROBLEM_FILE, FileKind
from landscape.model.packed_graph import PATH, options_of
from landscape.model.packed_model import DTYPES
from landscape.model.parameters import describe_parameters
from landscape.problem.batches import Samples
from landscape.problem.collated import Collated
from landscape.problem.language import Padding

ALIGNED = 64  # bytes, as torch's own memory is

ZIP64_EXTRA = 20  # bytes that `zipfile` adds to a member's header if its size is not known before

LOCAL_HEADER = 30

DATE = (1980, 1, 1, 0, 0, 0)  # fixed, so the same job gives the same file

PIECE = 1 << 24  # bytes of a tensor in memory at a time: it may be a mapped file

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def unwritable(path: Path, error: OSError) -> LandscapeError:
    """The error of a packed file that cannot be written."""
    reason = error.strerror or message_of(error)
    return LandscapeError(f"{quoted(str(path), 300)} cannot be written: {reason}; make room, or give -o another place")


class ArchiveWriter:
    """Writes members one by one.

    Args:
        path: an empty file.
        named: what messages call it.
        kind: what the manifest states.
    """

    def __init__(self, path: Path, named: Path, kind: FileKind = PROBLEM_FILE) -> None:
        self._path, self._named, self._kind = path, named, kind
        self._members: dict[str, dict[str, Any]] = {}
        self.tensor_bytes = 0

    def __enter__(self) -> Self:
        self._file = open(self._path, "wb")
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED, allowZip64=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self._zip.close()
            self._file.close()
        except OSError as full:
            if kind is None:
                raise unwritable(self._named, full) from None
        finally:
            with contextlib.suppress(OSError):  # it tries to write once more what could not be written
                self._file.close()

    def text(self, name: str, text: str) -> None:
        """Add a member of text."""
        self._add(name, iter([text.encode()]))

    def data(self, name: str, values: Any) -> None:
        """Add a member of JSON."""
        self.text(name, json.dumps(values, allow_nan=False, separators=(",", ":")))

    def tensors(self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
        """Add a member of named tensors, in the format of safetensors."""
        header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
        end = 0
        for key, tensor in tensors.items():
            header[key] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, 0]}
            end += tensor.nbytes
            header[key]["data_offsets"][1] = end
        self.tensor_bytes += end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % ALIGNED)
        self._add(name, _pieces(text, tensors))

    def file(self, name: str, path: Path) -> None:
        """Add an existing file as a member, as it is."""
        self.tensor_bytes += path.stat().st_size
        with open(path, "rb") as opened:
            self._add(name, iter(lambda: opened.read(PIECE), b""))

    def manifest(self, values: Mapping[str, Any]) -> None:
        """Add the manifest; last, because it holds the digests of all other members."""
        whole = {"format": self._kind.format, "version": self._kind.version, **values, "members": self._members}
        self._add(MANIFEST, iter([json.dumps(whole, allow_nan=False, separators=(",", ":")).encode()]))

    def _add(self, name: str, pieces: Iterator[bytes]) -> None:
        info = zipfile.ZipInfo(name, DATE)
        info.external_attr = 0o644 << 16
        begins = self._file.tell() + LOCAL_HEADER + len(name.encode()) + ZIP64_EXTRA + 4
        padding = -begins % ALIGNED
        info.extra = b"LP" + padding.to_bytes(2, "little") + b"\0" * padding
        hashed, size = hashlib.sha256(), 0
        try:
            with self._zip.open(info, "w", force_zip64=True) as member:
                for piece in pieces:
                    hashed.update(piece)
                    member.write(piece)
                    size += len(piece)
        except OSError as error:
            raise unwritable(self._named, error) from None
        self._members[name] = {"sha256": hashed.hexdigest(), "bytes": size}


def _pieces(header: bytes, tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    yield len(header).to_bytes(8, "little") + header
    for tensor in tensors.values():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        at_once = max(1, PIECE // max(1, flat.itemsize))
        for start in range(0, flat.numel(), at_once):
            yield flat[start : start + at_once].view(torch.uint8).numpy().tobytes()


# ----------------------------------------------------------------------------------------------------
# Sequences of tokens of different lengths, joined to one tensor per field; their batches are padded when read.


def are_sequences(samples: Samples) -> bool:
    """Whether samples are token sequences: tensors, or dicts of tensors with the same fields."""
    if not isinstance(samples, Collated) or type(samples.collate) is not Padding:
        return False
    fields = _fields_of(samples.items[0])
    return all(fields is not None and _fields_of(item) == fields for item in samples.items)


def _fields_of(item: Any) -> tuple[str, ...] | None:
    """The names of an item's fields, `('',)` for a single tensor, None for anything else."""
    named = item if isinstance(item, Mapping) else {"": item}
    usable = all(isinstance(value, Tensor) and value.dim() == 1 for value in named.values())
    return tuple(map(str, named)) if usable else None


def describe_sequences(samples: Samples) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The manifest's entry for sequences, and their tensors: one per field, by number, all items concatenated."""
    assert isinstance(samples, Collated)
    assert isinstance(samples.collate, Padding)
    fields = _fields_of(samples.items[0]) or ()
    items = [item if isinstance(item, Mapping) else {"": item} for item in samples.items]
    tensors = {str(place): torch.cat([item[name] for item in items]) for place, name in enumerate(fields)}
    tensors["lengths"] = torch.tensor([len(next(iter(item.values()))) for item in items])
    reader = samples.collate.reader
    return {"fields": list(fields), "vocabulary": reader.vocabulary, "takes_mask": reader.takes_mask}, tensors


def example_of_sequences(samples: Samples, count: int = 5) -> Any:
    """A batch of `count` sequences, repeated if there are fewer."""
    assert isinstance(samples, Collated)
    return samples.collate([samples.items[place % samples.length] for place in range(count)])


# ----------------------------------------------------------------------------------------------------
# A model's modules, parameters and buffers as plain values, in order; tied ones share a name.


def describe_tree(model: nn.Module) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The model's tree for `landscape.model.packed_graph.build_tree`: entries, and tensors by name.

    Raises:
        JobError: a module or parameter has a name that the file cannot hold.
    """
    tensors = _Tensors()
    first: dict[int, str] = {}
    entries: list[dict[str, Any]] = []
    for path, module in model.named_modules(remove_duplicate=False):
        if path and not PATH.fullmatch(path):
            raise JobError(f"model: {quoted(path)} cannot be packed under this name; rename the module in ASCII")
        if id(module) in first:
            entries.append({"path": path, "same": first[id(module)]})
            continue
        first[id(module)] = path
        entries.append({"path": path, **_describe_module(path, module, tensors)})
    return entries, tensors.by_name


@dataclass
class _Tensors:
    """The tensors of a model, each stored once, under its first name."""

    by_name: dict[str, Tensor] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def name_of(self, path: str, name: str, tensor: Tensor) -> str:
        whole = f"{path}.{name}" if path else name
        if not PATH.fullmatch(whole):
            raise JobError(f"model: {quoted(whole)} cannot be packed under this name; rename the parameter in ASCII")
        if id(tensor) not in self._names:
            self._names[id(tensor)], self.by_name[whole] = whole, tensor
        return self._names[id(tensor)]


def _describe_module(path: str, module: nn.Module, tensors: _Tensors) -> dict[str, Any]:
    """The entry of a module that has no entry under another path."""
    unsaved = module._non_persistent_buffers_set
    entry: dict[str, Any] = {
        "parameters": {
            name: None if parameter is None else [tensors.name_of(path, name, parameter), bool(parameter.requires_grad)]
            for name, parameter in module._parameters.items()
        },
        "buffers": {
            name: None if buffer is None else [tensors.name_of(path, name, buffer), name not in unsaved]
            for name, buffer in module._buffers.items()
        },
    }
    options = options_of(module)
    return entry if options is None else {**entry, "layer": type(module).__name__, "options": options}


def parameters_as_values(model: nn.Module) -> list[Mapping[str, Any]]:
    """Per parameter the facts that directions need, since packed modules lose their types."""
    return [asdict(info) for info in describe_parameters(model)]


def inlined_layers(
    model: nn.Module, run: Callable[[], object], graphs: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[str]]:
    """The paths of inlined layers: `norms` have running statistics, `rounded` are linear layers and convolutions.

    Args:
        run: calls the model on a batch.
        graphs: the exported graphs, see `landscape.model.packed_graph`.
    """
    norms = {path: layer for path, layer in model.named_modules() if isinstance(layer, _NormBase)}
    kinds: dict[str, Mapping[str, nn.Module]] = {"norms": norms, "rounded": rounded_layers(model)}
    called = _called_layers({path: layer for layers in kinds.values() for path, layer in layers.items()}, run)
    nodes = (node for graph in graphs.values() for node in graph["graph"]["nodes"])
    kept = {id(model.get_submodule(name)) for kind, name, *_ in nodes if kind == "layer"}
    return {
        kind: [path for path, layer in layers.items() if path in called and id(layer) not in kept]
        for kind, layers in kinds.items()
    }


def _called_layers(layers: Mapping[str, nn.Module], run: Callable[[], object]) -> set[str]:
    """The layers that are called as modules while the model runs."""
    called: set[str] = set()
    hooks = [layer.register_forward_pre_hook(lambda *_, path=path: called.add(path)) for path, layer in layers.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return called
