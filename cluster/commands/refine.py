"""`landscape refine`: a landscape finer in a box or everywhere, with every point that is known."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from cluster.commands.computing_options import ANYONE, AS_RECORDED, Callback, JobRunner, Workers
from cluster.commands.output import Json, show
from cluster.runtime.console import diverted
from cluster.runtime.options import Flag, MaybeWhole
from landscape.core.errors import DONE, JobError, shown


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

    finer = Finer(2 if factor is None else factor, None if box is None else _pairs(box))
    if plan:
        from cluster.commands.refinement_plan import plan_refinement, refinement_text

        with diverted():
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


def _pairs(text: str) -> list[tuple[float, float]]:
    """The corners of `LOW,HIGH` or `LOW,HIGH,LOW,HIGH,…`.

    Raises:
        JobError: it is something else.
    """
    try:
        ends = [float(part) for part in text.split(",")]
    except ValueError:
        ends = []
    if not ends or len(ends) % 2:
        raise JobError(f"box: must be LOW,HIGH of each axis, such as --box=-0.5,0.5,-0.2,0.2, not {shown(text)}")
    return list(zip(ends[::2], ends[1::2], strict=True))
