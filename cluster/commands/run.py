"""What a job file is given to: `landscape run`, `pack` and `plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cluster.commands.output import ANYONE, Json, Workers, read_bound_job, show
from cluster.runtime.console import divert_stdout
from cluster.runtime.options import Flag, ManyWhole, MaybeNumber, MaybeWhole, check_workers, given_options
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
