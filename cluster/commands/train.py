"""`landscape train`: train a recipe or a function of one's own, here, on Ray, or sent to a cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from cluster.commands.output import Json, show
from cluster.commands.submit import KUBERAY, SLURM, Target, refuse_options_of_others
from cluster.runtime.logs import bind, write_remark
from cluster.runtime.options import (
    Flag,
    MaybeNumber,
    MaybeWhole,
    Whole,
    Words,  # noqa: F401  cyclopts looks up the types of inherited fields here
    check_workers,
    given_options,
)
from cluster.submit.kuberay import KubeRayTarget
from cluster.submit.options import SendingOptions, SubmitOptions
from cluster.submit.ray_jobs import RayTarget
from cluster.submit.slurm import SlurmTarget
from landscape.core.errors import JobError, quoted

if TYPE_CHECKING:
    from cluster.training.rank import TrainingJob


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

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            JobError: this process is to train alone, and workers are asked for; or there cannot be so many.
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
        """Whether the training is sent, or what would be sent is printed."""
        return self.target is not None or self.dry_run

    def check(self, targets: dict[str, RayTarget | KubeRayTarget | SlurmTarget]) -> None:
        """Refuse options that would be ignored.

        Args:
            targets: the options of each that may be sent to.

        Raises:
            JobError: names one that serves --target alone, which is not given.
        """
        if self.target is None:
            refuse_options_of_others("ray", targets)
        given = list(given_options(self))
        if given and not self.is_asked:
            raise JobError(f"{given[0]}: serves --target only; leave it out, or name a target")


@dataclass(frozen=True)
class TrainScaling:
    """Measuring how several ranks speed a training up, instead of training."""

    # Not `scaling`, which is an option of lenet-mnist: what is the command's own, it does not hand on.
    measure_workers: str | None = None
    """Numbers of workers, such as 1,2,4: measures the same global batch with each."""
    measure_steps: Whole = 20
    """How many steps are measured with each."""

    @property
    def is_asked(self) -> bool:
        """Whether something is to be measured."""
        return self.measure_workers is not None

    @property
    def numbers(self) -> list[int]:
        """The numbers of workers.

        Raises:
            JobError: they are none, or one stands there twice.
        """
        parts = [part.strip() for part in (self.measure_workers or "").split(",")]
        if not all(part.isdecimal() for part in parts):
            raise JobError(f"measure_workers: must be numbers such as 1,2,4, not {quoted(self.measure_workers)}")
        numbers = [int(part) for part in parts]
        if len(set(numbers)) < len(numbers):
            raise JobError(f"measure_workers: must name each number once, not {quoted(self.measure_workers)}")
        return numbers

    def check(self, where: TrainWhere, sending: TrainSending, run: str | None) -> None:
        """Refuse what a measurement would ignore.

        Raises:
            JobError: says what.
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
    given = read_words(options)
    job = make_job(
        what, "." if run is None else run, given, texts=True, own=own_options(), seed=seed, folder=folder,
        workers=where.workers, gpus_per_worker=where.gpus_per_worker,
    )  # fmt: skip
    if scaling.is_asked:
        return _measure(job, where, scaling, json)
    bind(run=job.run_path)
    if sending.is_asked:
        words = [*(["--overwrite"] if overwrite else []), *([f"--seed={seed}"] if seed else []), *_words(given)]
        return _send(job, tuple(words), where, sending, kuberay, slurm)
    return _train(job, where, overwrite, json)


def _list_options(what: str, folder: Path | None, as_json: bool) -> int:
    from cluster.training.options import describe_options, named_function, option_lines

    function = named_function(what, folder)
    described = describe_options(function, function.load(), own_options())
    show(described, as_json, "\n".join(option_lines(described)))
    return 0


def own_options() -> list[str]:
    """The names of the command's own options, which no option of a function may have."""
    groups = (TrainWhere, TrainSending, TrainScaling, KubeRayTarget, SlurmTarget)
    own = [each.name for group in groups for each in fields(group)]
    return [*own, "run", "overwrite", "folder", "list_options", "json"]


def _words(given: dict[str, str]) -> list[str]:
    """The options of a function as words of a command again."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]


def _train(job: TrainingJob, where: TrainWhere, overwrite: bool, as_json: bool) -> int:
    from cluster.runtime.console import ProgressDisplay, divert_stdout
    from cluster.training.report import Report, result_text
    from cluster.training.train import epochs_of, may_train_here, next_line, train_here, train_with_ray
    from landscape.store.state import finite

    report = Report(epochs_of(job))
    with divert_stdout(), ProgressDisplay():
        if where.serial or may_train_here(job, where.address):
            result = train_here(job, report, overwrite)
        else:
            result = train_with_ray(job, report, where.address, where.allow_open, overwrite)
    values = finite(asdict(result) | {"samples_per_second": result.samples_per_second})
    show(values, as_json, result_text(result))
    write_remark(next_line(result.run), "next")
    return 0


def _measure(job: TrainingJob, where: TrainWhere, scaling: TrainScaling, as_json: bool) -> int:
    from cluster.runtime.console import ProgressDisplay, divert_stdout
    from cluster.training.train import measure_scaling, scaling_text

    with divert_stdout(), ProgressDisplay():
        measured = measure_scaling(
            job, scaling.numbers, scaling.measure_steps, address=where.address, allow_open=where.allow_open
        )
    show([asdict(each) for each in measured], as_json, scaling_text(measured))
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
    ray = RayTarget(address=where.address, detach=sending.detach, allow_open=where.allow_open)
    targets: dict[str, Any] = {"ray": ray, "kuberay": kuberay, "slurm": slurm}
    refuse_options_of_others(target, targets)
    common = {each.name: getattr(sending, each.name) for each in fields(SendingOptions)}
    asked = SubmitOptions(run=job.run, workers=where.workers, gpus_per_worker=where.gpus_per_worker, **common)
    sent = SentTraining(job.what.name, job.folder, job.run, words)
    return int(targets[target].send(asked, sent, job.folder / "job"))
