"""What is asked of a Kubernetes cluster through kubectl."""

from __future__ import annotations

import json
import shutil
import subprocess

from cluster.submit.attempts import next_attempt
from cluster.submit.kuberay import BASE_LABEL
from cluster.submit.submission import Submission, first_line, tool_missing
from landscape.core.errors import ClusterUnreachableError, LandscapeError, NotFoundError

# RayJob's own words for an end, in those of Ray's jobs.
DEPLOYMENT_ENDED = {"Complete": "SUCCEEDED", "Failed": "FAILED", "ValidationFailed": "FAILED"}


def free_attempt(submission: Submission, namespace: str | None) -> int:
    """The first attempt that no RayJob of this cluster has had; Kubernetes would take a second one for the first.

    Raises:
        LandscapeError: an earlier one has not ended.
    """
    found = json.loads(
        ask("get", "rayjobs.ray.io", "-l", f"{BASE_LABEL}={submission.base}", "-o", "json", namespace=namespace)
    )
    return next_attempt(
        submission.base,
        {
            each["metadata"]["name"]: DEPLOYMENT_ENDED.get(
                each.get("status", {}).get("jobDeploymentStatus", ""), "RUNNING"
            )
            for each in found.get("items", [])
        },
    )


def send(manifest: str, namespace: str | None) -> str:
    """`kubectl apply -f -`; what kubectl said."""
    return ask("apply", "-f", "-", namespace=namespace, text=manifest)


def ask(*words: str, namespace: str | None, text: str | None = None) -> str:
    """What kubectl answers.

    Raises:
        ClusterUnreachableError, NotFoundError, LandscapeError: it does not, or there is no kubectl here.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise tool_missing("kubectl", "kuberay")
    where = ["--namespace", namespace] if namespace else []
    found = subprocess.run([kubectl, *where, *words], input=text, capture_output=True, text=True, check=False)
    if found.returncode:
        if "(NotFound)" in found.stderr:
            raise NotFoundError(f"kuberay: kubectl {words[0]} fails: {first_line(found.stderr)}")
        unreachable = "connect to the server" in found.stderr or "connection" in found.stderr
        kind = ClusterUnreachableError if unreachable else LandscapeError
        raise kind(f"kuberay: kubectl {words[0]} fails: {first_line(found.stderr)}")
    return found.stdout.strip()
