"""The `landscape` command: a thin skin over what scripts call. stdout carries data only, all else goes to stderr."""

from __future__ import annotations

import json as json_module
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from cluster.commands.bench import register as register_bench
from cluster.commands.submit import register as register_submit
from cluster.options import ManyWhole, MaybeNumber, MaybeWhole, Whole, checked_workers
from cluster.process import lifeline
from cluster.process.lifeline import supervised
from cluster.process.logs import as_json, bind, chosen, common_options, configure, masked, say, tell_unraisable
from cluster.process.streams import diverted, drop_output, put
from landscape import __version__
from landscape.errors import (
    BAD_USAGE,
    DONE,
    FAILED,
    INTERRUPTED,
    JobError,
    LandscapeError,
    NotFoundError,
    few_lines,
    message_of,
    one_line,
    printable,
    shown,
)

if TYPE_CHECKING:
    from landscape.spec import Job

app = App(
    name="landscape",
    help="Compute and see neural-network loss landscapes, on this machine or a Ray cluster. "
    "Every command takes --debug (tracebacks) and --log-format text|json (what stderr says; or LANDSCAPE_LOG_FORMAT).",
    help_format="plaintext",
    version=__version__,
    version_flags=["--version"],
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `main` tells of it
)

Json = Annotated[bool, Parameter(negative="", help="Print one JSON document instead of text.")]


def command() -> int:
    """Carry out what this process was asked, its errors as one or two lines; returns the exit code."""
    arguments, debug, form = common_options(sys.argv[1:])
    # A library below kaleido parses sys.argv when it is imported, and takes our --log for an option of its own.
    del sys.argv[1:]
    try:
        configure(chosen(form), debug)
        if supervised():
            sys.unraisablehook = tell_unraisable
        else:
            # Until a job installs its own handlers, both signals end the command the same way.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        code = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except CycloptsError as error:
        return _failed(f"landscape: {message_of(error)} (see landscape --help)", BAD_USAGE, debug)
    except LandscapeError as error:
        if supervised() and lifeline.ray_lost and not debug:
            return error.exit_code
        return _failed(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        return _failed("interrupted; the same command goes on", INTERRUPTED, debug)
    except BrokenPipeError:
        drop_output()
        return DONE
    except PermissionError as error:
        return _failed(f"no permission: {error}; change the rights or name another place", BAD_USAGE, debug)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich ends the process where a reader has gone
            drop_output()
            return DONE
        code = f"sys.exit({shown(ended.code)})"
        return _failed(f"{code} was called {_place(ended)}; leave it out: it ends the whole command", FAILED, debug)
    except Exception as error:
        return _failed(f"{one_line(error)} (--debug shows where)", FAILED, debug)


def _place(error: BaseException) -> str:
    """Where an exception was raised."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {last.name} ({last.filename}, line {last.lineno})"


def _failed(message: str, code: int, debug: bool) -> int:
    """Say why the command ends with this code; returns the code."""
    if debug and not as_json():
        import traceback

        print(printable(masked(traceback.format_exc())), end="", file=sys.stderr)
    say(few_lines(message), "error", logging.ERROR, code=code, traceback=_trace() if debug else "")
    return code


def _trace() -> str:
    import traceback

    return traceback.format_exc()


def show(data: Any, as_json: bool, text: str) -> None:
    """The command's result, on stdout."""
    put(json_module.dumps(data, indent=1, default=str, allow_nan=False) if as_json else printable(text))


@app.command
def init(folder: Path = Path()) -> None:
    """Write a commented job file and a callback to start from.

    Parameters
    ----------
    folder
        Where to write job.yaml and my_problem.py; existing files are never replaced.
    """
    from importlib.resources import files

    names = ("job.yaml", "my_problem.py")
    there = [name for name in names if (folder / name).exists()]
    if there:
        raise JobError(f"folder: {shown(str(folder))} already holds {' and '.join(there)}; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(files("cluster.templates").joinpath(name).read_text())
        print(folder / name)
    say(f"next: landscape plan {folder / 'job.yaml'}")


@app.command
def demo(*, out: str = "runs/demo", workers: Whole = 2) -> int:
    """Train LeNet-5 on real handwritten digits, compute its landscapes on a local Ray, write a report.

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
            f"out: must be a folder of this machine, which report and pictures are written to, not {shown(out)}; "
            "give one"
        )
    from cluster.commands.demo import run_demo

    checked_workers(workers)
    return run_demo(Path(out), workers)


@app.command
def run(
    job: Path,
    *,
    serial: Annotated[bool, Parameter(negative="")] = False,
    workers: MaybeWhole = None,
    address: str | None = None,
    allow_open: Annotated[bool, Parameter(negative="")] = False,
    run: str | None = None,
    num_samples: MaybeWhole = None,
    seed: MaybeWhole = None,
    batch_size: MaybeWhole = None,
    precision: str | None = None,
    batch_norm: str | None = None,
    device: str | None = None,
    threads: MaybeWhole = None,
    num_gpus: MaybeNumber = None,
    device_ids: ManyWhole = None,
) -> int:
    """Compute a job, or go on with it where it stopped.

    Parameters
    ----------
    job
        The YAML job file. The options below replace its fields.
    serial
        In this process, without Ray: the reference.
    workers
        How many actors; default: one per GPU, else one per core.
    address
        host:port or auto, to attach to a Ray cluster; default: RAY_ADDRESS, else a private local Ray.
    allow_open
        Also attach to a cluster that is not on this machine and asks for no token.
    run
        The run folder or URL.
    num_samples
        Samples that every value is the mean of.
    seed
        Decides which samples are taken.
    batch_size
        Samples per forward pass.
    precision
        float32, tf32, bfloat16 or float64.
    batch_norm
        eval, batch or recalibrate: what normalisation layers do.
    device
        auto, cpu or cuda.
    threads
        CPU threads of each worker.
    num_gpus
        GPUs of each worker: a share from 0 to 1, or a whole number.
    device_ids
        Which GPUs of this machine a local Ray may use.
    """
    given = _job(
        job, run=run, num_samples=num_samples, seed=seed, batch_size=batch_size, precision=precision,
        batch_norm=batch_norm, device=device, threads=threads, num_gpus=num_gpus, device_ids=device_ids,
    )  # fmt: skip
    checked_workers(workers)
    if serial and (workers or address):
        raise JobError("serial: runs in this process alone; leave out workers and address")
    from cluster.commands.computing import compute

    return compute(given, serial=serial, workers=workers, address=address, allow_open=allow_open)


def _job(path: Path, **overrides: Any) -> Job:
    from landscape.spec import read_job

    found = read_job(path, **overrides)
    bind(run=found.run_path)
    return found


@app.command
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

    with diverted():
        found = plan_job(_job(job, run=run), checked_workers(workers))
    show(found, json, plan_text(found))


@app.command
def status(
    run: str,
    *,
    address: str | None = None,
    allow_open: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Show what is done, missing and failed, and the rate, by landscape; of a job that was sent also its state.

    Exit code 1 where something of the run cannot be read; the state of a job changes no code, `--json` has it: PENDING,
    RUNNING, SUCCEEDED, FAILED or STOPPED on Ray, the words of Slurm and Kubernetes there, UNREACHABLE where the cluster
    does not answer, UNKNOWN where a head was started anew and has forgotten the job.

    Parameters
    ----------
    run
        The run folder or URL, which may be read at any moment of a running job, or what `landscape submit` printed.
    address
        The dashboard's URL of a job that was sent; default: where it was sent to. Not asked where RUN can be read.
    allow_open
        Also talk to a cluster that is not on this machine and asks for no token.
    """
    from cluster.status import is_readable, run_status, status_text
    from cluster.submit.sent import job_status, job_status_text, names_a_job

    def show_job() -> int:
        job = job_status(run, address, allow_open)
        show(job, json, job_status_text(job))
        return DONE

    if names_a_job(run):
        return show_job()
    try:
        found = run_status(run)
    except LandscapeError as error:
        if "/" in run:
            raise
        if address is not None:
            return show_job()
        if not isinstance(error, NotFoundError):
            raise
        raise NotFoundError(
            f"{shown(run)} is no run here, nor a job that was sent from here; name the run's folder or URL, or give "
            "the job's --address"
        ) from None
    show(found, json, status_text(found))
    return DONE if is_readable(found) else FAILED


@app.command
def validate(run: str, *, json: Json = False) -> int:
    """Read every chunk; check schema, checksums and digests. Exit code 1 where something is damaged.

    Parameters
    ----------
    run
        The run folder or URL.
    """
    from cluster.status import validate_run, validation_text

    found = validate_run(run)
    show(found, json, validation_text(found))
    return FAILED if found["damaged"] else DONE


@app.command
def export(
    run: str,
    name: str | None = None,
    *,
    to: str = "html",
    out: Path | None = None,
    kind: str | None = None,
    observable: str = "loss",
    log: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write pictures and data.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        One landscape; default: all.
    to
        Formats, separated by commas: html, png, svg, csv, npz, vtk, stl; report for the page of the whole run. csv
        writes the trajectory to a table of its own, NAME+path.csv; status is 0 not computed, 1 ok, 2 not finite,
        3 quarantined (given up after several tries).
    out
        Folder to write to; default: RUN/export, for a URL NAME-export here.
    kind
        contour, topographic, surface, curve, volume or slices; default: what suits the landscape.
    observable
        What to draw: loss, accuracy, …
    log
        Logarithmic scale.
    """
    from cluster.commands.exporting import export_run

    for path in export_run(run, name, to.split(","), out, kind, observable, log):
        print(path, flush=True)


@app.command(name="import")
def import_(
    checkpoints: list[str],
    *,
    run: str,
    unit: Literal["epoch", "step"] | None = None,
    order: Literal["auto", "given"] = "auto",
    overwrite: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Make a trajectory of existing checkpoints: safetensors, or torch.load(weights_only=True) files.

    Their order and their numbers are those in their names (ckpt_0.pt, ckpt_60.pt, …), or of the folders that they lie
    in, else the step or epoch inside the files.

    Parameters
    ----------
    checkpoints
        The files.
    run
        The run folder or URL to put them in.
    unit
        What their numbers count; default: what the names or files call them, else steps.
    order
        auto, or given: numbered 1, 2, 3, … in the order given, whatever the names say.
    overwrite
        Replace the trajectory that the run holds.
    """
    from landscape.trajectory.importing import import_checkpoints

    found = import_checkpoints(checkpoints, run, unit, order=order, overwrite=overwrite)
    lines = [f"{each.source} -> {found.unit} {each.number}" for each in found.snapshots]
    for line in lines if len(lines) <= 40 else [*lines[:20], f"… {len(lines) - 40} more …", *lines[-20:]]:
        say(line, "imported")
    last = f"; {found.unit} {found.numbers[-1]} is the end" if len(lines) > 1 else ""
    say(f"{len(lines)} snapshot{'s' * (len(lines) > 1)} in {run}{last}; next: a job with `trajectory: all`")


@app.command
def doctor(*, address: str | None = None, run: str | None = None, json: Json = False) -> int:
    """Show what this machine, cluster and run have, what is wrong, and how to mend it.

    Exit code 1 where something is wrong, 5 where the cluster does not answer.

    Parameters
    ----------
    address
        A Ray cluster to look at too.
    run
        A run folder or URL to try out too: a probe is written there, read, listed and deleted.
    """
    from cluster.commands.doctor import diagnose, diagnosis_text
    from cluster.commands.findings import exit_code

    with diverted():
        found = diagnose(address, run)
    show(found, json, diagnosis_text(found))
    return exit_code(found)


register_bench(app)
register_submit(app)
