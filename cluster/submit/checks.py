"""What is refused before a job is sent: settings that fail on a cluster, and files that would not be there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cluster.runtime.shipping import Listing, callback_files, is_packed, list_folder, packed_listing
from cluster.submit.work import SentTraining, Work, has_files
from landscape.core.errors import JobError, shown
from landscape.core.folders import locate
from landscape.job.job import Job


def named_files(job: Work) -> Iterator[str]:
    """The files that a job names, as they stand in it: weights and directions."""
    for landscape in job.landscapes:
        yield from landscape.named_files()


def named_runs(job: Work) -> Iterator[str]:
    """The other runs that a job names, as they stand in it: those whose paths are drawn, and of snapshots."""
    for landscape in job.landscapes:
        yield from landscape.named_runs()


def refuse_settings(job: Job, target: str, workers_gpus: float | None, cpus: int | None, nodes: int = 1) -> None:
    """Settings that hold on one machine, or that contradict what is asked of the cluster.

    Args:
        workers_gpus: GPUs of each worker; None where that is left to the cluster.
        cpus: cores of each worker, None likewise.

    Raises:
        JobError: names the setting.
    """
    attached = target != "slurm" or nodes > 1
    if job.device_ids is not None and attached:
        raise JobError(
            "device_ids: restricts a local Ray only; "
            "on a cluster set CUDA_VISIBLE_DEVICES where each node's `ray start` runs"
        )
    if job.device == "cpu" and workers_gpus:
        raise JobError(
            f"gpus_per_worker: must be 0 or left out, not {workers_gpus:g}, as the job says device: cpu; change one"
        )
    allocated = target != "ray"
    if job.device == "cuda" and allocated and not workers_gpus:
        raise JobError("gpus_per_worker: must be said, as the job says device: cuda; give --gpus-per-worker 1")
    if job.asked_engine and job.asked_engine.needs_gpu and (job.device == "cpu" or (allocated and not workers_gpus)):
        raise JobError(f"engine: {job.engine} needs a GPU; give the workers one, or leave the engine to be chosen")
    if cpus is not None and not workers_gpus and job.threads is not None and cpus < job.threads:
        raise JobError(f"cpus_per_worker: must be at least the job's threads, {job.threads}, not {cpus}")


def refuse_missing_files(job: Work) -> None:
    """A relative path is looked up beside the job file, here as on the cluster.

    Raises:
        JobError: names the file that is not there.
    """
    for name in () if is_packed(job.folder) else _relative_files(job):
        if not Path(locate(name, job.folder)).is_file():
            raise JobError(f"job: the file {shown(name)} does not exist in {shown(str(job.folder))}; mend its path")


def refuse_files_left_behind(job: Work) -> None:
    """A relative path that leaves the folder is not shipped with it.

    Nor are other runs, which may be of any size.

    Raises:
        JobError: names the file or the run; also where a file of the folder does not exist.
    """
    if is_packed(job.folder):
        return
    folder = job.folder.resolve()
    for run in named_runs(job):
        if "://" not in run and not Path(run).is_absolute():
            raise JobError(
                f"job: run {shown(run)} is not sent with the job; name it by an absolute path that every node sees, or "
                "by a URL"
            )
    for name in _relative_files(job):
        if not Path(locate(name, job.folder)).resolve().is_relative_to(folder):
            raise JobError(
                f"job: {shown(name)} lies outside the job file's folder, which is what is shipped; "
                "move it in, or name it by an absolute path that every node sees"
            )
    refuse_missing_files(job)


def _relative_files(job: Work) -> list[str]:
    """The files that a job names by relative paths; URLs and absolute paths are seen by every node."""
    return [name for name in named_files(job) if "://" not in name and not Path(name).is_absolute()]


def folder_listing(job: Work, file: Path, run: str, include: Iterable[str] = ()) -> Listing:
    """The listing of the job's folder; the job file, the callback and the files that the job names are always sent.

    A recipe that is trained is installed there: nothing travels but what is included.

    Raises:
        JobError: one of these cannot, or all is more than can be shipped.
    """
    if is_packed(job.folder):
        return packed_listing(job.folder, run, include)
    refuse_files_left_behind(job)
    named = [os.path.relpath(locate(name, job.folder), job.folder) for name in _relative_files(job)]
    if not has_files(job):
        included = list_folder(job.folder, run, include, []) if include else Listing(job.folder)
        return included.only([name for name in included.files if _is_below(name, include)], "not asked for")
    own = [] if isinstance(job, SentTraining) else [file.name]
    return list_folder(job.folder, run, include, [*own, *callback_files(job), *named])


def _is_below(name: str, places: Iterable[str]) -> bool:
    """Whether a file is one of these, or lies in one of them."""
    return any(name == place or name.startswith(f"{place}/") for place in map(os.path.normpath, places))
