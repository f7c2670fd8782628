"""`landscape run`: compute a job."""

from __future__ import annotations

from pathlib import Path

from cluster.commands.computing_options import ANYONE, Workers
from cluster.commands.output import read_bound_job
from cluster.runtime.options import Flag, ManyWhole, MaybeNumber, MaybeWhole


def run(
    job: Path,
    *,
    who: Workers = ANYONE,
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
    accept_origin: Flag = False,
) -> int:
    """Compute a job, or go on with it where it stopped.

    Parameters
    ----------
    job
        The YAML job file. The options below replace its fields.
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
    accept_origin
        Go on, with a warning that the landscape keeps, where your model has another loss by its own forward pass.
    """
    given = read_bound_job(
        job, run=run, num_samples=num_samples, seed=seed, batch_size=batch_size, precision=precision,
        batch_norm=batch_norm, device=device, threads=threads, num_gpus=num_gpus, device_ids=device_ids,
    )  # fmt: skip
    who.check()
    return who.compute(given, accept_origin=accept_origin)
