"""What the file of a portable problem says of itself, read into typed values; and the model that it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from landscape.core.devices import host_limit
from landscape.core.errors import JobError, message_of
from landscape.model.description import ParameterInfo
from landscape.model.model import PortableModel
from landscape.model.packed_file import Archive
from landscape.model.structure import checked_structure, count_of, filled
from landscape.model.tensors import read_tensors

JOB, WEIGHTS, CONSTANTS, SAMPLES = (
    "job.yaml", "tensors/weights.safetensors", "tensors/constants.safetensors", "tensors/samples.safetensors",
)  # fmt: skip


# Of samples: rows by the name of their term, of each its index, and whether they are in memory.
Known = tuple[dict[str, Any], Tensor, bool]


class PackedSamples:
    """The samples that were packed, in the order in which the job drew them; read when they are first asked for.

    Workers are sent the samples by their driver, and read none.

    Attributes:
        num_samples: how many the job asked for.
        seed: of the job.
        name: of the file, for messages.
        sequences: of a language model's sequences of different lengths their fields, and what their reader knows.
        collate_fn: makes a batch of these; None for rows.
    """

    def __init__(self, said: Mapping[str, Any], name: str, read: Callable[[], Known]) -> None:
        self.num_samples, self.seed = int(said["num_samples"]), int(said["seed"])
        self.name, self._read = name, read
        self.sequences: Mapping[str, Any] | None = said["sequences"]
        self.collate_fn: Any = None

    @cached_property
    def _known(self) -> Known:
        return self._read()

    @property
    def sets(self) -> Mapping[str, Any]:
        """Rows by the name of their term, or the one batch of rows under ''."""
        return self._known[0]

    @property
    def indices(self) -> Tensor:
        """Of every sample in the data that it was drawn from."""
        return self._known[1]

    @property
    def in_memory(self) -> bool:
        """Whether they are in memory; others are mapped, and larger than its limit."""
        return self._known[2]

    @property
    def length(self) -> int:
        """How many there are; of several sets, in the largest."""
        return len(self.indices)


class PortableFile:
    """A portable problem on disk.

    Raises:
        NotFoundError: there is no such file.
        JobError: it is none, is damaged, or of a newer version.
    """

    def __init__(self, path: str | Path) -> None:
        self.archive = Archive(path)
        self.path = self.archive.path
        self._said: Mapping[str, Any] = self.archive.manifest

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
            JobError: it holds something that no portable model may hold.
        """
        try:
            tensors = read_tensors(self.archive, WEIGHTS)
            constants = read_tensors(self.archive, CONSTANTS) if CONSTANTS in self.archive else {}
            graphs = {
                str(name): {
                    "graph": self.archive.json_of(f"graphs/{said['member']}.json"),
                    "takes": checked_structure(said["takes"]),
                    "returns": checked_structure(said["returns"]),
                }
                for name, said in self.problem["graphs"].items()
            }
            ordered = [constants[str(place)] for place in range(len(constants))]
            made = PortableModel(self.problem["modules"], tensors, ordered, graphs)
            made.only_in = str(self.problem["precision"]) if self.problem["names_types"] else ""
            inlined = self.problem["inlined"]
            made.inlined = {kind: tuple(map(str, inlined[kind])) for kind in ("norms", "rounded")}
            infos = [_info(each) for each in self.problem["parameters"]]
            held = [(name, tuple(parameter.shape)) for name, parameter in made.named_parameters()]
            if [(each.name, each.shape) for each in infos] != held:
                raise ValueError("other parameters than its manifest says")
            made.described = tuple(infos)
            return made
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self.archive.damaged(f"its model holds {_words(error)}") from None

    def samples(self) -> PackedSamples:
        """The samples, to be read when they are asked for; above the limit of the memory they are mapped from a copy.

        Raises:
            JobError: the manifest does not describe them; where they are read, also where they are damaged.
        """
        said = self._part("samples")
        try:
            for _, structure in said["sets"]:
                checked_structure(structure)
            return PackedSamples(said, self.archive.name, lambda: self._sets(said))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.archive.damaged(f"its samples hold {_words(error)}") from None

    def _sets(self, said: Any) -> Known:
        limit = host_limit()
        try:
            tensors, in_memory = read_tensors(self.archive, SAMPLES, limit), self.archive.size_of(SAMPLES) <= limit
            leaves, sets = 0, dict[str, Any]()
            if said["sequences"] is not None:
                return {"": _sequences(said["sequences"]["fields"], tensors)}, tensors["indices"].clone(), in_memory
            for name, structure in said["sets"]:
                checked = checked_structure(structure)
                count = count_of(checked)
                sets[str(name)] = filled(checked, iter([tensors[str(leaves + place)] for place in range(count)]))
                leaves += count
            return sets, tensors["indices"].clone(), in_memory
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise self.archive.damaged(f"its samples hold {_words(error)}") from None

    def _part(self, name: str) -> Mapping[str, Any]:
        part = self._said.get(name)
        if not isinstance(part, dict):
            raise self.archive.damaged(f"its manifest says nothing of its {name}")
        return part


def _sequences(fields: Sequence[str], tensors: Mapping[str, Tensor]) -> list[Any]:
    """The items as they were packed: tensors, or dicts of tensors."""
    lengths = tensors["lengths"].tolist()
    columns = [torch.split(tensors[str(place)], lengths) for place in range(len(fields))]
    if list(fields) == [""]:
        return [each.clone() for each in columns[0]]
    return [dict(zip(fields, (each.clone() for each in row), strict=True)) for row in zip(*columns, strict=True)]


def _info(said: Mapping[str, Any]) -> ParameterInfo:
    values = {each.name: said[each.name] for each in fields(ParameterInfo)}
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
