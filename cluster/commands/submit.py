"""The commands for jobs on a cluster: `landscape submit`, `logs`, `cancel`; and `train`, which also trains here."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from cluster.commands.output import Json, show
from cluster.runtime.logs import bind, write_remark
from cluster.runtime.options import (
    Flag,
    MaybeNumber,
    MaybeWhole,
    Whole,
    Words,
    check_workers,
    given_options,
)
from cluster.submit import ray_jobs
from cluster.submit.kuberay import KubeRayTarget, kuberay_state
from cluster.submit.options import SendingOptions, SubmitOptions, follow_to_end, refuse_settings
from cluster.submit.ray_jobs import RayTarget, connect_to, info, keep_address, ray_state
from cluster.submit.slurm import SlurmTarget, slurm_state
from cluster.submit.submission import job_state, recall
from landscape.core.errors import (
    DONE,
    FAILED,
    PARTIAL,
    UNREACHABLE,
    ClusterUnreachableError,
    JobError,
    LandscapeError,
    NotFoundError,
    quoted,
)
from landscape.core.text import seconds_text

if TYPE_CHECKING:
    from cluster.training.rank import TrainingJob


Target = Literal["ray", "kuberay", "slurm"]
# The defaults of the options.
DEFAULTS, RAY, KUBERAY, SLURM = SubmitOptions(), RayTarget(), KubeRayTarget(), SlurmTarget()


def submit(
    job: Path,
    *,
    target: Target = "ray",
    what: Annotated[SubmitOptions, Parameter(name="*")] = DEFAULTS,
    ray: Annotated[RayTarget, Parameter(name="*", group="To Ray")] = RAY,
    kuberay: Annotated[KubeRayTarget, Parameter(name="*", group="To KubeRay")] = KUBERAY,
    slurm: Annotated[SlurmTarget, Parameter(name="*", group="To Slurm")] = SLURM,
) -> int:
    """Send a job to a cluster; the same command again goes on where an earlier one stopped.

    Prints the identifier of what was sent. With Ray, the log follows on stderr and the exit code is the job's.

    Parameters
    ----------
    job
        The YAML job file. Its folder goes with it.
    target
        ray: a Ray cluster's dashboard; kuberay: Kubernetes with KubeRay; slurm: sbatch.
    """
    from landscape.job.reading import read_job

    targets: dict[str, RayTarget | KubeRayTarget | SlurmTarget] = {"ray": ray, "kuberay": kuberay, "slurm": slurm}
    refuse_options_of_others(target, targets)
    parsed = read_job(job, run=what.run)
    bind(run=parsed.run_path)
    options = what.of_job(target, parsed)
    refuse_settings(parsed, target, options.gpus_per_worker, options.cpus_per_worker, slurm.nodes)
    return targets[target].send(options, parsed, job)


def refuse_options_of_others(target: str, targets: dict[str, RayTarget | KubeRayTarget | SlurmTarget]) -> None:
    """Refuse options of other targets, which would be ignored silently.

    Raises:
        JobError: such an option is given.
    """
    for name, options in targets.items():
        names = list(given_options(options))
        if name != target and names:
            raise JobError(f"{names[0]}: serves --target {name} only, not {target}; leave it out, or name that target")


def cancel(identifier: str, *, address: str | None = None, allow_open: Flag = False) -> int:
    """Stop a job on a Ray cluster in order, and wait until it has; submitting it again goes on where it stopped.

    Parameters
    ----------
    identifier
        What `landscape submit` printed.
    address
        The dashboard's URL; default: where the job was sent to, else as for submit.
    allow_open
        Also talk to a cluster that is not on this machine and asks for no token.
    """
    client = connect_to(identifier, address, allow_open, "cancel")
    state = ray_jobs.cancel(client, identifier)
    keep_address(identifier, address, allow_open)
    print(f"{identifier} {state.lower()}", flush=True)
    return 0


def logs(
    identifier: str,
    *,
    rank: MaybeWhole = None,
    follow: Flag = False,
    address: str | None = None,
    allow_open: Flag = False,
) -> int:
    """Print the log of a job that was sent to a Ray cluster, or that of a rank of a training.

    Parameters
    ----------
    identifier
        What `landscape submit` printed; with --rank the run.
    rank
        The rank of the run's training whose log is meant, from 0.
    follow
        Go on until the job ends; the exit code is the job's. With --rank: until the training ends.
    address
        The dashboard's URL; default: where the job was sent to, else as for submit.
    allow_open
        Also talk to a cluster that is not on this machine and asks for no token.
    """
    if rank is not None:
        return _rank_log(identifier, rank, follow, address)
    if os.path.isdir(identifier) or "://" in identifier:
        raise JobError(
            f"rank: must be given for the log of a training, as {quoted(identifier)} is a run; give --rank 0"
        )
    client = connect_to(identifier, address, allow_open, "logs")
    info(client, identifier)  # raises if the cluster has no such job
    keep_address(identifier, address, allow_open)
    if follow:
        return follow_to_end(identifier, lambda: ray_jobs.follow(client, identifier, _write))
    _write(ray_jobs.log_so_far(client, identifier))
    return 0


def _rank_log(run: str, rank: int, follow: bool, address: str | None) -> int:
    """Print the log of a rank, or follow it until the training ends."""
    from cluster.training.report import follow_log, read_log
    from landscape.core.lock import training_alive

    if rank < 0:
        raise JobError(f"rank: must be 0 or more, not {rank}")
    if address is not None:
        raise JobError("address: belongs to a job that was sent; the log of a rank lies in its run: leave it out")
    if not follow:
        _write(read_log(run, rank))
        return 0
    follow_log(run, rank, _write, lambda: not training_alive(run))
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


IDENTIFIER = re.compile(r"landscape-[a-z0-9-]+-[0-9a-f]{8}-\d+|raysubmit_\w+")  # of our jobs, and those that Ray makes


def names_a_job(text: str) -> bool:
    """Whether an argument is a job's identifier: no path or URL, and either a job sent from here or of this form."""
    if "://" in text or "/" in text or os.path.exists(text):  # false also for a text that no file system accepts
        return False
    return IDENTIFIER.fullmatch(text) is not None or recall(text) is not None


def job_status(identifier: str, address: str | None, allow_open: bool) -> dict[str, Any]:
    """The state of a job by its cluster, and the status of its run if that can be read from here.

    Raises:
        ClusterUnreachableError, NotFoundError, LandscapeError: the cluster, or its tool, gives no state. If it is a Ray
            cluster and the run can be read, nothing is raised.
    """
    known = recall(identifier)
    if known is None or known.target == "ray" or address is not None:
        try:
            client = connect_to(identifier, address, allow_open, "status")
            job = ray_state(client, identifier)
        except (ClusterUnreachableError, NotFoundError) as error:
            run = _run_status(known.run) if known else None
            if known is None or run is None:
                raise
            # Without its head the state of the job is unknown, but the run can still be read.
            state = "UNREACHABLE" if isinstance(error, ClusterUnreachableError) else "UNKNOWN"
            job = job_state(identifier, "ray", known.address, state, since=None, exit_code=None,
                       message=str(error), run=known.run)  # fmt: skip
            return {"job": job, "run": run}
        keep_address(identifier, address, allow_open)
    elif known.target == "kuberay":
        job = kuberay_state(identifier, known)
    else:
        job = slurm_state(identifier, known)
    job["run"] = job["run"] or (known.run if known else "")
    return {"job": job, "run": _run_status(job["run"])}


# The states of jobs that have not ended, in the words of Ray, KubeRay and Slurm.
GOING_ON = (
    "PENDING", "RUNNING", "INITIALIZING", "WAITING", "RETRYING", "SUSPENDED", "SUSPENDING", "CONFIGURING", "COMPLETING",
    "REQUEUED", "STAGE_OUT",
)  # fmt: skip
WELL_ENDED = ("SUCCEEDED", "COMPLETE", "COMPLETED", "UNKNOWN")  # of an unknown job the run says how it ended


def code_of_job(status: dict[str, Any]) -> int:
    """The exit code that says how a job of `job_status` ended, and how complete its run is where that can be read."""
    from cluster.runtime.status import code_of_run

    job, run = status["job"], status["run"]
    if job["state"] == "UNREACHABLE":
        return UNREACHABLE
    if job["state"] in GOING_ON:
        return PARTIAL
    code = int(job["exit_code"] or (DONE if job["state"] in WELL_ENDED else FAILED))
    return code if code or run is None else code_of_run(run)


def _run_status(run: str) -> dict[str, Any] | None:
    """The status of a run; None if it is on a disk that is not here, or not begun."""
    from cluster.runtime.status import run_status

    if not run or ("://" not in run and not os.path.isdir(run)):
        return None
    try:
        return run_status(run)
    except (LandscapeError, OSError):
        return None


def job_status_text(status: dict[str, Any], now: float | None = None) -> str:
    """The status of a job as lines: its state, its command and message, and the status of its run."""
    from cluster.runtime.status import status_text

    job = status["job"]
    since = ""
    if job["since"]:
        moment = datetime.fromisoformat(job["since"])
        ago = max(0.0, (time.time() if now is None else now) - moment.timestamp())
        since = f" since {moment.astimezone():%Y-%m-%d %H:%M:%S} ({seconds_text(ago)})"
    code = "" if job["exit_code"] is None else f", exit code {job['exit_code']}"
    place = f" at {job['place']}" if job["place"] else ""
    lines = [f"job {job['id']} on {job['target']}{place}: {job['state']}{since}{code}"]
    details = {"command": job["entrypoint"], "it says": job["message"]}
    lines += [f"  {name}: {text}" for name, text in details.items() if text]
    if status["run"] is not None:
        lines.append(status_text(status["run"]))
    elif job["run"]:
        lines.append(f"run {job['run']}: not to be read from here, or not begun")
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------------------
# A training: in this process, on workers, or sent to a cluster.


@dataclass(frozen=True)
class TrainWhere:
    """Where a training runs."""

    serial: Flag = False
    """In this process, without Ray: the reference."""
    workers: MaybeWhole = None
    """How many ranks; default: one per GPU, and one where there are none."""
    gpus_per_worker: MaybeNumber = None
    """GPUs of each rank; default: one where there are any. 0: CPUs, with one thread each."""
    address: str | None = None
    """host:port or auto, to attach to Ray; default: RAY_ADDRESS, else a private Ray. --target ray: the dashboard."""
    allow_open: Flag = False
    """Also attach or send to a cluster that is not on this machine and asks for no token."""
    max_workers: MaybeWhole = None
    """At most so many ranks; a larger --workers is refused. Default: LANDSCAPE_MAX_WORKERS."""
    worker_resources: Words = None
    """NAME=AMOUNT of a custom resource of the Ray cluster that each rank needs; may be repeated."""

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            JobError: `serial` is given with workers or a cluster, or the number of workers is out of range.
        """
        if self.serial and (self.workers not in (None, 1) or self.address):
            raise JobError("serial: trains in this process alone; leave out workers and address")
        check_workers(self.workers)


@dataclass(frozen=True)
class TrainSending(SendingOptions):
    """How a training is sent, with --target."""

    target: Target | None = None
    """Send it as `landscape submit` does. ray: a Ray dashboard; kuberay: Kubernetes with KubeRay; slurm: sbatch."""
    detach: Flag = False
    """ray: end when it is accepted."""

    @property
    def is_asked(self) -> bool:
        """Whether the training is sent, or the text that would be sent is printed."""
        return self.target is not None or self.dry_run

    def check(self, targets: dict[str, RayTarget | KubeRayTarget | SlurmTarget]) -> None:
        """Refuse options that would be ignored.

        Args:
            targets: the options of each target.

        Raises:
            JobError: an option that only serves --target is given without it.
        """
        if self.target is None:
            refuse_options_of_others("ray", targets)
        names = list(given_options(self))
        if names and not self.is_asked:
            raise JobError(f"{names[0]}: serves --target only; leave it out, or name a target")


@dataclass(frozen=True)
class TrainScaling:
    """A measurement of how several ranks speed a training up, instead of the training."""

    # Not named `scaling`, which is an option of the recipe lenet-mnist: the command does not pass on its own options.
    measure_workers: str | None = None
    """Numbers of workers, such as 1,2,4: measures the same global batch with each."""
    measure_steps: Whole = 20
    """How many steps are measured with each."""

    @property
    def is_asked(self) -> bool:
        """Whether the scaling is measured."""
        return self.measure_workers is not None

    @property
    def numbers(self) -> list[int]:
        """The numbers of workers.

        Raises:
            JobError: the text is no list of numbers, or has a number twice.
        """
        parts = [part.strip() for part in (self.measure_workers or "").split(",")]
        if not all(part.isdecimal() for part in parts):
            raise JobError(f"measure_workers: must be numbers such as 1,2,4, not {quoted(self.measure_workers)}")
        numbers = [int(part) for part in parts]
        if len(set(numbers)) < len(numbers):
            raise JobError(f"measure_workers: must name each number once, not {quoted(self.measure_workers)}")
        return numbers

    def check(self, where: TrainWhere, sending: TrainSending, run: str | None) -> None:
        """Refuse options that a measurement would ignore.

        Raises:
            JobError: such an option is given.
        """
        if not self.is_asked:
            return
        if where.serial or sending.is_asked:
            raise JobError(
                "measure_workers: measures on Ray, here or at --address; leave out --serial, --target and --dry-run"
            )
        if run is not None:
            raise JobError("measure_workers: trains in folders that it removes; leave out --run")


WHERE, SENDING, SCALING = TrainWhere(), TrainSending(), TrainScaling()


def train(
    what: str,
    /,
    *options: Annotated[str, Parameter(allow_leading_hyphen=True)],
    run: str | None = None,
    where: Annotated[TrainWhere, Parameter(name="*")] = WHERE,
    overwrite: Flag = False,
    seed: Whole = 0,
    folder: Path | None = None,
    list_options: Flag = False,
    scaling: Annotated[TrainScaling, Parameter(name="*", group="To measure")] = SCALING,
    json: Json = False,
    sending: Annotated[TrainSending, Parameter(name="*", group="To send")] = SENDING,
    kuberay: Annotated[KubeRayTarget, Parameter(name="*", group="To KubeRay")] = KUBERAY,
    slurm: Annotated[SlurmTarget, Parameter(name="*", group="To Slurm")] = SLURM,
) -> int:
    """Train a recipe, or a function of your own, or go on where an earlier training of the run stopped.

    A worker that is lost is replaced, and all go on from the last checkpoint. The same command again goes on.

    Parameters
    ----------
    what
        A recipe: {recipes}; or module:function of a function of a landscape.Training.
    options
        The options of the recipe or function, as --epochs 20; WHAT --list-options prints them.
    run
        The folder or URL of the run; nodes of a cluster must share it.
    overwrite
        Begin anew, whatever the run holds.
    seed
        Decides the order of the samples and the initial weights.
    folder
        Where the module is looked up first; default: the current directory.
    list_options
        Print the options of the recipe or function, and end.
    """
    from cluster.training.options import read_words
    from cluster.training.train import make_job

    if list_options:
        return _list_options(what, folder, json)
    where.check()
    sending.check({"kuberay": kuberay, "slurm": slurm})
    scaling.check(where, sending, run)
    if run is None and not scaling.is_asked:
        raise JobError("run: must name a folder or URL for the training; give --run")
    function_options = read_words(options)
    job = make_job(
        what, "." if run is None else run, function_options, texts=True, own=own_options(), seed=seed, folder=folder,
        workers=where.workers, gpus_per_worker=where.gpus_per_worker, max_workers=where.max_workers,
        worker_resources=where.worker_resources or {},
    )  # fmt: skip
    if scaling.is_asked:
        return _measure(job, where, scaling, json)
    bind(run=job.run_path)
    if sending.is_asked:
        own_words = [*(["--overwrite"] if overwrite else []), *([f"--seed={seed}"] if seed else [])]
        return _send(job, (*own_words, *_words(function_options)), where, sending, kuberay, slurm)
    return _train(job, where, overwrite, json)


def _list_options(what: str, folder: Path | None, as_json: bool) -> int:
    from cluster.training.options import describe_options, named_function, option_lines

    function = named_function(what, folder)
    descriptions = describe_options(function, function.load(), own_options())
    show(descriptions, as_json, "\n".join(option_lines(descriptions)))
    return 0


def own_options() -> list[str]:
    """The names of the command's own options, which no option of a function may have."""
    groups = (TrainWhere, TrainSending, TrainScaling, KubeRayTarget, SlurmTarget)
    own = [entry.name for group in groups for entry in fields(group)]
    return [*own, "run", "overwrite", "folder", "list_options", "json"]


def _words(options: dict[str, str]) -> list[str]:
    """The options of a function as words of a command."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


def _train(job: TrainingJob, where: TrainWhere, overwrite: bool, as_json: bool) -> int:
    from cluster.runtime.console import command_progress, divert_stdout
    from cluster.training.report import Report, result_text
    from cluster.training.train import epochs_of, may_train_here, next_line, train_here, train_with_ray
    from landscape.store.state import finite

    report = Report(epochs_of(job))
    with divert_stdout(), command_progress():
        if where.serial or may_train_here(job, where.address):
            result = train_here(job, report, overwrite)
        else:
            result = train_with_ray(job, report, where.address, where.allow_open, overwrite)
    values = finite(asdict(result) | {"samples_per_second": result.samples_per_second})
    show(values, as_json, result_text(result))
    write_remark(next_line(result.run), "next")
    return 0


def _measure(job: TrainingJob, where: TrainWhere, scaling: TrainScaling, as_json: bool) -> int:
    from cluster.runtime.console import command_progress, divert_stdout
    from cluster.training.train import measure_scaling, scaling_text

    with divert_stdout(), command_progress():
        measured = measure_scaling(
            job, scaling.numbers, scaling.measure_steps, address=where.address, allow_open=where.allow_open
        )
    show([asdict(speed) for speed in measured], as_json, scaling_text(measured))
    return 0


def _send(
    job: TrainingJob,
    words: tuple[str, ...],
    where: TrainWhere,
    sending: TrainSending,
    kuberay: KubeRayTarget,
    slurm: SlurmTarget,
) -> int:
    from cluster.submit.submission import SentTraining

    target: Literal["ray", "kuberay", "slurm"] = sending.target or "ray"
    if where.serial:
        raise JobError("serial: trains in this process alone; leave it out to send the training")
    if target == "slurm" and where.workers is None:
        raise JobError("workers: Slurm must be told how many; give --workers N, one per GPU or per core")
    ray = RayTarget(where.address, sending.detach, where.allow_open, where.max_workers, where.worker_resources)
    targets: dict[str, Any] = {"ray": ray, "kuberay": kuberay, "slurm": slurm}
    refuse_options_of_others(target, targets)
    common = {entry.name: getattr(sending, entry.name) for entry in fields(SendingOptions)}
    options = SubmitOptions(run=job.run, workers=where.workers, gpus_per_worker=where.gpus_per_worker, **common)
    sent = SentTraining(job.what.name, job.folder, job.run, words)
    return int(targets[target].send(options, sent, job.folder / "job"))
