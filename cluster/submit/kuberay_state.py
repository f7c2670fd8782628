"""What Kubernetes says of a RayJob."""

from __future__ import annotations

import json
from typing import Any

from cluster.submit.job_state import job_state
from cluster.submit.kubectl import ask
from cluster.submit.sent_jobs import SentJob
from landscape.core.errors import LandscapeError, shown


def kuberay_state(identifier: str, known: SentJob) -> dict[str, Any]:
    """The state of a RayJob, asked through kubectl.

    Raises:
        LandscapeError: kubectl fails, or answers something else.
    """
    answer = ask("get", "rayjobs.ray.io", identifier, "-o", "json", namespace=known.namespace or None)
    try:
        found = json.loads(answer)
        status = found.get("status", {})
    except (ValueError, AttributeError):
        raise LandscapeError(f"status: kubectl answers something else than a RayJob: {shown(answer)}") from None
    state = status.get("jobStatus") or status.get("jobDeploymentStatus") or "PENDING"
    since = status.get("endTime") or status.get("startTime") or found.get("metadata", {}).get("creationTimestamp")
    return job_state(
        identifier, "kuberay", known.namespace, str(state), since=since,
        entrypoint=found.get("spec", {}).get("entrypoint", ""), message=status.get("message"),
        exit_code=None,
    )  # fmt: skip
