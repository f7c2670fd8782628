"""`landscape inspect`: which layer of the network goes wrong at a point of a landscape."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from cluster.commands.computing_options import ANYONE, AS_RECORDED, Callback, Workers
from cluster.commands.output import Json, show
from cluster.runtime.console import diverted
from cluster.runtime.logs import bind
from cluster.runtime.options import Flag
from landscape.core.errors import DONE, JobError, shown


def inspect(
    run: str,
    name: str,
    *,
    at: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    gradients: Flag = False,
    rules: str | None = None,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Say which layer goes wrong first at a point, and how: not finite, saturated, all zero, exploding, vanishing.

    Each layer and each operation between layers has its statistics over the landscape's samples, beside the same at the
    origin. The loss is what the landscape has there, to the bit; nothing is written. Exit code 0 whatever is found.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape.
    at
        The coordinates, one for each axis, such as --at=0.3,-0.7, also beyond the grid; default: the first point whose
        loss is not finite, else the origin.
    gradients
        Statistics of the gradient of the mean loss, parameter by parameter, too.
    rules
        Which to ask, of docs/howto/inspect.md: names, or NAME=THRESHOLD, separated by commas; default: all.
    """
    who.check()
    from landscape.analysis.inspection import inspect_point, inspection_text, plain_inspection

    bind(run=run)
    point = None if at is None else _coordinates(at)
    with diverted():
        found = inspect_point(
            run, name, at=point, gradients=gradients, rules=rules, problem=callback.problem, folder=callback.folder,
            calculator=who.calculator,
        )  # fmt: skip
    show(plain_inspection(found), json, inspection_text(found))
    return DONE


def _coordinates(text: str) -> list[float]:
    """The numbers of `0.3,-0.7`.

    Raises:
        JobError: they are none.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise JobError(f"at: must be a number for each axis, such as --at=0.3,-0.7, not {shown(text)}") from None
