"""What computes landscapes: `landscape run`, `demo`, `extend`, `refine`; and `pack` and `plan`, of a job file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cluster.commands.output import (
    ANYONE,
    AS_RECORDED,
    Callback,
    JobRunner,
    Json,
    WorkerOptions,
    Workers,
    read_bound_job,
    show,
)
from cluster.runtime.console import divert_stdout, put
from cluster.runtime.logs import bind, write_remark
from cluster.runtime.options import Flag, ManyWhole, MaybeNumber, MaybeWhole, Whole, Words, check_workers, given_options
from landscape.core.errors import DONE, PARTIAL, JobError, LandscapeError, printable, quoted
from landscape.core.text import bytes_text


@dataclass(frozen=True)
class JobFields:
    """Fields of the job file that the options of `landscape run` replace."""

    run: str | None = None
    """The run folder or URL."""
    num_samples: MaybeWhole = None
    """Samples that every value is the mean of."""
    seed: MaybeWhole = None
    """Decides which samples are taken."""
    batch_size: MaybeWhole = None
    """Samples per forward pass."""
    precision: str | None = None
    """{precisions}."""
    batch_norm: str | None = None
    """{batch_norms}: what normalisation layers do."""
    device: str | None = None
    """auto, cpu or cuda."""
    threads: MaybeWhole = None
    """CPU threads of each worker."""
    num_gpus: MaybeNumber = None
    """GPUs of each worker: a share from 0 to 1, or a whole number."""
    device_ids: ManyWhole = None
    """Which GPUs of this machine a local Ray may use."""


AS_WRITTEN = JobFields()


def run(
    job: Path,
    *,
    who: Workers = ANYONE,
    fields: Annotated[JobFields, Parameter(name="*")] = AS_WRITTEN,
    accept_origin: Flag = False,
) -> int:
    """Compute a job, or go on with it where it stopped.

    Parameters
    ----------
    job
        The YAML job file. The options below replace its fields.
    accept_origin
        Go on, with a warning that the landscape keeps, where your model has another loss by its own forward pass.
    """
    given = read_bound_job(job, **given_options(fields))
    who.check()
    return who.compute(given, accept_origin=accept_origin)


def pack(
    job: Path,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    num_samples: int | None = None,
    precision: str | None = None,
    json: Json = False,
) -> int:
    """Write a job and its problem as one file, which runs anywhere without the code that made it.

    Parameters
    ----------
    job
        The YAML job file. The options below replace its fields.
    out
        The file to write; it ends in .landscape.
    num_samples
        Samples that every value is the mean of; these travel.
    precision
        {precisions}.
    """
    from landscape.compute.pack import pack as write

    packed = write(read_bound_job(job, num_samples=num_samples, precision=precision), out)
    data = {
        "file": str(packed.path),
        "bytes": packed.size,
        "tensor_bytes": packed.tensor_bytes,
        "difference": packed.compared.difference,
    }
    values = "equal to the bit" if packed.compared.equal else f"equal to {packed.compared.difference:.1g}"
    text = f"{packed.path}: {bytes_text(packed.size)}; its values are {values}; landscape run {packed.path}"
    show(data, json, text)
    return 0


def plan(job: Path, *, run: str | None = None, workers: MaybeWhole = None, json: Json = False) -> None:
    """Check everything and show points, tiles, bytes and the estimated time; writes nothing.

    Parameters
    ----------
    job
        The YAML job file.
    run
        The run folder or URL instead of the file's.
    workers
        How many workers to estimate for.
    """
    from cluster.commands.planning import plan_job, plan_text

    with divert_stdout():
        found = plan_job(read_bound_job(job, run=run), check_workers(workers))
    show(found, json, plan_text(found))


# ----------------------------------------------------------------------------------------------------
# The demo: train on real digits, compute the landscapes on a local Ray, check and draw them.

NUM_SAMPLES = 512


def demo(*, out: str = "runs/demo", workers: Whole = 2) -> int:
    """Train LeNet-5 on real handwritten digits, compute its landscapes on a local Ray, check them, write a report.

    Parameters
    ----------
    out
        The run folder on this machine, which report and pictures are written to as well; the same command goes on
        where an earlier one stopped.
    workers
        How many actors evaluate.
    """
    if not out or "://" in out:
        raise JobError(
            f"out: must be a folder of this machine, which report and pictures are written to, not {quoted(out)}; "
            "give one"
        )
    check_workers(workers)
    return run_demo(Path(out), workers)


def run_demo(out: Path, workers: int) -> int:
    """Train, compute, check and draw on this machine; run again, each step resumes where it stopped.

    Args:
        out: the run folder, which report and pictures are written to as well.
        workers: how many actors evaluate.

    Returns:
        The exit code: 0, or 4 where something was given up.
    """
    from cluster.commands.analysis import check_all, texts_of
    from landscape.compute.recorded_job import collected_landscapes
    from landscape.core.text import seconds_text
    from landscape.job.job import Job
    from landscape.recipes.digits import train

    start = time.monotonic()
    bind(run=str(out.absolute()))
    write_remark("1/4 training LeNet-5 on handwritten digits, the collector attached")
    with divert_stdout():
        trained = train(str(out), report=_report_epoch)
    write_remark(f"    accuracy on held-out digits: {trained.accuracy:.1%}")
    write_remark(f"2/4 computing its landscapes on a local Ray with {workers} workers")
    job = Job(
        run=str(out.absolute()), problem="landscape.recipes.digits:problem", num_samples=NUM_SAMPLES,
        # Those that the collector stands for are named here: their origin is the end of training, while that of a job
        # without landscapes would be the callback's untrained network.
        landscapes=collected_landscapes(str(out.absolute())),
    )  # fmt: skip
    code = WorkerOptions(workers=workers).compute(job)
    write_remark("3/4 checking whether their pictures can be trusted")
    found = check_all(job.run, [each.name for each in job.landscapes])
    write_remark("4/4 drawing")
    with divert_stdout():
        written = _draw(out)
    for path in written:
        put(str(path))
    put(printable(texts_of(found)))
    write_remark(f"done in {seconds_text(time.monotonic() - start)}; open {out / 'report.html'}")
    return code if code == PARTIAL else DONE


def _report_epoch(epoch: int, metrics: Mapping[str, float]) -> None:
    write_remark(f"    epoch {epoch}: {', '.join(f'{name} {value:.4g}' for name, value in metrics.items())}")


def _draw(out: Path) -> list[Path]:
    """Write the report, then a PNG per landscape and view where this machine has a Chromium; the paths."""
    from cluster.commands.publish import export_run
    from landscape.store.results import open_run
    from landscape.views.figure_spec import FigureSpec
    from landscape.views.report import write_report

    write_report(open_run(str(out)), out / "report.html")
    written = [out / "report.html"]
    try:
        for kind in ("contour", "topographic", "surface"):
            written += export_run(str(out), [], ["png"], out / "pictures", FigureSpec(kind=kind, log=True))
    except LandscapeError as error:
        write_remark(f"    no PNG pictures: {error}")
    return written


# ----------------------------------------------------------------------------------------------------
# More of a landscape, with every value that is known.

TYPED = {"num_samples": "samples", "observables": "observable", "ranges": "range"}


def extend(
    run: str,
    name: str,
    *,
    samples: MaybeWhole = None,
    observable: Words = None,
    range: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    plan: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Add samples, observables or a wider range to a landscape that is complete; every value that is known is kept.

    The result is what asking for all of it at once with the same plan would have given, to the bit. It is computed as
    NAME.extending and takes the place of NAME when it is complete; interrupted, the same command goes on.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape.
    samples
        How many samples it shall have; the ones it has are the first of them.
    observable
        What observe returns by now and the landscape does not hold; may be repeated.
    range
        A wider range by whole steps, LOW,HIGH for all axes or LOW,HIGH,LOW,HIGH for each.
    plan
        Show what it costs, step by step where several things are asked for, and write nothing.
    """
    who.check()
    from cluster.runtime.status import run_status, status_text
    from landscape.compute.extend import More, steps_left
    from landscape.compute.extend import extend as extend_landscape

    with _named_as_typed():
        more = More(samples, tuple(observable or ()), None if range is None else _ranges(range))
        if plan:
            from cluster.commands.planning import extension_text, plan_extension

            with divert_stdout():
                planned = plan_extension(
                    run, name, steps_left(run, name, more), callback.problem, callback.folder, who.workers
                )
            show(planned, json, extension_text(planned))
            return DONE
        runner = JobRunner(who)
        extend_landscape(
            run, name, num_samples=more.num_samples, observables=more.observables, ranges=more.ranges,
            problem=callback.problem, folder=callback.folder, compute=runner,
        )  # fmt: skip
        status = run_status(run)
        show(status, json, status_text(status))
        return runner.code


@contextmanager
def _named_as_typed() -> Iterator[None]:
    """Have errors name what the user has typed, where `landscape.extend` calls it otherwise."""
    try:
        yield
    except JobError as error:
        field, _, rest = str(error).partition(": ")
        if field not in TYPED:
            raise
        raise type(error)(f"{TYPED[field]}: {rest}") from error.__cause__


def _ranges(text: str) -> Sequence[tuple[float, float]]:
    """The ranges of `LOW,HIGH` or `LOW,HIGH,LOW,HIGH,…`."""
    pairs = _pairs(text)
    if not pairs or not all(low < high and abs(low) + abs(high) < float("inf") for low, high in pairs):
        raise JobError(f"range: must be LOW,HIGH or LOW,HIGH per axis, such as --range=-2,2, not {quoted(text)}")
    return pairs


def _pairs(text: str) -> list[tuple[float, float]]:
    """The pairs of `LOW,HIGH,LOW,HIGH,…`; none where it is something else."""
    try:
        ends = [float(part) for part in text.split(",")]
        return list(zip(ends[::2], ends[1::2], strict=True))
    except ValueError:
        return []


def refine(
    run: str,
    name: str,
    *,
    box: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    factor: MaybeWhole = None,
    plan: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Make a landscape that is complete finer, in a box or everywhere; every point that is there is kept.

    The new points are those of a job that asks for the finer grid at once, to the bit. They lie with the landscape, and
    every figure and export shows all of them; interrupted, the same command goes on.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape.
    box
        LOW,HIGH of each axis, such as --box=-0.5,0.5,-0.2,0.2; widened to whole blocks of 8 cells; default: everywhere.
    factor
        2 or 4: by how much the steps are divided; default: 2.
    plan
        Show what it costs, level by level, and write nothing.
    """
    who.check()
    from cluster.runtime.status import run_status, status_text
    from landscape.compute.refine import refine as refine_landscape
    from landscape.store.levels import Finer, levels_left
    from landscape.store.results import open_run

    finer = Finer(2 if factor is None else factor, None if box is None else _corners(box))
    if plan:
        from cluster.commands.planning import plan_refinement, refinement_text

        with divert_stdout():
            planned = plan_refinement(
                run, name, levels_left(open_run(run).path, name, finer), callback.problem, callback.folder, who.workers
            )
        show(planned, json, refinement_text(planned))
        return DONE
    runner = JobRunner(who)
    refine_landscape(
        run, name, factor=finer.factor, box=finer.box, problem=callback.problem, folder=callback.folder, compute=runner
    )
    status = run_status(run)
    show(status, json, status_text(status))
    return runner.code


def _corners(text: str) -> list[tuple[float, float]]:
    """The ends of a box on each axis."""
    pairs = _pairs(text)
    if not pairs:
        raise JobError(f"box: must be LOW,HIGH of each axis, such as --box=-0.5,0.5,-0.2,0.2, not {quoted(text)}")
    return pairs
