"""The model, the samples and the tensors in the file of a portable problem."""

from __future__ import annotations

import math
import mmap
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from landscape.core.devices import host_limit
from landscape.core.errors import JobError, message_of, one_line, quoted
from landscape.core.validation import parse_json
from landscape.model.packed_bounds import bounds_of
from landscape.model.packed_file import Archive
from landscape.model.packed_graph import build_tree, program_of
from landscape.model.parameters import ParameterInfo

# ----------------------------------------------------------------------------------------------------
# The structure of a batch as JSON: `"tensor"`, `["tuple", …]`, `["list", …]` or `["dict", [key, …], …]`.

TENSOR = "tensor"
DEEPEST = 16


def batch_structure(value: Any) -> Any:
    """The structure of a value.

    Raises:
        TypeError: the value holds something else, such as an object of a class.
    """
    if isinstance(value, Tensor):
        return TENSOR
    if isinstance(value, Mapping) and all(isinstance(key, (str, int)) for key in value):
        return ["dict", *([key, batch_structure(member)] for key, member in value.items())]
    if isinstance(value, (tuple, list)):
        return ["list" if isinstance(value, list) else "tuple", *map(batch_structure, value)]
    raise TypeError(type(value).__name__)


def check_structure(value: Any, deepest: int = DEEPEST) -> Any:
    """A structure from a file, checked.

    Raises:
        ValueError: it is malformed.
    """
    if value == TENSOR:
        return value
    if deepest and isinstance(value, list) and value and value[0] in ("tuple", "list", "dict"):
        kind, *members = value
        if kind != "dict":
            return [kind, *(check_structure(member, deepest - 1) for member in members)]
        if all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], (str, int)) for pair in members):
            return [kind, *([key, check_structure(member, deepest - 1)] for key, member in members)]
    raise ValueError("a batch of a structure that is none")


def leaves_of(structure: Any, value: Any) -> list[Any]:
    """The tensors of a value of this structure, in its order; the value may be a placeholder of tracing."""
    if structure == TENSOR:
        return [value]
    kind, *members = structure
    if kind == "dict":
        return [leaf for key, member in members for leaf in leaves_of(member, value[key])]
    return [leaf for place, member in enumerate(members) for leaf in leaves_of(member, value[place])]


def fill_batch(structure: Any, leaves: Iterator[Any]) -> Any:
    """A value of this structure with these tensors, in its order."""
    if structure == TENSOR:
        return next(leaves)
    kind, *members = structure
    if kind == "dict":
        return {key: fill_batch(member, leaves) for key, member in members}
    return (list if kind == "list" else tuple)(fill_batch(member, leaves) for member in members)


def count_of(structure: Any) -> int:
    """How many tensors a value of this structure holds."""
    if structure == TENSOR:
        return 1
    kind, *members = structure
    return sum(count_of(member[1] if kind == "dict" else member) for member in members)


# ----------------------------------------------------------------------------------------------------
# The model.

MAIN = "model"  # the graph that a call of the model runs


class PortableModel(nn.Module):
    """Runs graphs; holds tensors under their names in the packed model.

    Args:
        entries: see `build_tree`.
        tensors: see `build_tree`.
        constants: further tensors of the graphs.
        graphs: by name, each with the structures of its inputs and results.

    Attributes:
        described: the properties of the parameters that directions need, in their order.
        only_in: the precision whose types the graphs name; empty if they name none.
        inlined: layers of the packed model that are plain operations in the graphs: `norms`, and `rounded`, whose
            inputs a landscape with quantised activations rounds.

    Raises:
        ValueError: an argument is malformed.
    """

    def __init__(
        self, entries: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor], constants: Sequence[Tensor],
        graphs: Mapping[str, Mapping[str, Any]],
    ) -> None:  # fmt: skip
        super().__init__()
        self.described: tuple[ParameterInfo, ...] = ()
        self.only_in = ""
        self.inlined: Mapping[str, tuple[str, ...]] = {"norms": (), "rounded": ()}
        build_tree(self, entries, tensors)
        self.constants = tuple(constants)
        self._programs = {name: _program(name, graph, self, len(constants)) for name, graph in graphs.items()}
        for name, graph in graphs.items():
            if graph["graph"]["inputs"] != count_of(graph["takes"]):
                raise ValueError(f"a graph {name[:40]!r} of other inputs than it takes")
            if len(graph["graph"]["outputs"]) != count_of(graph["returns"]):
                raise ValueError(f"a graph {name[:40]!r} of other outputs than it returns")

    def without_weights(self) -> PortableModel:
        """A model with the same graphs and constants, without weights."""
        bare = PortableModel([], {}, self.constants, {})
        bare._programs = self._programs
        return bare

    def forward(self, batch: Any) -> Any:
        """The result of the graph `model` for a batch."""
        return self.run(MAIN, batch)

    def run(self, name: str, batch: Any) -> Any:
        """The result of the graph of this name for a batch.

        Raises:
            JobError: for batches of this shape, the graph exceeds a bound.
        """
        program, _, takes, returns = self._programs[name]
        leaves = self._within_bounds(name, leaves_of(takes, batch))
        return fill_batch(returns, iter(program(self, *leaves)))

    def _within_bounds(self, name: str, leaves: Sequence[Any]) -> Sequence[Any]:
        """The leaves, after a check of the graph's bounds for them; under tracing, the check is traced too."""
        proxy = next((leaf for leaf in leaves if isinstance(leaf, fx.Proxy)), None)
        if proxy is None:
            self._programs[name][1](self, leaves)
            return leaves

        def within_bounds(*leaves: Any) -> Sequence[Any]:
            return self._within_bounds(name, leaves)

        checked: Any = proxy.tracer.create_proxy("call_function", within_bounds, tuple(leaves), {})
        return [checked[place] for place in range(len(leaves))]


def _program(name: str, entry: Mapping[str, Any], root: nn.Module, constants: int) -> tuple[Any, Any, Any, Any]:
    """The function that runs a graph, the one that checks its bounds, and the structures of its inputs and results."""
    program, graph = program_of(entry["graph"], root, constants)
    return program, bounds_of(name, graph), entry["takes"], entry["returns"]


# ----------------------------------------------------------------------------------------------------
# Members in the format of safetensors.

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "C64": torch.complex64, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
TENSOR_NAME = re.compile(r"[^\x00-\x1f]{1,1000}")
LARGEST_HEADER = 100_000_000  # bytes, as safetensors allows


def read_tensors(archive: Archive, member: str, limit: int | None = None) -> dict[str, Tensor]:
    """The tensors of a member.

    Args:
        limit: bytes of a member above which the tensors are mapped from an unnamed copy, which no other process can
            change; pages that are written to become memory. Default: read them into memory.

    Raises:
        JobError: the member is damaged, or its copy does not fit the disk.
    """
    size = archive.size_of(member)
    try:
        if limit is not None and size > limit:
            return _map_tensors(archive, member, size)
        with archive.reading(member) as reader:
            begin, entries = _header(bytes(reader.take(min(8, size))), size, reader.take)
            tensors = {}
            for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
                shape, dtype = _layout(name, entry, size - begin)
                reader.skip(begin + entry["data_offsets"][0] - (size - reader.left))
                tensors[name] = tensor = torch.empty(shape, dtype=dtype)
                if tensor.numel():
                    reader.into(tensor.reshape(-1).view(torch.uint8).numpy().data)
                _refuse_other_truths(name, tensor)
            return {name: tensors[name] for name in entries}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, RuntimeError) as error:
        if isinstance(error, JobError):
            raise
        raise archive.damaged(f"{quoted(member)} holds no tensors: {str(error)[:80]}") from None


def _map_tensors(archive: Archive, member: str, size: int) -> dict[str, Tensor]:
    with tempfile.TemporaryFile() as copy:
        try:
            archive.copy(member, copy)
            copy.flush()
        except OSError as error:
            raise JobError(
                f"{archive.name}: {quoted(member)} does not fit the folder {tempfile.gettempdir()} "
                f"({one_line(error)}); point TMPDIR at a larger disk, or ask for fewer num_samples"
            ) from None
        whole = memoryview(mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_COPY))
    begin, entries = _header(bytes(whole[:8]), size, lambda count: whole[8 : 8 + count])
    tensors = {}
    for name, entry in entries.items():
        shape, dtype = _layout(name, entry, size - begin)
        count, start = math.prod(shape), begin + entry["data_offsets"][0]
        values = torch.frombuffer(whole, dtype=dtype, count=count, offset=start).view(shape) if count else None
        tensors[name] = torch.empty(shape, dtype=dtype) if values is None else values
        _refuse_other_truths(name, tensors[name])
    return tensors


def _refuse_other_truths(name: str, tensor: Tensor) -> None:
    """Refuse truth values whose bytes are neither 0 nor 1: kernels use them as indices of tables."""
    if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
        raise ValueError(f"truth values of {quoted(name)} that are neither 0 nor 1")


def _header(first: bytes, size: int, take: Callable[[int], Any]) -> tuple[int, dict[str, Any]]:
    """The first byte of the tensors, and the entry of each."""
    length = int.from_bytes(first, "little")
    if not 2 <= length <= min(LARGEST_HEADER, size - 8):
        raise ValueError(f"a header of {length} bytes")
    header = parse_json(bytes(take(length)))
    return 8 + length, {name: entry for name, entry in header.items() if name != "__metadata__"}


def _layout(name: str, entry: Mapping[str, Any], size: int) -> tuple[list[int], torch.dtype]:
    """The shape and the type of a tensor, whose bytes must lie within `size` bytes."""
    if not TENSOR_NAME.fullmatch(name):
        raise ValueError("a name that no tensor has")
    dtype, shape, (first, last) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, first, last)):
        raise ValueError(f"sizes of {quoted(name)} that are no numbers")
    if last - first != math.prod(shape) * dtype.itemsize or last > size:
        raise ValueError(f"{quoted(name)} does not have the bytes of its shape")
    return shape, dtype


JOB, WEIGHTS, CONSTANTS, SAMPLES = (
    "job.yaml", "tensors/weights.safetensors", "tensors/constants.safetensors", "tensors/samples.safetensors",
)  # fmt: skip


# Of samples: rows by the name of their term, the index of each, and whether they are in memory.
Known = tuple[dict[str, Any], Tensor, bool]


class PackedSamples:
    """The packed samples, in the order in which the job drew them; they are read at the first access.

    Workers receive the samples from their driver, and read none.

    Attributes:
        num_samples: of the job.
        seed: of the job.
        name: of the file, for messages.
        sequences: for a language model with sequences of different lengths, their fields and the options of the reader.
        collate_fn: makes a batch of sequences; None for rows.
    """

    def __init__(self, entry: Mapping[str, Any], name: str, read: Callable[[], Known]) -> None:
        self.num_samples, self.seed = int(entry["num_samples"]), int(entry["seed"])
        self.name, self._read = name, read
        self.sequences: Mapping[str, Any] | None = entry["sequences"]
        self.collate_fn: Any = None

    @cached_property
    def _contents(self) -> Known:
        return self._read()

    @property
    def sets(self) -> Mapping[str, Any]:
        """Rows by the name of their term, or the one batch of rows under ''."""
        return self._contents[0]

    @property
    def indices(self) -> Tensor:
        """The index of every sample in the data from which it was drawn."""
        return self._contents[1]

    @property
    def in_memory(self) -> bool:
        """Whether the samples are in memory; samples above the limit are mapped."""
        return self._contents[2]

    @property
    def length(self) -> int:
        """The number of samples; of several sets, in the largest."""
        return len(self.indices)


class PortableFile:
    """A portable problem on disk.

    Raises:
        NotFoundError: there is no such file.
        JobError: it is no portable problem, is damaged, or of a newer version.
    """

    def __init__(self, path: str | Path) -> None:
        self.archive = Archive(path)
        self.path = self.archive.path

    @cached_property
    def problem(self) -> Mapping[str, Any]:
        """The part of the manifest that describes the problem."""
        return self._part("problem")

    def job_text(self) -> bytes:
        """The job, as YAML."""
        return bytes(self.archive.bytes_of(JOB))

    def model(self) -> PortableModel:
        """The model, its tensors in memory.

        Raises:
            JobError: it holds something that is not allowed in a portable model.
        """
        try:
            tensors = read_tensors(self.archive, WEIGHTS)
            constants = read_tensors(self.archive, CONSTANTS) if CONSTANTS in self.archive else {}
            graphs = {
                str(name): {
                    "graph": self.archive.json_of(f"graphs/{entry['member']}.json"),
                    "takes": check_structure(entry["takes"]),
                    "returns": check_structure(entry["returns"]),
                }
                for name, entry in self.problem["graphs"].items()
            }
            ordered = [constants[str(place)] for place in range(len(constants))]
            model = PortableModel(self.problem["modules"], tensors, ordered, graphs)
            model.only_in = str(self.problem["precision"]) if self.problem["names_types"] else ""
            inlined = self.problem["inlined"]
            model.inlined = {kind: tuple(map(str, inlined[kind])) for kind in ("norms", "rounded")}
            infos = [_info(info) for info in self.problem["parameters"]]
            named = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
            if [(info.name, info.shape) for info in infos] != named:
                raise ValueError("other parameters than its manifest says")
            model.described = tuple(infos)
            return model
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self.archive.damaged(f"its model holds {_words(error)}") from None

    def samples(self) -> PackedSamples:
        """The samples, which are read at the first access; above the limit of memory, they are mapped from a copy.

        Raises:
            JobError: the manifest does not describe them; at the first access, also if they are damaged.
        """
        entry = self._part("samples")
        try:
            for _, structure in entry["sets"]:
                check_structure(structure)
            return PackedSamples(entry, self.archive.name, lambda: self._sets(entry))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.archive.damaged(f"its samples hold {_words(error)}") from None

    def _sets(self, entry: Any) -> Known:
        limit = host_limit()
        try:
            tensors, in_memory = read_tensors(self.archive, SAMPLES, limit), self.archive.size_of(SAMPLES) <= limit
            leaves, sets = 0, dict[str, Any]()
            if entry["sequences"] is not None:
                return {"": _sequences(entry["sequences"]["fields"], tensors)}, tensors["indices"].clone(), in_memory
            for name, structure in entry["sets"]:
                checked = check_structure(structure)
                count = count_of(checked)
                sets[str(name)] = fill_batch(checked, iter([tensors[str(leaves + place)] for place in range(count)]))
                leaves += count
            return sets, tensors["indices"].clone(), in_memory
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise self.archive.damaged(f"its samples hold {_words(error)}") from None

    def _part(self, name: str) -> Mapping[str, Any]:
        part = self.archive.manifest.get(name)
        if not isinstance(part, dict):
            raise self.archive.damaged(f"its manifest says nothing of its {name}")
        return part


def _sequences(fields: Sequence[str], tensors: Mapping[str, Tensor]) -> list[Any]:
    """The packed items: tensors, or dicts of tensors."""
    lengths = tensors["lengths"].tolist()
    columns = [torch.split(tensors[str(place)], lengths) for place in range(len(fields))]
    if list(fields) == [""]:
        return [tensor.clone() for tensor in columns[0]]
    return [dict(zip(fields, (tensor.clone() for tensor in row), strict=True)) for row in zip(*columns, strict=True)]


def _info(entry: Mapping[str, Any]) -> ParameterInfo:
    values = {own.name: entry[own.name] for own in fields(ParameterInfo)}
    info = ParameterInfo(**{**values, "shape": tuple(values["shape"])})
    groups, sizes = info.transposed_groups, info.shape
    good = info.role in ("weight", "bias", "norm") and info.experts in ("", "output first", "input first")
    good = good and type(info.trainable) is bool and type(groups) is int and groups >= 0
    if not good or (groups and (len(sizes) < 2 or sizes[0] % groups)) or (info.experts and len(sizes) < 2):
        raise ValueError("a parameter of a kind that is none")
    return info


def _words(error: Exception) -> str:
    if isinstance(error, JobError):
        raise error
    return message_of(error)[:160] if isinstance(error, ValueError) else f"no {message_of(error)[:80]}"
