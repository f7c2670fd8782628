"""`landscape rename`: another name for a landscape."""

from __future__ import annotations

from cluster.runtime.logs import write_remark
from landscape.core.errors import flat


def rename(run: str, name: str, new: str) -> None:
    """Give a landscape another name, also in its record. A job goes on with it where its `name:` is the new one.

    Refused where a driver writes the run, and where the new name is taken or differs from another one in case alone.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape.
    new
        Its name from now on: letters, digits, '.', '-' and '_'.
    """
    from landscape.store.results import rename_landscape

    rename_landscape(run, name, new)
    write_remark(f"{flat(name)} is {flat(new)} now; a job that goes on with it needs `name: {flat(new)}`", "renamed")
