"""`landscape pack`: write a job and its problem as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cluster.commands.output import Json, read_bound_job, show
from cluster.runtime.console import bytes_text


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
        float32, tf32, bfloat16 or float64.
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
