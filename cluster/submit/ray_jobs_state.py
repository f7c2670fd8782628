"""What a Ray cluster says of a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from cluster.submit.attempts import ENDED
from cluster.submit.job_state import job_state
from cluster.submit.jobs import info, outcome
from cluster.submit.sent_jobs import plain_address


def ray_state(client: Any, identifier: str) -> dict[str, Any]:
    """The state of a job, asked of its dashboard."""
    found = info(client, identifier)
    state = str(found.status.value)
    moment = found.end_time if state in ENDED else found.start_time
    since = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="seconds") if moment else None
    return job_state(
        identifier, "ray", plain_address(client.get_address()), state, since=since,
        entrypoint=found.entrypoint, message=found.message,
        exit_code=outcome(found) if state in ENDED else None,
        run=(found.metadata or {}).get("run", ""),
    )  # fmt: skip
