"""A KubeRay RayJob: spot workers, an on-demand head, token authentication, retries that go on where one stopped."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import yaml

from cluster.submit.kuberay_options import KubeRayOptions
from cluster.submit.submission import DRIVER_ENVIRONMENT, STOP_SECONDS, Submission, command, quoted
from landscape.core.errors import JobError, shown

LONGEST_NAME = 47  # KubeRay adds suffixes to make the names of pods and services, which hold 63
JOB_FOLDER = "/job"
RETRIES = 3  # each is a new cluster; what is done is not done again
KEPT_SECONDS = 600  # a finished cluster stays this long, to be looked at
USER = 1000  # of the image in deploy/Containerfile
BASE_LABEL = "landscape/job"


def _config_map(submission: Submission, files: Mapping[str, bytes], options: KubeRayOptions) -> dict[str, Any]:
    """Text stays readable; keys have no slashes, so a volume gives each its path."""
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    for name, content in files.items():
        try:
            text[_key(name, files)] = content.decode()
        except UnicodeDecodeError:
            binary[_key(name, files)] = base64.b64encode(content).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(submission, options),
        **({"data": text} if text else {}),
        **({"binaryData": binary} if binary else {}),
    }


def _key(name: str, files: Mapping[str, bytes]) -> str:
    """A ConfigMap's keys are letters, digits, '.', '-' and '_': other names are numbered."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    return name if plain.isascii() and plain.isalnum() else f"file-{list(files).index(name)}"


def render(submission: Submission, files: Mapping[str, bytes], options: KubeRayOptions) -> str:
    """Two documents, the job's files and the RayJob, for `kubectl apply -f -`.

    Raises:
        JobError: options that Kubernetes would refuse.
    """
    _check(submission, options)
    documents = [_config_map(submission, files, options), _ray_job(submission, files, options)]
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, so that a person can read the files; no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def _check(submission: Submission, options: KubeRayOptions) -> None:
    if len(submission.id) > LONGEST_NAME:
        raise JobError(
            f"name: {shown(submission.id)} has {len(submission.id)} characters, KubeRay takes {LONGEST_NAME}"
        )
    if submission.workers is None:
        raise JobError("workers: KubeRay must be told how many pods; say --workers N, or workers: in the job file")
    gpus = submission.gpus_per_worker or 0
    if gpus != int(gpus):
        raise JobError(f"gpus_per_worker: a pod has whole GPUs, not {gpus:g}")
    for name, value in (("cpus_per_worker", options.cpus_per_worker), ("head_cpus", options.head_cpus)):
        if value < 1:
            raise JobError(f"{name}: must be at least 1, not {value}")


def _metadata(submission: Submission, options: KubeRayOptions) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/name": "landscape",
        "app.kubernetes.io/instance": submission.id,
        BASE_LABEL: submission.base,
    }
    return {
        "name": submission.id,
        **({"namespace": options.namespace} if options.namespace else {}),
        "labels": labels,
    }


def _ray_job(submission: Submission, files: Mapping[str, bytes], options: KubeRayOptions) -> dict[str, Any]:
    metadata = _metadata(submission, options)
    if options.queue:
        metadata["labels"] = metadata["labels"] | {"kueue.x-k8s.io/queue-name": options.queue}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "entrypoint": quoted(command(submission, f"{JOB_FOLDER}/{submission.file}")),
            "runtimeEnvYAML": yaml.safe_dump({"env_vars": DRIVER_ENVIRONMENT}),
            "backoffLimit": RETRIES,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "rayClusterSpec": {
                "rayVersion": options.ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": _head(submission, files, options),
                "workerGroupSpecs": [_workers(submission, files, options)],
            },
        },
    }


def _head(submission: Submission, files: Mapping[str, bytes], options: KubeRayOptions) -> dict[str, Any]:
    """The head holds the driver and the cluster's state: on a machine that is not taken away, and without workers."""
    volumes, mounts = _volumes(submission, files, options)
    container: dict[str, Any] = {
        "name": "ray-head",
        "image": options.image,
        "resources": _resources(options.head_cpus, options.head_memory, 0),
        "volumeMounts": mounts,
    }
    if options.secret:
        container["envFrom"] = [{"secretRef": {"name": options.secret}}]
    pod = _pod(container, volumes, options.head_selector, ()) | {"terminationGracePeriodSeconds": STOP_SECONDS + 30}
    return {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": pod}}


def _volumes(
    submission: Submission, files: Mapping[str, bytes], options: KubeRayOptions
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes with the job's files and the run, and where a container mounts them."""
    items = [{"key": _key(name, files), "path": name} for name in files]
    volumes: list[dict[str, Any]] = [{"name": "job", "configMap": {"name": submission.id, "items": items}}]
    mounts: list[dict[str, Any]] = [{"name": "job", "mountPath": JOB_FOLDER, "readOnly": True}]
    if options.claim:
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": options.claim}})
        mounts.append({"name": "runs", "mountPath": options.mount})
    return volumes, mounts


def _workers(submission: Submission, files: Mapping[str, bytes], options: KubeRayOptions) -> dict[str, Any]:
    """The workers' pods, which may be taken away at any moment. They need only what the driver sends them.

    The ranks of a training import its module themselves, and write the run.
    """
    gpus = int(submission.gpus_per_worker or 0)
    volumes: list[dict[str, Any]] = []
    container: dict[str, Any] = {
        "name": "ray-worker",
        "image": options.image,
        "resources": _resources(options.cpus_per_worker, options.memory_per_worker, gpus),
    }
    if submission.training is not None:
        volumes, container["volumeMounts"] = _volumes(submission, files, options)
        if options.secret:
            container["envFrom"] = [{"secretRef": {"name": options.secret}}]
    tolerations = options.worker_tolerations
    if gpus:
        tolerations = (*tolerations, {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    return {
        "groupName": "workers",
        "replicas": submission.workers,
        "minReplicas": 0,
        "maxReplicas": submission.workers,
        "rayStartParams": {},
        "template": {"spec": _pod(container, volumes, options.worker_selector, tolerations)},
    }


def _resources(cpus: int, memory: str, gpus: int) -> dict[str, Any]:
    """Requests equal to limits: a pod that is short of memory is not the one that the kernel ends first."""
    amounts: dict[str, Any] = {"cpu": str(cpus), "memory": memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {"requests": amounts, "limits": amounts}


def _pod(
    container: dict[str, Any],
    volumes: list[dict[str, Any]],
    selector: Mapping[str, str],
    tolerations: tuple[Mapping[str, str], ...],
) -> dict[str, Any]:
    guarded = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        # The callback needs nothing of Kubernetes.
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"nodeSelector": dict(selector)} if selector else {}),
        **({"tolerations": [dict(each) for each in tolerations]} if tolerations else {}),
        "containers": [container | {"securityContext": guarded}],
        **({"volumes": volumes} if volumes else {}),
    }
