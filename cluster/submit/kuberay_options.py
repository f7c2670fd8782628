"""What a Kubernetes cluster decides, and how it is written on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from landscape.core.errors import JobError, shown


@dataclass(frozen=True)
class KubeRayOptions:
    """What a Kubernetes cluster decides. One worker is one pod.

    Attributes:
        claim: a PersistentVolumeClaim (ReadWriteOnce suffices: only the head writes), mounted at `mount`.
        secret: a Secret whose keys become the head's environment, such as the credentials of the run's bucket.
        worker_selector, worker_tolerations: where spot machines are, as their labels and taints say.
        queue: a Kueue LocalQueue.
    """

    image: str
    ray_version: str
    claim: str | None = None
    mount: str = "/runs"
    secret: str | None = None
    namespace: str | None = None
    queue: str | None = None
    cpus_per_worker: int = 2
    memory_per_worker: str = "8Gi"
    head_cpus: int = 2
    head_memory: str = "8Gi"
    head_selector: Mapping[str, str] = field(default_factory=dict)
    worker_selector: Mapping[str, str] = field(default_factory=dict)
    worker_tolerations: tuple[Mapping[str, str], ...] = ()


def parse_selector(given: list[str] | None) -> dict[str, str]:
    """`key=value` texts as a node selector.

    Raises:
        JobError: one of them is not of this form.
    """
    found = {}
    for each in given or []:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise JobError(f"selector: must be key=value, a label of the nodes, not {shown(each)}")
        found[key] = value
    return found


def parse_tolerations(given: list[str] | None) -> tuple[dict[str, str], ...]:
    """`key`, `key=value` or either with `:Effect`, as kubectl writes taints."""
    found = []
    for each in given or []:
        taint, _, effect = each.partition(":")
        key, equals, value = taint.partition("=")
        if not key or effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise JobError(
                f"toleration: must be key[=value][:NoSchedule|PreferNoSchedule|NoExecute], a taint of the nodes, "
                f"not {shown(each)}"
            )
        match = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
        found.append({"key": key, **match, **({"effect": effect} if effect else {})})
    return tuple(found)


def run_on_cluster(run: str, claim: str | None, mount: str) -> str:
    """Where the run lies for the head: a URL as it is, a relative folder on the claim, an absolute one below `mount`.

    Raises:
        JobError: it would be lost with the pods.
    """
    if "://" in run and not run.startswith("file://"):
        return run
    if claim is None:
        raise JobError(
            f"run: {shown(run)} would lie in a pod and be lost with it; give a volume with --claim, or a URL with --run"
        )
    path = Path(run.removeprefix("file://"))
    if not path.is_absolute():
        return str(Path(mount) / path.name)
    if not path.is_relative_to(mount):
        raise JobError(
            f"run: {shown(run)} lies outside the claim's mount {shown(mount)}; "
            f"give --run {mount}/{path.name} or --mount"
        )
    return str(path)
