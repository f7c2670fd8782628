"""`landscape validate`: whether every chunk of a run is sound."""

from __future__ import annotations

from cluster.commands.output import Json, show
from landscape.core.errors import DONE, FAILED


def validate(run: str, *, json: Json = False) -> int:
    """Read every chunk; check schema, checksums and digests. Exit code 1 where something is damaged.

    Parameters
    ----------
    run
        The run folder or URL.
    """
    from cluster.runtime.status import validate_run, validation_text

    found = validate_run(run)
    show(found, json, validation_text(found))
    return FAILED if found["damaged"] else DONE
