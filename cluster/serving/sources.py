"""The catalog of a service: models by name and version, each a run or a job, and the landscapes of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from cluster.serving.requests import NOT_FOUND, Refusal
from landscape.compute.callback_place import find_callback
from landscape.compute.recorded_job import asked_of
from landscape.core.errors import JobError, NotFoundError, nearest, quoted
from landscape.core.folders import open_folder
from landscape.job.job import Job
from landscape.job.reading import read_job
from landscape.store.landscape import LandscapeStore
from landscape.store.packed_run import is_packed_run
from landscape.store.results import open_run
from landscape.store.runs import landscape_names

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
LATEST = "latest"


@dataclass(frozen=True)
class LandscapeSource:
    """A landscape of a version of a model, and how a replica loads it.

    Attributes:
        job: None for the job that the run has recorded.
        problem, folder: the callback that replaces the recorded one, and where it is looked up.
    """

    model: str
    version: int
    landscape: str
    run: str
    job: Job | None = None
    problem: str | None = None
    folder: Path | None = None

    @property
    def key(self) -> str:
        """Its unique name in the service."""
        return f"{self.model}/{self.version}/{self.landscape}"


@dataclass(frozen=True)
class Version:
    """A version of a model: a run or a job, and its landscapes by name."""

    model: str
    number: int
    place: str
    run: str
    landscapes: Mapping[str, LandscapeSource] = field(repr=False)

    def holds(self, landscape: str) -> bool:
        """Whether the run now has a landscape of that name that a job computes."""
        return (
            landscape in landscape_names(self.run) and not LandscapeStore.open(self.run, landscape).record.is_imported
        )


@dataclass(frozen=True)
class Catalog:
    """All models that are served."""

    models: Mapping[str, tuple[Version, ...]]

    def __iter__(self) -> Iterator[Version]:
        return (version for versions in self.models.values() for version in versions)

    def sources(self) -> list[LandscapeSource]:
        """Every landscape that is served."""
        return [source for version in self for source in version.landscapes.values()]

    def find(self, model: str, version: str, landscape: str) -> LandscapeSource:
        """The landscape that an address names.

        Raises:
            Refusal: there is no such landscape; names the existing ones.
        """
        versions = self.models.get(model)
        if versions is None:
            raise Refusal(NOT_FOUND, f"model: {quoted(model)} is not served here; {nearest(model, self.models)}")
        numbers = {str(version.number): version for version in versions}
        found = versions[-1] if version == LATEST else numbers.get(version)
        if found is None:
            known = ", ".join([*numbers, LATEST])
            raise Refusal(NOT_FOUND, f"version: {quoted(model)} has no version {quoted(version)}; known: {known}")
        if landscape not in found.landscapes:
            if found.holds(landscape):
                raise Refusal(
                    NOT_FOUND, f"landscape: {quoted(landscape)} was begun since this service began; start it again"
                )
            known = nearest(landscape, found.landscapes)
            raise Refusal(NOT_FOUND, f"landscape: {quoted(model)} has no {quoted(landscape)}; {known}")
        return found.landscapes[landscape]


def catalog_of(
    places: Sequence[str], problem: str | None = None, folders: Mapping[str, Path] = MappingProxyType({})
) -> Catalog:
    """The models of the places that a command names: RUN, JOB or FILE, optionally with NAME= before it.

    Args:
        problem: the callback of runs; default: the one with which each landscape was computed.
        folders: where the callbacks of a run are looked up first, by the run as `places` name it.

    Raises:
        NotFoundError: a place does not exist, or holds no landscape.
        JobError: a name is malformed, a job file cannot be read, or the callback of a run is not on this machine.
    """
    models: dict[str, tuple[Version, ...]] = {}
    for given in places:
        name, place = split_name(given)
        folder = folders.get(place)
        run, job = _opened(place)
        name = name or _name_of(run)
        number = len(models.get(name, ())) + 1
        names = _computed(run) if job is None else [landscape.name for landscape in asked_of(job).landscapes]
        if not names:
            raise NotFoundError(
                f"run {quoted(run, 300)} holds no landscape that a job computed; `landscape run JOB` computes one"
            )
        for landscape in names if job is None else ():
            find_callback(run, LandscapeStore.open(run, landscape), problem, folder)  # here its lines are seen
        landscapes = {
            landscape: LandscapeSource(name, number, landscape, run, job, problem if job is None else None, folder)
            for landscape in names
        }
        models[name] = (*models.get(name, ()), Version(name, number, place, run, landscapes))
    return Catalog(models)


def _computed(run: str) -> list[str]:
    """The landscapes of a run, except imported ones, whose points cannot be computed."""
    return [name for name in landscape_names(run) if not LandscapeStore.open(run, name).record.is_imported]


def split_name(given: str) -> tuple[str | None, str]:
    """The name given to a place, and the place; a path may contain an equals sign too."""
    name, sign, place = given.partition("=")
    if not sign or Path(given).exists() or "/" in name:
        return None, given
    if not NAME.fullmatch(name):
        raise JobError(f"name: must be letters, digits, '.', '_' and '-', not {quoted(name)}; write NAME=RUN")
    return name, place


def _opened(place: str) -> tuple[str, Job | None]:
    """The run of a place, and its job if the place is a job file."""
    if Path(place).is_file() and not is_packed_run(place):
        job = read_job(place)
        return open_folder(job.run_path).name, job
    return open_run(place).path, None


def _name_of(run: str) -> str:
    """The last part of a run's path or URL, without characters that an address cannot contain."""
    found = re.sub(r"[^A-Za-z0-9_.-]+", "-", run.rstrip("/").rpartition("/")[2]).strip("-.")
    return found[:100] or "model"


# ----------------------------------------------------------------------------------------------------
# The least and the greatest number of replicas, and the number of landscapes that each holds.

# Landscapes that a replica holds at once; the least recently used one is dropped. Only so many are loaded before the
# service is ready, so that none of them is loaded twice.
LANDSCAPES = 8


@dataclass(frozen=True)
class ReplicaCount:
    """The number of replicas: at least, and at most under load."""

    fewest: int = 1
    most: int = 1


@dataclass(frozen=True)
class ReplicaStates:
    """How many replicas there are now: those that compute, and those that are started or wait for a place."""

    running: int = 0
    starting: int = 0


def scale_of(text: str | None, places: int) -> ReplicaCount:
    """The numbers that a user gives as MIN or MIN,MAX; default: from 1 to `places`.

    >>> scale_of("2", 8), scale_of("1,4", 8), scale_of(None, 8)
    (ReplicaCount(fewest=2, most=2), ReplicaCount(fewest=1, most=4), ReplicaCount(fewest=1, most=8))

    Raises:
        JobError: the text is neither MIN nor MIN,MAX.
    """
    if text is None:
        return ReplicaCount(1, max(1, places))
    match = re.fullmatch(r"([1-9]\d{0,3})(?:,([1-9]\d{0,3}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise JobError(f"replicas: must be MIN or MIN,MAX, whole numbers from 1 on, not {quoted(text)}")
    return ReplicaCount(int(match[1]), int(match[2] or match[1]))
