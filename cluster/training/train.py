"""`cluster.train`: a training in this process, or on Ray; begun, or gone on with."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from cluster.driver.short_jobs import may_run_here
from cluster.runtime.logs import graceful_stop
from cluster.runtime.options import check_workers
from cluster.runtime.placement import Placement, refuse_too_few_places
from cluster.runtime.session import ray_session, supply
from cluster.training.options import TrainFunction, check_options, named_function, parameters_of
from cluster.training.rank import RankFailed, TrainingJob, plan_of, run_rank
from cluster.training.report import Report, TrainingResult, result_of
from landscape.core.errors import Interrupted, JobError, LandscapeError, message_of, quoted
from landscape.core.folders import open_folder
from landscape.core.lock import training_lock
from landscape.core.progress import is_watched, stage
from landscape.core.text import digest as text_digest
from landscape.model.run_files import (
    DONE,
    FAILED,
    HISTORY_FILE,
    INFO_FILE,
    INTERRUPTED,
    Launch,
    checkpoint_numbers,
    now,
    read_info,
    read_launch,
    read_problem,
    write_launch,
)
from landscape.model.snapshots import snapshot_files

# ----------------------------------------------------------------------------------------------------
# What a run remembers of its training: the function, the command that goes on with it, how the last start ended.


@contextlib.contextmanager
def record_launch(job: TrainingJob, workers: int, command: str, report: Report) -> Iterator[None]:
    """Record in the run that a training runs while the block does, and then how it ended.

    A start that is refused has changed nothing, so the record of the start before it stays. A driver that is killed
    leaves its training recorded as running, with a lock that nobody holds.

    Args:
        report: at the end it has what the ranks did.

    Raises:
        LandscapeError: the run cannot be written.
    """
    run = job.run_path
    former, before = read_launch(run), checkpoint_numbers(open_folder(run))
    launch = Launch(job.what.name, workers, command, now())
    write_launch(run, launch)
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(LandscapeError):  # of a store that does not answer now: what is raised came first
            refused = isinstance(error, JobError) and checkpoint_numbers(open_folder(run)) == before
            write_launch(run, former if refused and former else _ended(launch, error))
        raise
    write_launch(run, _finished(replace(launch, outcome=DONE), job, result_of(run, report.ranks)))


def _finished(launch: Launch, job: TrainingJob, result: TrainingResult) -> Launch:
    """The record of a training that is done, which also says of what, where all epochs that were asked for are done."""
    epochs, digest = epochs_of(job), _digest_of_finished(job)
    if not digest or epochs is None or (result.total_epochs or 0) < epochs:
        return launch
    return replace(launch, finished=digest, steps=result.total_steps, epochs=result.total_epochs or 0)


def _digest_of_finished(job: TrainingJob) -> str:
    """The digest of what is trained, and of the names of its checkpoints and snapshots; '' where it cannot be written.

    A user who deletes one of these has them made anew by the same command.
    """
    options = {name: option_text(value) for name, value in job.options.items()}
    if None in options.values():
        return ""
    folder = open_folder(job.run_path)
    snapshots = sorted(path for _, _, path in snapshot_files(folder))
    beside = sorted({INFO_FILE, HISTORY_FILE} & set(folder.names("")))
    return text_digest(
        [job.what.name, options, job.seed, epochs_of(job), checkpoint_numbers(folder), snapshots, beside]
    )


def finished_result(job: TrainingJob) -> TrainingResult | None:
    """The result of a start with nothing left to do, known from the run alone; None where a rank must look.

    Only a function with an option `epochs` says how much there is to do. What it did before must be all of it, by the
    same options, and still be there.
    """
    launch = read_launch(job.run_path)
    if launch is None or launch.outcome != DONE or not launch.finished or launch.finished != _digest_of_finished(job):
        return None
    return TrainingResult(job.run_path, launch.workers, total_steps=launch.steps, total_epochs=launch.epochs)


def _ended(launch: Launch, error: BaseException) -> Launch:
    if isinstance(error, (Interrupted, KeyboardInterrupt)) or not isinstance(error, Exception):
        return replace(launch, outcome=INTERRUPTED)
    return replace(launch, outcome=FAILED, reason=message_of(error))


def former_function(job: TrainingJob, overwrite: bool) -> str:
    """The name of the function that trained the run before, if it was another one; else empty."""
    former = None if overwrite else read_launch(job.run_path)
    return former.function if former is not None and former.function != job.what.name else ""


def command_of(job: TrainingJob, workers: int | None, address: str | None = None, allow_open: bool = False) -> str:
    """The command that goes on with a training; empty where its function or an option cannot be written in one.

    Args:
        workers: how many ranks; None for a training in the process of the command.
    """
    options = {name: value for name, value in job.options.items() if name != "seed"}
    texts = {name: option_text(value) for name, value in options.items()}
    if not (job.what.module or job.what.is_recipe) or None in texts.values():
        return ""
    words = ["landscape", "train", job.what.name, "--run", job.run_path]
    words += ["--serial"] if workers is None else ["--workers", str(workers)]
    words += ["--folder", str(job.folder)] if job.what.module else []
    words += [] if job.gpus_per_worker is None else ["--gpus-per-worker", f"{job.gpus_per_worker:g}"]
    words += [] if job.max_workers is None else ["--max-workers", str(job.max_workers)]
    words += [f"--worker-resources={name}={amount:.15g}" for name, amount in job.worker_resources.items()]
    words += [] if address is None else ["--address", address]
    words += ["--allow-open"] if allow_open else []
    words += [f"--seed={job.seed}"] if job.seed else []
    words += [f"--{name.replace('_', '-')}={text}" for name, text in texts.items()]
    return shlex.join(words)


def option_text(value: Any) -> str | None:
    """The value of an option as a word of a command; None where it cannot be written, such as a function.

    >>> option_text(0.1), option_text(True), option_text([[0, 1, 2]]), option_text(print)
    ('0.1', 'true', '[[0, 1, 2]]', None)
    """
    if value is None:
        return "none"
    if isinstance(value, (str, Path)):
        return str(value)
    try:
        return json.dumps(value.item() if isinstance(value, np.generic) else value)
    except (TypeError, ValueError, RecursionError):
        return None


def next_line(run: str) -> str:
    """The commands that look at a run that has been trained."""
    name = shlex.quote(run)
    if not read_info(run):  # without a collector there is nothing to draw
        return f"next: landscape status {name}"
    problem = "" if read_problem(run) else " and the problem"
    return f"next: landscape view {name}; its landscapes: landscape run JOB, a file with `run: {name}`{problem}"


# Ray Train's settings, which it reads from the environment of the driver and hands on to its actors.
SETTINGS = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # a lost rank is noticed so soon; by default after 2 s
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths of the user's function hold as they do without Ray
    # Ranks have logs of their own, into which they print.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
}
ALONE = {
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # PyTorch would warn in each rank that `find_unused_parameters` costs time, but `Training.prepare` needs it.
    # Warnings from below Python cannot be filtered in another way; PyTorch still logs its errors.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}  # further ones for a private Ray, whose workers have the environment of this process


@contextlib.contextmanager
def ray_train_settings(attached: bool) -> Iterator[None]:
    """Within the block the environment holds these settings of Ray Train, unless the user has set them."""
    added = {name: value for name, value in (SETTINGS | ({} if attached else ALONE)).items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


OWN = (
    "run", "workers", "gpus_per_worker", "max_workers", "worker_resources", "address", "allow_open", "overwrite",
    "stop",
)  # fmt: skip


def train(
    function: str | TrainFunction,
    *,
    run: str | os.PathLike[str],
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    max_workers: int | None = None,
    worker_resources: Mapping[str, float] | None = None,
    address: str | None = None,
    allow_open: bool = False,
    overwrite: bool = False,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> TrainingResult:
    """Train on Ray, data-parallel, or go on where an earlier training of this run stopped; returns when it is done.

    The function gets a `landscape.Training`. Without workers or an address asked for, and without a second GPU, it
    runs in this process, as `workers=1` would, to the same bits.

    A worker or node that is lost is replaced, and all ranks go on from the last checkpoint in the run. What the
    function raises ends the training.

    Args:
        function: a recipe's name, 'module:function', or a function of a `Training` and its options.
        run: the run's folder or URL; nodes of a cluster must share it.
        workers: how many ranks; default: one per GPU, and one where there are none.
        gpus_per_worker: default: one where there are GPUs; 0 trains on CPUs, with one thread a rank.
        max_workers: at most so many ranks; more `workers` are refused. Default: LANDSCAPE_MAX_WORKERS.
        worker_resources: custom resources of the Ray cluster that each rank needs, and how much of each.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        allow_open: also attach to a cluster that answers beyond loopback and asks for no token.
        overwrite: begin anew, whatever the run holds.
        seed: decides the order of the samples; the function gets it too, where it has such an option.
        stop: is asked several times a second; when true, the training is ended.
        options: of the function.

    Returns:
        How it went.

    Raises:
        JobError: an option is wrong, or the cluster cannot give what is asked for.
        LandscapeError: the function raised, or the same place lost its workers again and again.
        ClusterUnreachableError: no cluster answers at the address, or a private Ray does not start.
        Interrupted: `stop` or a signal ended it early; the same call goes on.
    """
    job = make_job(
        function, str(run), options, workers=workers, gpus_per_worker=gpus_per_worker, max_workers=max_workers,
        worker_resources=worker_resources or {}, seed=seed, texts=False,
    )  # fmt: skip
    report = Report(shown=is_watched(), epochs=epochs_of(job))
    if may_train_here(job, address):
        return train_here(job, report, overwrite)
    return train_with_ray(job, report, address, allow_open, overwrite, stop)


def make_job(
    function: str | TrainFunction,
    run: str,
    values: Mapping[str, Any],
    *,
    texts: bool,
    own: Sequence[str] = OWN,
    seed: int = 0,
    folder: Path | None = None,
    **others: Any,
) -> TrainingJob:
    """A training, with its options checked.

    Args:
        values: the options of the function.
        texts: whether they are words of a command line.
        own: names that no option of the function may have.
        others: further fields of `TrainingJob`.

    Raises:
        JobError: one of them is wrong.
    """
    what = named_function(function, folder)
    code = what.load()
    options = check_options(what, code, values, own, texts=texts)
    if "seed" in parameters_of(code, what.name):
        options = {"seed": seed} | options
    return TrainingJob(what, run, options, seed, **others)


def epochs_of(job: TrainingJob) -> int | None:
    """How many epochs there will be; None where the function has no such option."""
    default = parameters_of(job.what.load(), job.what.name).get("epochs")
    epochs = job.options.get("epochs", default.default if default is not None else None)
    return epochs if isinstance(epochs, int) and not isinstance(epochs, bool) else None


def may_train_here(job: TrainingJob, address: str | None) -> bool:
    """Whether no option asks for Ray, and this process has at most one GPU."""
    gpus = torch.cuda.device_count() if job.device != "cpu" else 0
    return not job.worker_resources and may_run_here(job.workers, address, job.gpus_per_worker, gpus)


def train_here(job: TrainingJob, report: Report, overwrite: bool = False) -> TrainingResult:
    """Train in this process, without Ray: the reference.

    Raises:
        JobError: it is to use GPUs, and this machine has too few.
        LandscapeError: the function raised.
    """
    if (job.gpus_per_worker or 0) > torch.cuda.device_count():
        raise JobError(
            f"gpus_per_worker: this machine has {torch.cuda.device_count()} GPUs, not {job.gpus_per_worker:g}; "
            "leave it out, or ask for less"
        )
    job.what.refuse_missing_package()
    with training_lock(job.run_path):
        stage("training in this process")
        plan = plan_of(job, former=former_function(job, overwrite))
        with record_launch(job, 1, command_of(job, None), report):
            try:
                run_rank(plan, report.tell, device=job.device, overwrite=overwrite)
            except RankFailed as failed:
                raise failed.as_error() from failed.__cause__
            except KeyboardInterrupt:
                raise Interrupted(f"run {quoted(job.run_path)} is interrupted; the same command goes on") from None
    return result_of(job.run_path, report.ranks)


def train_with_ray(
    job: TrainingJob,
    report: Report,
    address: str | None = None,
    allow_open: bool = False,
    overwrite: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> TrainingResult:
    """Train on Ray; `train` says the rest."""
    refuse_without_ray_train()
    if not overwrite and (result := finished_result(job)) is not None:
        return result  # else Ray and its ranks would start, for half a minute, to find the same
    attached = bool(address or os.environ.get("RAY_ADDRESS"))
    if not attached:
        job.what.refuse_missing_package()
    with (
        training_lock(job.run_path) as card,
        ray_train_settings(attached),
        name_options_as_here(),
        ray_session(job, address, job.workers, allow_open) as placed,
        graceful_stop() as signalled,
    ):
        from cluster.training.trainer import train_on_ray

        placement = ranks_of(job, placed)
        refuse_too_few_places(placement, supply())
        stage(f"starting {placement.workers} worker{'s' if placement.workers > 1 else ''}")
        plan = plan_of(job, card=card, former=former_function(job, overwrite))
        command = command_of(job, placement.workers, address, allow_open)
        with record_launch(job, placement.workers, command, report):
            train_on_ray(plan, placement, report, lambda: stop() or signalled(), overwrite)
    return result_of(job.run_path, report.ranks)


@contextlib.contextmanager
def name_options_as_here() -> Iterator[None]:
    """Within the block errors of a session about `num_gpus` name `gpus_per_worker`, as trainings call it.

    Raises:
        JobError: the same.
    """
    try:
        yield
    except JobError as error:
        if str(error).startswith("num_gpus: "):
            raise JobError(f"gpus_per_worker: {str(error).removeprefix('num_gpus: ')}") from error
        raise


def ranks_of(job: TrainingJob, placed: Placement) -> Placement:
    """The placement of the ranks: on CPUs a single one unless the job says how many, as others round differently."""
    return placed if job.workers or placed.num_gpus else replace(placed, workers=1)


def refuse_without_ray_train() -> None:
    """Refuse where Ray is installed without its training.

    Raises:
        JobError: says what to install.
    """
    if any(find_spec(name) is None for name in ("ray", "pyarrow", "pandas")):
        raise JobError(
            "train: several workers need Ray Train; `pip install 'loss-landscape-cluster[train]'`, or give --serial"
        )


# ----------------------------------------------------------------------------------------------------
# How a training speeds up with its workers: each number of them trains the same steps with the same global batch.

WARM_STEPS = 3  # that are not measured, as they make buffers and pools of memory


@dataclass(frozen=True)
class Scaling:
    """How fast a number of workers trains.

    Attributes:
        step_seconds: the median step of rank 0.
        samples_per_second: samples of a whole batch, divided by that median.
        speedup: compared with the first number of workers.
        efficiency: T₁/(W·T_W), the share of the time of W workers that perfectly divided work would take.
        communication: the share of each rank's time in which ranks exchanged gradients and means.
    """

    workers: int
    steps: int
    step_seconds: float
    samples_per_second: float
    speedup: float
    efficiency: float
    communication: tuple[float, ...]


def measure_scaling(
    job: TrainingJob, workers: Sequence[int], steps: int = 20, *, address: str | None = None, allow_open: bool = False
) -> list[Scaling]:
    """Train for some steps with each number of workers, in folders that are removed; nothing is kept.

    The others are compared with the first of the numbers.

    Raises:
        JobError: the numbers make no sense, or the cluster has no room for so many workers.
        LandscapeError: the function raised, or ended before a step was measured.
    """
    for number in workers:
        check_workers(number)
    if steps < 1:
        raise JobError(f"measure_steps: must be at least 1, not {steps}")
    refuse_without_ray_train()
    measured: list[dict[int, dict[str, Any]]] = []
    most = replace(job, workers=max(workers))
    with (
        ray_train_settings(bool(address or os.environ.get("RAY_ADDRESS"))),
        name_options_as_here(),
        ray_session(most, address, most.workers, allow_open) as placed,
        graceful_stop() as signalled,
    ):
        from cluster.training.trainer import train_on_ray

        for number in workers:
            placement = replace(placed, workers=number)
            refuse_too_few_places(placement, supply())
            stage(f"measuring {number} worker{'s' if number > 1 else ''}")
            report = Report(shown=False)
            plan = replace(plan_of(job), run="", steps=steps, warm=WARM_STEPS)
            train_on_ray(plan, placement, report, signalled)
            if not report.ranks or not report.ranks[0]["step_seconds"]:
                raise LandscapeError(
                    f"measure_workers: {quoted(job.what.name)} ended before a step was measured; "
                    f"have it take more than {WARM_STEPS} steps"
                )
            measured.append(report.ranks)
    return scalings_of(measured)


def scalings_of(measured: Sequence[dict[int, dict[str, Any]]]) -> list[Scaling]:
    """The summaries of the ranks of each measurement, compared with the first."""
    scalings = []
    first: tuple[int, float] | None = None
    for ranks in measured:
        summary, world = ranks[0], int(ranks[0]["world"])
        times = summary["step_seconds"]
        seconds = median(times)
        pace = summary["samples"] / len(times) / seconds
        first = first or (world, seconds)
        shares = result_of("", ranks).communication
        speedup = first[1] / seconds
        scalings.append(Scaling(world, len(times), seconds, pace, speedup, speedup * first[0] / world, shares))
    return scalings


def scaling_text(measured: Sequence[Scaling]) -> str:
    """The measurements as a table."""
    lines = ["workers  samples/s  ms a step  speed-up  efficiency  communication"]
    for scaling in measured:
        shares = " ".join(f"{share:.0%}" for share in scaling.communication) or "-"
        lines.append(
            f"{scaling.workers:7d}  {scaling.samples_per_second:9,.1f}  {1000 * scaling.step_seconds:9.1f}  "
            f"{scaling.speedup:8.2f}  {scaling.efficiency:10.0%}  {shares}"
        )
    return "\n".join(lines)
