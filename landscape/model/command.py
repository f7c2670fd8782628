"""The command that goes through a network at a point of a landscape, as a shell takes it."""

from __future__ import annotations

import shlex


def inspect_command(run: str, name: str, axes: int | None = None) -> str:
    """`landscape inspect` of a landscape.

    Args:
        axes: how many it has, to go through the network at their origin; None leaves the point to the command.

    >>> inspect_command("runs/mine", "minimum", 2)
    'landscape inspect runs/mine minimum --at=0,0'
    """
    at = [] if axes is None else [f"--at={','.join('0' * axes)}"]
    return shlex.join(["landscape", "inspect", run, name, *at])
