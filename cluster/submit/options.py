"""The options of `landscape submit` for every target, and the checks before a job is sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.runtime.logs import as_json, write_remark, write_remark_lines
from cluster.runtime.options import Flag, MaybeNumber, MaybeWhole, Words
from cluster.runtime.shipping import (
    LEAVES,
    SentFiles,
    callback_files,
    is_packed,
    list_folder,
    listing_lines,
    omitted_line,
    packed_listing,
    read_file,
)
from cluster.submit.submission import SentTraining, Submission, Work, has_files, make_submission
from landscape.core.errors import Interrupted, JobError, quoted
from landscape.core.folders import locate

if TYPE_CHECKING:
    from landscape.job.job import Job


@dataclass(frozen=True)
class SendingOptions:
    """How a job or a training is sent, to any target."""

    dry_run: Flag = False
    """Print exactly what would be sent, and send nothing. No cluster is asked."""
    name: str | None = None
    """Part of the identifier; default: the run's last part."""
    attempt: MaybeWhole = None
    """The number in the identifier; default: the first that is free, 1 in a dry run."""
    cpus_per_worker: MaybeWhole = None
    """kuberay, slurm: CPU cores of each worker; default: 2 with a GPU, else its threads."""
    memory: str | None = None
    """slurm: memory of a node, kuberay: of a worker, such as 16G and 16Gi."""
    include: Words = None
    """ray, kuberay: a further file or folder that travels; may be repeated."""


@dataclass(frozen=True)
class SubmitOptions(SendingOptions):
    """The options of `landscape submit` for every target."""

    run: str | None = None
    """The run instead of the file's: a folder that the cluster sees, or a URL."""
    workers: MaybeWhole = None
    """How many workers evaluate; kuberay: one pod each."""
    gpus_per_worker: MaybeNumber = None
    """GPUs of each worker."""
    accept_origin: Flag = False
    """Go on, with a warning that the landscape keeps, where your model has another loss by its own forward pass."""
    no_look: Flag = False
    """Send without trying out the callback here; for one that needs what only the cluster has."""

    def of_job(self, target: str, job: Job) -> SubmitOptions:
        """These options with the workers of the job file; on a Ray cluster the driver itself reads them there."""
        if target == "ray":
            return self
        return replace(
            self,
            workers=job.workers if self.workers is None else self.workers,
            gpus_per_worker=job.num_gpus if self.gpus_per_worker is None else self.gpus_per_worker,
        )

    def look(self, job: Work, file: Path, run: str, listing: SentFiles | None = None) -> None:
        """Try out the job here, and compare the files that its callback opens with those that are sent.

        Args:
            listing: the files that are sent; None if the cluster sees all files.

        Raises:
            JobError: the job would fail on the cluster.
        """
        from cluster.submit.dry_run import compare, look

        if self.no_look or isinstance(job, SentTraining):  # a training's function and options are checked beforehand
            return
        seen = look(job, file, run)
        for remark in (*seen.remarks, *(compare(seen, listing, run) if listing is not None else ())):
            write_remark(remark, "look")

    def submission(self, job: Work, file: Path, place: str) -> Submission:
        """The job under its name, its run at `place`."""
        number = 1 if self.attempt is None else self.attempt
        return make_submission(
            job, file, place, self.name, number, self.workers, self.gpus_per_worker,
            log_format="json" if as_json() else "text", accept_origin=self.accept_origin,
            cpus_per_worker=self.cpus(job), memory=self.memory,
        )  # fmt: skip

    def cpus(self, job: Work) -> int:
        """The CPU cores of a worker: without a GPU the job's threads, with a GPU a second core to feed it."""
        if self.cpus_per_worker is not None:
            return self.cpus_per_worker
        return 2 if self.gpus_per_worker else job.threads or 1


def tell_files(listing: SentFiles, everything: bool) -> None:
    """List the files that are sent and those that are not: all of them, or in one line those that a user might miss."""
    lines = listing_lines(listing) if everything else [omitted_line(listing)]
    for line in filter(None, lines):
        write_remark(line, "files")


def follow_to_end(identifier: str, follow: Callable[[], int]) -> int:
    """Follow a job's log to its end; Ctrl-C ends the following, but not the job."""
    try:
        return follow()
    except KeyboardInterrupt:
        raise Interrupted(
            f"no longer watching; the job goes on: landscape logs {identifier} --follow, landscape cancel {identifier}"
        ) from None


def write_error(text: str) -> None:
    """Write a part of a log to stderr, as events if this command logs JSON."""
    if as_json():
        write_remark_lines(text, "log")
        return
    sys.stderr.write(text)
    sys.stderr.flush()


# ----------------------------------------------------------------------------------------------------
# The checks before a job is sent: settings that fail on a cluster, and files that would be missing there.


def named_files(job: Work) -> Iterator[str]:
    """The files that a job names, as written in it: weights and directions."""
    for landscape in job.landscapes:
        yield from landscape.named_files()


def named_runs(job: Work) -> Iterator[str]:
    """The other runs that a job names, as written in it: those whose paths are drawn, and those of snapshots."""
    for landscape in job.landscapes:
        yield from landscape.named_runs()


def refuse_settings(job: Job, target: str, workers_gpus: float | None, cpus: int | None, nodes: int = 1) -> None:
    """Refuse settings that are only for one machine, or that contradict the resources asked of the cluster.

    Args:
        workers_gpus: GPUs of each worker; None if the cluster decides.
        cpus: cores of each worker; None if the cluster decides.

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
    if job.worker_resources and allocated:
        raise JobError(f"worker_resources: serve a Ray cluster that is there already, not {target}; leave them out")
    if job.device == "cuda" and allocated and not workers_gpus:
        raise JobError("gpus_per_worker: must be said, as the job says device: cuda; give --gpus-per-worker 1")
    if job.asked_engine and job.asked_engine.needs_gpu and (job.device == "cpu" or (allocated and not workers_gpus)):
        raise JobError(f"engine: {job.engine} needs a GPU; give the workers one, or leave the engine to be chosen")
    if cpus is not None and not workers_gpus and job.threads is not None and cpus < job.threads:
        raise JobError(f"cpus_per_worker: must be at least the job's threads, {job.threads}, not {cpus}")


def refuse_missing_files(job: Work) -> None:
    """Refuse a job that names a missing file: relative paths are relative to the job file's folder.

    Raises:
        JobError: names the missing file.
    """
    for name in () if is_packed(job.folder) else _relative_files(job):
        if not Path(locate(name, job.folder)).is_file():
            raise JobError(f"job: the file {quoted(name)} does not exist in {quoted(str(job.folder))}; mend its path")


def refuse_files_left_behind(job: Work) -> None:
    """Refuse a job that names a file outside its folder, or another run, by a relative path: neither is sent.

    Raises:
        JobError: names the file or the run; also if a file of the folder does not exist.
    """
    if is_packed(job.folder):
        return
    folder = job.folder.resolve()
    for run in named_runs(job):
        if "://" not in run and not Path(run).is_absolute():
            raise JobError(
                f"job: run {quoted(run)} is not sent with the job; name it by an absolute path that every node sees, "
                "or by a URL"
            )
    for name in _relative_files(job):
        if not Path(locate(name, job.folder)).resolve().is_relative_to(folder):
            raise JobError(
                f"job: {quoted(name)} lies outside the job file's folder, which is what is shipped; "
                "move it in, or name it by an absolute path that every node sees"
            )
    refuse_missing_files(job)


def _relative_files(job: Work) -> list[str]:
    """The files that a job names by relative paths; every node can read URLs and absolute paths."""
    return [name for name in named_files(job) if "://" not in name and not Path(name).is_absolute()]


def folder_listing(job: Work, file: Path, run: str, include: Iterable[str] = ()) -> SentFiles:
    """The listing of the job's folder; the job file, the callback and the files that the job names are always sent.

    For the training of a recipe, which is installed there, only included files are sent.

    Raises:
        JobError: one of these files cannot be sent, or together they are too large.
    """
    if is_packed(job.folder):
        return packed_listing(job.folder, run, include)
    refuse_files_left_behind(job)
    named = [os.path.relpath(locate(name, job.folder), job.folder) for name in _relative_files(job)]
    if not has_files(job):
        included = list_folder(job.folder, run, include, []) if include else SentFiles(job.folder)
        return included.only([name for name in included.files if _is_below(name, include)], "not asked for")
    own = [] if isinstance(job, SentTraining) else [file.name]
    return list_folder(job.folder, run, include, [*own, *callback_files(job), *named])


def _is_below(name: str, places: Iterable[str]) -> bool:
    """Whether a file is one of these places, or lies in one of them."""
    return any(name == place or name.startswith(f"{place}/") for place in map(os.path.normpath, places))


LARGEST_FILES = 900_000  # bytes in a ConfigMap, which holds 1 MiB with its names
NOT_CARRIED = "not in a ConfigMap, which holds the Python files and what the job names or --include adds"


def job_files(job: Work, file: Path, include: Iterable[str] = (), listing: SentFiles | None = None) -> dict[str, bytes]:
    """The files in the ConfigMap: the job file, the folder's Python files, those that the job names or --include adds.

    The other files of the folder stay out, since manifests are kept and shown where those files do not belong.

    Raises:
        JobError: they are larger than a ConfigMap may be.
    """
    from landscape.model.packed_file import names_a_file, onnx_files

    listing = listing or folder_listing(job, file, job.run_path, include)
    packed = [str(job.problem)] if names_a_file(job.problem) else onnx_files(str(job.problem))
    asked = {os.path.normpath(path) for path in (*named_files(job), *packed, *include)}
    package = str(job.problem).partition(":")[0].partition(".")[0]

    def carried(name: str) -> bool:
        top, _, below = name.partition("/")
        python = name.endswith(".py") and (not below or top == package)
        return name == file.name or python or any(name == folder or name.startswith(f"{folder}/") for folder in asked)

    for name, why in sorted(listing.omitted.items()):
        if why == LEAVES and name.endswith(".py") and "/" not in name:
            raise JobError(f"job: {quoted(name)} is a link that leaves the job file's folder; copy in what it names")
    chosen = {name: file for name, file in sorted(listing.files.items()) if carried(name)}
    size = sum(file.size for file in chosen.values())
    if size > LARGEST_FILES:
        largest = max(chosen.values(), key=lambda file: file.size)
        raise JobError(
            f"job: its files hold {size} bytes, a ConfigMap at most {LARGEST_FILES} ({quoted(largest.name)} alone "
            f"{largest.size}); put large ones on the claim or in the image and name them by absolute paths"
        )
    root = listing.folder.resolve()
    return {name: read_file(file, root) for name, file in chosen.items()}
