"""`pack_run`: a run with its values and its problems as one file, which is opened where neither run nor code is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from landscape.compute.callback_place import find_callback, manifest_digest
from landscape.compute.pack import pack_prepared
from landscape.compute.pack_file import ArchiveWriter, unwritable
from landscape.compute.prepare import prepare
from landscape.compute.recorded_job import recorded_job
from landscape.core.errors import Interrupted, JobError, NotFoundError, message_of, quoted
from landscape.core.files import Folder, temporary_folder, whole_file
from landscape.core.folders import open_folder
from landscape.core.lock import driver_alive
from landscape.core.progress import stage
from landscape.job.job import Job
from landscape.model.packed_file import SUFFIX
from landscape.model.run_files import REPLACING, read_info
from landscape.model.snapshots import versions
from landscape.store.landscape import LandscapeStore
from landscape.store.packed_run import MEMBERS, PARTS, PROBLEMS, RUN_FILE
from landscape.store.results import open_run
from landscape.store.runs import COPIES, JOURNAL, landscape_names
from landscape.surface.record_parts import PackedCopyRecord


@dataclass(frozen=True)
class PackedRun:
    """The result of packing a run.

    Attributes:
        path: the file.
        size: its bytes.
        landscapes: the landscapes that it holds.
        left_out: the landscapes whose problem it does not hold, so that only stored values can be read, with reasons.
    """

    path: Path
    size: int
    landscapes: tuple[str, ...]
    left_out: Mapping[str, str]


def pack_run(run: str | Path, path: str | Path) -> PackedRun:
    """Write a run as one file: landscapes, history, measures, snapshots, and the problem that each was computed of.

    The run stays as it is. `open_run`, `landscape view`, `export` and `serve` take the file in place of the run, on any
    machine. A landscape whose callback is not found, or cannot be packed, is there with its values alone.

    Args:
        run: its folder, or its URL.
        path: the file, which ends in `.landscape`.

    Raises:
        NotFoundError: there is no such run, or it holds no landscape.
        JobError: the file has another ending, or the run is being written, or has too many files.
        LandscapeError: the file cannot be written.
    """
    path, opened = Path(path), open_run(run)
    if path.suffix != SUFFIX:
        raise JobError(f"out: must end in {SUFFIX}, not {quoted(path.name)}; write -o {path.stem or 'run'}{SUFFIX}")
    place, names = opened.path, landscape_names(opened.path)
    if not names:
        raise NotFoundError(f"run {quoted(place, 300)} holds no landscape; `landscape run JOB` computes one")
    folder = open_folder(place)
    files = _files_of(folder)
    with temporary_folder() as temporary:
        problems, copies, left_out = _problems(place, names, temporary)
        try:
            with whole_file(path) as unproved, ArchiveWriter(unproved, path, RUN_FILE) as writer:
                for name in files:
                    with folder.fetched(name) as file:
                        writer.file(name, file)
                for name in sorted(set(copies) - set(files)):
                    writer.file(name, copies[name])
                writer.manifest(
                    {"versions": versions(), PROBLEMS: {name: asdict(copy) for name, copy in problems.items()}}
                )
        except OSError as error:
            raise unwritable(path, error) from None
    return PackedRun(path, path.stat().st_size, tuple(names), left_out)


def _files_of(folder: Folder) -> list[str]:
    """The paths of the files that travel, except packed problems, of which `_problems` takes those in use.

    Raises:
        JobError: the run is being written, or has too many files.
    """
    quiet = "once that has ended"
    if driver_alive(folder.name):
        raise JobError(
            f"run: must not be written while it is packed, and a driver writes {quoted(folder.name)}; pack it {quiet}"
        )
    if REPLACING in read_info(folder) or folder.read(JOURNAL) is not None:
        raise JobError(
            f"run: must be whole to be packed, and a change of {quoted(folder.name)} was interrupted; give the command "
            "that was interrupted again, then pack it"
        )
    below = [f"{part}/{name}" for part in folder.folders("") if part in PARTS for name in folder.stamps(part)]
    files = sorted(name for name in [*folder.names(""), *below] if MEMBERS.fullmatch(name))
    if len(files) >= RUN_FILE.most_members:
        raise JobError(
            f"run: must have fewer than {RUN_FILE.most_members} files to be packed, not {len(files)}; `landscape "
            "compact RUN` stores its landscapes in few"
        )
    return files


def _problems(
    run: str, names: list[str], temporary: Path
) -> tuple[dict[str, PackedCopyRecord], dict[str, Path], dict[str, str]]:
    """Pack the problem of each landscape; landscapes of equal jobs share one.

    Returns:
        The record of each landscape's problem; the files of the problems, by their names as members; and why landscapes
        have none.
    """
    problems: dict[str, PackedCopyRecord] = {}
    copies: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    jobs: dict[str, list[Job]] = {}
    for name in names:
        store = LandscapeStore.open(run, name)
        if store.record.is_imported:
            left_out[name] = "it is of other software"
            continue
        try:
            place = find_callback(run, store)
            if place.copy is not None:
                problems[name], copies[place.copy.file] = place.copy, Path(str(place.problem))
                continue
            job = recorded_job(run, store)
            alike = job.model_dump(mode="json", exclude={"landscapes"})
            jobs.setdefault(json.dumps([alike, str(job.folder)], sort_keys=True), []).append(job)
        except JobError as error:
            left_out[name] = message_of(error)
    for number, equal in enumerate(jobs.values()):
        job = equal[0].replace(landscapes=[landscape for one in equal for landscape in one.landscapes])
        held = [landscape.name for landscape in job.landscapes]
        stage(f"packing the problem of {', '.join(held)}")
        try:
            packed = pack_prepared(prepare(job, reading=True), temporary / f"{number}{SUFFIX}", run)
        except Interrupted:
            raise
        except Exception as error:  # of the user's code, or of its export
            left_out |= dict.fromkeys(held, message_of(error))
            continue
        digest = manifest_digest(packed.path)
        member = f"{COPIES}/{digest[:16]}{SUFFIX}"
        copies[member] = packed.path
        record = PackedCopyRecord(
            file=member, digest=digest, files=packed.named.files, runs=packed.named.runs,
            difference=packed.compared.difference,
        )  # fmt: skip
        problems |= dict.fromkeys(held, record)
    return problems, copies, left_out
