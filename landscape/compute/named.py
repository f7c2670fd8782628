"""What a job names beside its problem, taken along: weights in files, snapshots of its run and of others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from landscape.compute.pack_writing import ArchiveWriter
from landscape.core.folders import locate, real_place, run_labels, split_path
from landscape.core.validation import OF_RUN
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.model.run_files import FOLDER
from landscape.model.snapshots import Trajectory, read_trajectory
from landscape.model.weight_files import load_weights

KEPT = ("name", "kind", "label", "observable")  # fields that never name a file or a run


@dataclass
class Named:
    """The files and runs that a job's landscapes name.

    Attributes:
        files: where each lies in the portable problem, by its name in the job.
        runs: likewise.
        own: the snapshots of the job's own run that it needs.
    """

    job: Job
    landscapes: tuple[Landscape, ...]
    files: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in dict.fromkeys(name for each in self.landscapes for name in each.named_files()):
            self.files[name] = f"files/{len(self.files)}-{_word(Path(name).stem)}.safetensors"
        named = list(dict.fromkeys(name for each in self.landscapes for name in each.named_runs()))
        places = [real_place(locate(name, self.job.folder)) for name in named]
        for name, place, label in zip(named, places, run_labels(places), strict=True):
            first = named[places.index(place)]
            taken = {known for other, known in self.runs.items() if other != first}
            word = f"runs/{_word(label)}"
            self.runs[name] = self.runs.get(first, word if word not in taken else f"{word}-{len(self.runs)}")

    @property
    def own(self) -> Trajectory:
        """The snapshots of the job's own run that its landscapes need."""
        trajectory = read_trajectory(self.job.run_path)
        if not trajectory.snapshots:
            return trajectory
        wanted: set[int] = set()
        for landscape in self.landscapes:
            wanted |= set(_numbers(landscape, trajectory))
        return trajectory.select(sorted(wanted))

    def write(self, writer: ArchiveWriter) -> None:
        """Add them to the file."""
        for name, member in self.files.items():
            writer.tensors(member, load_weights(locate(name, self.job.folder), again=True))
        self._write_snapshots(writer, self.own, FOLDER)
        for member in dict.fromkeys(self.runs.values()):
            name = next(name for name, known in self.runs.items() if known == member)
            trajectory = read_trajectory(real_place(locate(name, self.job.folder)))
            self._write_snapshots(writer, trajectory, member)

    def _write_snapshots(self, writer: ArchiveWriter, trajectory: Trajectory, below: str) -> None:
        for snapshot in trajectory.snapshots:
            folder, name = split_path(snapshot.path)
            snapshot.load()  # refuses one that is damaged
            with folder.fetched(name) as file:
                writer.file(f"{below}/{snapshot.unit}-{snapshot.number:05d}.safetensors", Path(file))

    def renamed(self, values: Any) -> Any:
        """The fields of a landscape with the names that files and runs have in the portable problem."""
        if isinstance(values, Mapping):
            return {key: each if key in KEPT else self.renamed(each) for key, each in values.items()}
        if isinstance(values, (list, tuple)):
            return [self.renamed(each) for each in values]
        if not isinstance(values, str):
            return values
        match = OF_RUN.fullmatch(values)
        if match is not None and match[1] in self.runs and values not in self.files:
            return f"{self.runs[match[1]]}@{match[2]}"
        return self.files.get(values, self.runs.get(values, values))


def _numbers(landscape: Landscape, trajectory: Trajectory) -> Iterator[int]:
    """The snapshots of its own run that a landscape needs."""
    if landscape.snapshots == "all":
        yield from trajectory.numbers
    elif landscape.snapshots is not None:
        yield from landscape.snapshots
    origin = "last" if landscape.origin is None else landscape.origin
    for name in (origin, *(name for each in landscape.directions for name in each.weights)):
        if isinstance(name, int):
            yield name
        elif name in ("first", "last"):
            yield trajectory.numbers[0 if name == "first" else -1]


def _word(text: str) -> str:
    return re.sub(r"[^\w-]", "_", text, flags=re.ASCII)[:60] or "_"
