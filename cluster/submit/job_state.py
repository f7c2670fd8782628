"""What a cluster says of a job, in the same form for every target."""

from __future__ import annotations

from typing import Any

from landscape.core.errors import flat


def job_state(identifier: str, target: str, place: str, state: str, **fields: Any) -> dict[str, Any]:
    """The state of a job, with the keys that `--json` prints.

    Args:
        place: the address, or the namespace.
        fields: the other keys: since, exit_code, entrypoint, message, run.
    """
    texts = {name: flat(str(fields.pop(name, "") or "")) for name in ("entrypoint", "message", "run")}
    known = {"id": identifier, "target": target, "place": place, "state": flat(state).upper() or "UNKNOWN"}
    return known | fields | texts
