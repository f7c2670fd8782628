"""`landscape import`: a trajectory made of existing checkpoints."""

from __future__ import annotations

from typing import Literal

from cluster.runtime.logs import write_remark
from cluster.runtime.options import Flag


def import_(
    checkpoints: list[str],
    *,
    run: str,
    unit: Literal["epoch", "step"] | None = None,
    order: Literal["auto", "given"] = "auto",
    overwrite: Flag = False,
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
    from landscape.model.checkpoint_import import import_checkpoints

    found = import_checkpoints(checkpoints, run, unit, order=order, overwrite=overwrite)
    lines = [f"{each.source} -> {found.unit} {each.number}" for each in found.snapshots]
    for line in lines if len(lines) <= 40 else [*lines[:20], f"… {len(lines) - 40} more …", *lines[-20:]]:
        write_remark(line, "imported")
    last = f"; {found.unit} {found.numbers[-1]} is the end" if len(lines) > 1 else ""
    write_remark(f"{len(lines)} snapshot{'s' * (len(lines) > 1)} in {run}{last}; next: a job with `trajectory: all`")
