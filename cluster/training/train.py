"""`cluster.train`: a training in this process, or on Ray; begun, or gone on with."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from cluster.driver.short_jobs import may_run_here
from cluster.runtime.console import is_watched
from cluster.runtime.logs import graceful_stop
from cluster.runtime.placement import Placement, refuse_too_few_places
from cluster.runtime.session import ray_session, supply
from cluster.training.function import TrainFunction, named_function, parameters_of
from cluster.training.job import TrainingJob, plan_of
from cluster.training.launching import command_of, former_function, launched
from cluster.training.options import checked_options
from cluster.training.rank import RankFailed, run_rank
from cluster.training.report import Report, TrainingResult, result_of
from cluster.training.settings import ray_train_settings
from landscape.core.errors import Interrupted, JobError, shown, stage
from landscape.core.lock import training_lock

OWN = ("run", "workers", "gpus_per_worker", "address", "allow_open", "overwrite", "stop")


def train(
    function: str | TrainFunction,
    *,
    run: str | os.PathLike[str],
    workers: int | None = None,
    gpus_per_worker: float | None = None,
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
        function, str(run), options, workers=workers, gpus_per_worker=gpus_per_worker, seed=seed, texts=False
    )
    report = Report(shown=is_watched(), epochs=epochs_of(job))
    if may_train_here(job, address):
        return train_here(job, report, overwrite)
    return train_with_ray(job, report, address, allow_open, overwrite, stop)


def make_job(
    function: str | TrainFunction,
    run: str,
    given: Mapping[str, Any],
    *,
    texts: bool,
    own: Sequence[str] = OWN,
    seed: int = 0,
    folder: Path | None = None,
    **asked: Any,
) -> TrainingJob:
    """A training, with its options checked.

    Args:
        given: the options of the function.
        texts: they are words of a command line.
        own: names that no option of the function may have.
        asked: what else `TrainingJob` takes.

    Raises:
        JobError: one of them is wrong.
    """
    what = named_function(function, folder)
    code = what.load()
    options = checked_options(what, code, given, own, texts=texts)
    if "seed" in parameters_of(code, what.name):
        options = {"seed": seed} | options
    return TrainingJob(what, run, options, seed, **asked)


def epochs_of(job: TrainingJob) -> int | None:
    """How many epochs there will be, where the function has such an option."""
    default = parameters_of(job.what.load(), job.what.name).get("epochs")
    epochs = job.options.get("epochs", default.default if default is not None else None)
    return epochs if isinstance(epochs, int) and not isinstance(epochs, bool) else None


def may_train_here(job: TrainingJob, address: str | None) -> bool:
    """Whether nobody asks for Ray, and this process has one GPU at the most."""
    gpus = torch.cuda.device_count() if job.device != "cpu" else 0
    return may_run_here(job.workers, address, job.gpus_per_worker, gpus)


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
    with training_lock(job.run_path):
        stage("training in this process")
        plan = plan_of(job, former=former_function(job, overwrite))
        with launched(job, 1, command_of(job, None)):
            try:
                run_rank(plan, report.tell, device=job.device, overwrite=overwrite)
            except RankFailed as failed:
                raise failed.as_error() from failed.__cause__
            except KeyboardInterrupt:
                raise Interrupted(f"run {shown(job.run_path)} is interrupted; the same command goes on") from None
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
    with (
        training_lock(job.run_path) as card,
        ray_train_settings(bool(address or os.environ.get("RAY_ADDRESS"))),
        named_as_here(),
        ray_session(job, address, job.workers, allow_open) as placed,
        graceful_stop() as signalled,
    ):
        from cluster.training.trainer import train_on_ray

        placement = ranks_of(job, placed)
        refuse_too_few_places(placement, supply())
        stage(f"starting {placement.workers} worker{'s' if placement.workers > 1 else ''}")
        plan = plan_of(job, card=card, former=former_function(job, overwrite))
        with launched(job, placement.workers, command_of(job, placement.workers, address, allow_open)):
            train_on_ray(plan, placement, report, lambda: stop() or signalled(), overwrite)
    return result_of(job.run_path, report.ranks)


@contextlib.contextmanager
def named_as_here() -> Iterator[None]:
    """Within the block an error of a session names the option as trainings have it.

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
    """The ranks: on CPUs one where nobody says how many, because another number rounds otherwise."""
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
