"""`landscape rm`: landscapes removed from a run."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from cluster.runtime.logs import write_remark
from landscape.core.errors import DONE, FAILED, JobError, flat


def rm(run: str, *names: str, yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="")] = False) -> int:
    """Remove landscapes from a run, with all their values; on a terminal it asks first.

    An extension that is begun, NAME.extending, goes with its landscape; by its own name it is removed alone. Refused
    where a driver writes the run, and where something lies in a landscape that this software did not write; then none
    of them is removed. Killed in the middle, the same command goes on.

    Parameters
    ----------
    run
        The run folder or URL.
    names
        The landscapes; `landscape status RUN` lists them.
    yes
        Do not ask.
    """
    from landscape.store.results import remove_landscapes

    if not names:
        raise JobError("names: must name one landscape or more; `landscape status RUN` lists them")
    if not yes and not sys.stdin.isatty():
        raise JobError("yes: is needed where nobody can be asked; give --yes to remove without asking")
    removed = remove_landscapes(run, names, (lambda path, asked: True) if yes else _ask)
    if not removed:
        write_remark("nothing was removed")
        return FAILED
    for name in removed:
        write_remark(f"removed {flat(name)} from {flat(run)}", "removed", landscape=name)
    return DONE


def _ask(run: str, names: list[str]) -> bool:
    """Ask on stderr, as stdout carries data alone; no answer is a no."""
    from landscape.store.landscape import LandscapeStore

    stores = [LandscapeStore.find(run, name) for name in names]
    listed = [_described(name, store) for name, store in zip(names, stores, strict=True)]
    print(f"remove {', '.join(listed)} from {flat(run)}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _described(name: str, store: object) -> str:
    shape = getattr(store, "shape", ())
    return f"{flat(name)} ({' × '.join(map(str, reversed(shape)))} points)" if shape else f"{flat(name)} (half made)"
