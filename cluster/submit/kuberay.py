"""A KubeRay RayJob: spot workers, an on-demand head, token authentication, and retries that resume."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.runtime.logs import write_remark
from cluster.runtime.options import Words
from cluster.runtime.shipping import LEAVES, SentFiles, read_file
from cluster.submit.options import SubmitOptions, folder_listing, named_files, tell_files
from cluster.submit.submission import (
    DRIVER_ENVIRONMENT,
    STOP_SECONDS,
    SentJob,
    Submission,
    Work,
    command,
    first_line,
    job_state,
    next_attempt,
    remember,
    tool_missing,
)
from landscape.core.errors import ClusterUnreachableError, JobError, LandscapeError, NotFoundError, quoted

LONGEST_NAME = 47  # KubeRay appends suffixes to name pods and services, whose names have at most 63 characters
JOB_FOLDER = "/job"
RETRIES = 3  # each is a new cluster; computed parts are not computed again
KEPT_SECONDS = 600  # a finished cluster stays this long, so that its user can examine it
HEAD_CPUS, HEAD_MEMORY = 2, "8Gi"
WORKER_MEMORY = "8Gi"  # unless --memory is given
USER = 1000  # of the image in deploy/Containerfile
BASE_LABEL = "landscape/job"


@dataclass(frozen=True)
class KubeRayTarget:
    """A Kubernetes cluster with KubeRay, through kubectl."""

    image: str | None = None
    """The container image (deploy/Containerfile builds it)."""
    claim: str | None = None
    """The PersistentVolumeClaim that the run lies on."""
    mount: str = "/runs"
    """Where the claim is mounted."""
    secret: str | None = None
    """A Secret for the head's environment, such as a bucket's credentials."""
    namespace: str | None = None
    """The namespace."""
    queue: str | None = None
    """A Kueue LocalQueue."""
    head_selector: Words = None
    """key=value of the nodes that the head may use; may be repeated."""
    worker_selector: Words = None
    """key=value of the (spot) nodes that workers use; may be repeated."""
    worker_toleration: Words = None
    """key[=value][:Effect], a taint of those nodes; may be repeated."""

    def send(self, asked: SubmitOptions, job: Work, file: Path) -> int:
        """Send the job, or with --dry-run print the manifest; returns the exit code."""
        from importlib.metadata import version  # here, since `--help` imports this file too

        place = run_on_cluster(asked.run or job.run, self.claim, self.mount)
        if self.image is None:
            raise JobError(
                "image: is required here: a container image with this system; deploy/Containerfile builds it"
            )
        listing = folder_listing(job, file, job.run_path, asked.include or ())
        files = job_files(job, file, asked.include or (), listing)
        submission = asked.submission(job, file, place)
        manifest = render(submission, files, self, version("ray"))
        carried = listing.only(files, NOT_CARRIED)
        tell_files(carried, asked.dry_run)
        asked.look(job, file, place, carried)
        if asked.dry_run:
            sys.stdout.write(manifest)
            return 0
        if asked.attempt is None:
            submission = replace(submission, attempt=free_attempt(submission, self.namespace))
            manifest = render(submission, files, self, version("ray"))
        write_remark(send(manifest, self.namespace))
        remember(submission.id, SentJob("kuberay", submission.run, namespace=self.namespace or ""))
        print(submission.id, flush=True)
        write_remark(
            f"follow it with: kubectl logs -f job/{submission.id}; "
            f"remove it with: kubectl delete rayjob,configmap -l app.kubernetes.io/instance={submission.id}"
        )
        return 0


def parse_selector(given: list[str] | None) -> dict[str, str]:
    """`key=value` texts as a node selector.

    Raises:
        JobError: one of them is not of this form.
    """
    labels = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise JobError(f"selector: must be key=value, a label of the nodes, not {quoted(text)}")
        labels[key] = value
    return labels


def parse_tolerations(given: list[str] | None) -> tuple[dict[str, str], ...]:
    """`key`, `key=value` or either with `:Effect`, as kubectl writes taints."""
    tolerations = []
    for text in given or []:
        taint, _, effect = text.partition(":")
        key, equals, value = taint.partition("=")
        if not key or effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise JobError(
                f"toleration: must be key[=value][:NoSchedule|PreferNoSchedule|NoExecute], a taint of the nodes, "
                f"not {quoted(text)}"
            )
        match = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
        tolerations.append({"key": key, **match, **({"effect": effect} if effect else {})})
    return tuple(tolerations)


def run_on_cluster(run: str, claim: str | None, mount: str) -> str:
    """The place of the run as the head sees it: a URL, or a folder on the claim, which is mounted at `mount`.

    Raises:
        JobError: the run would be lost with the pods.
    """
    if "://" in run and not run.startswith("file://"):
        return run
    if claim is None:
        raise JobError(
            f"run: {quoted(run)} would lie in a pod and be lost with it; give a volume with --claim, or a URL with "
            "--run"
        )
    path = Path(run.removeprefix("file://"))
    if not path.is_absolute():
        return str(Path(mount) / path.name)
    if not path.is_relative_to(mount):
        raise JobError(
            f"run: {quoted(run)} lies outside the claim's mount {quoted(mount)}; "
            f"give --run {mount}/{path.name} or --mount"
        )
    return str(path)


def _config_map(submission: Submission, files: Mapping[str, bytes], target: KubeRayTarget) -> dict[str, Any]:
    """The ConfigMap with the job's files. Its keys have no slashes; a volume gives each file its path."""
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
        "metadata": _metadata(submission, target),
        **({"data": text} if text else {}),
        **({"binaryData": binary} if binary else {}),
    }


def _key(name: str, files: Mapping[str, bytes]) -> str:
    """The key of a file: letters, digits, '.', '-' and '_'; a file with another name gets a number."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    return name if plain.isascii() and plain.isalnum() else f"file-{list(files).index(name)}"


def render(submission: Submission, files: Mapping[str, bytes], target: KubeRayTarget, ray_version: str) -> str:
    """Two documents, the job's files and the RayJob, for `kubectl apply -f -`.

    Raises:
        JobError: Kubernetes would refuse an option.
    """
    _check(submission)
    return _yaml_text([_config_map(submission, files, target), _ray_job(submission, files, target, ray_version)])


def _yaml_text(documents: Sequence[Any]) -> str:
    """Documents as YAML: texts of several lines as blocks, so that a person can read the files; no anchors."""
    import yaml  # only here: the help of every command would wait for it

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, block)
    return yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=1000)


def _check(submission: Submission) -> None:
    if len(submission.id) > LONGEST_NAME:
        raise JobError(
            f"name: {quoted(submission.id)} has {len(submission.id)} characters, KubeRay takes {LONGEST_NAME}"
        )
    if submission.workers is None:
        raise JobError("workers: KubeRay must be told how many pods; say --workers N, or workers: in the job file")
    gpus = submission.gpus_per_worker or 0
    if gpus != int(gpus):
        raise JobError(f"gpus_per_worker: a pod has whole GPUs, not {gpus:g}")


def _metadata(submission: Submission, target: KubeRayTarget) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/name": "landscape",
        "app.kubernetes.io/instance": submission.id,
        BASE_LABEL: submission.base,
    }
    return {
        "name": submission.id,
        **({"namespace": target.namespace} if target.namespace else {}),
        "labels": labels,
    }


def _ray_job(
    submission: Submission, files: Mapping[str, bytes], target: KubeRayTarget, ray_version: str
) -> dict[str, Any]:
    metadata = _metadata(submission, target)
    if target.queue:
        metadata["labels"] = metadata["labels"] | {"kueue.x-k8s.io/queue-name": target.queue}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "entrypoint": shlex.join(command(submission, f"{JOB_FOLDER}/{submission.file}")),
            "runtimeEnvYAML": _yaml_text([{"env_vars": DRIVER_ENVIRONMENT}]),
            "backoffLimit": RETRIES,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "rayClusterSpec": {
                "rayVersion": ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": _head(submission, files, target),
                "workerGroupSpecs": [_workers(submission, files, target)],
            },
        },
    }


def _head(submission: Submission, files: Mapping[str, bytes], target: KubeRayTarget) -> dict[str, Any]:
    """The head, which holds the driver and the cluster's state: on a node that is not preempted, without workers."""
    volumes, mounts = _volumes(submission, files, target)
    container: dict[str, Any] = {
        "name": "ray-head",
        "image": target.image,
        "resources": _resources(HEAD_CPUS, HEAD_MEMORY, 0),
        "volumeMounts": mounts,
    }
    if target.secret:
        container["envFrom"] = [{"secretRef": {"name": target.secret}}]
    pod = _pod(container, volumes, parse_selector(target.head_selector), ()) | {
        "terminationGracePeriodSeconds": STOP_SECONDS + 30
    }
    return {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": pod}}


def _volumes(
    submission: Submission, files: Mapping[str, bytes], target: KubeRayTarget
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes with the job's files and the run, and their mounts in a container."""
    items = [{"key": _key(name, files), "path": name} for name in files]
    volumes: list[dict[str, Any]] = [{"name": "job", "configMap": {"name": submission.id, "items": items}}]
    mounts: list[dict[str, Any]] = [{"name": "job", "mountPath": JOB_FOLDER, "readOnly": True}]
    if target.claim:
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": target.claim}})
        mounts.append({"name": "runs", "mountPath": target.mount})
    return volumes, mounts


def _workers(submission: Submission, files: Mapping[str, bytes], target: KubeRayTarget) -> dict[str, Any]:
    """The workers' pods, which may be preempted at any moment. The driver sends them everything that they need.

    Only the ranks of a training import its module themselves, and write the run.
    """
    gpus = int(submission.gpus_per_worker or 0)
    volumes: list[dict[str, Any]] = []
    container: dict[str, Any] = {
        "name": "ray-worker",
        "image": target.image,
        "resources": _resources(submission.cpus_per_worker, submission.memory or WORKER_MEMORY, gpus),
    }
    if submission.training is not None:
        volumes, container["volumeMounts"] = _volumes(submission, files, target)
        if target.secret:
            container["envFrom"] = [{"secretRef": {"name": target.secret}}]
    tolerations = parse_tolerations(target.worker_toleration)
    if gpus:
        tolerations = (*tolerations, {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    return {
        "groupName": "workers",
        "replicas": submission.workers,
        "minReplicas": 0,
        "maxReplicas": submission.workers,
        "rayStartParams": {},
        "template": {"spec": _pod(container, volumes, parse_selector(target.worker_selector), tolerations)},
    }


def _resources(cpus: int, memory: str, gpus: int) -> dict[str, Any]:
    """Requests equal to limits, so that the kernel does not end this pod first when memory is short."""
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
        # The callback does not need the Kubernetes API.
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"nodeSelector": dict(selector)} if selector else {}),
        **({"tolerations": [dict(toleration) for toleration in tolerations]} if tolerations else {}),
        "containers": [container | {"securityContext": guarded}],
        **({"volumes": volumes} if volumes else {}),
    }


LARGEST_FILES = 900_000  # bytes in a ConfigMap, which holds 1 MiB with its names
NOT_CARRIED = "not in a ConfigMap, which holds the Python files and what the job names or --include adds"


def job_files(job: Work, file: Path, include: Iterable[str] = (), listing: SentFiles | None = None) -> dict[str, bytes]:
    """The files in the ConfigMap: the job file, the folder's Python files, those that the job names or --include adds.

    The other files of the folder stay out, since manifests are kept and shown where those files do not belong.

    Raises:
        JobError: they are larger than a ConfigMap may be.
    """
    from landscape.model.packed_file import names_a_file, onnx_files

    listing = listing or folder_listing(job, file, job.run_path, include)
    packed = [str(job.problem)] if names_a_file(job.problem) else onnx_files(str(job.problem))
    asked = {os.path.normpath(path) for path in (*named_files(job), *packed, *include)}
    package = str(job.problem).partition(":")[0].partition(".")[0]

    def carried(name: str) -> bool:
        top, _, below = name.partition("/")
        python = name.endswith(".py") and (not below or top == package)
        return name == file.name or python or any(name == folder or name.startswith(f"{folder}/") for folder in asked)

    for name, why in sorted(listing.omitted.items()):
        if why == LEAVES and name.endswith(".py") and "/" not in name:
            raise JobError(f"job: {quoted(name)} is a link that leaves the job file's folder; copy in what it names")
    chosen = {name: file for name, file in sorted(listing.files.items()) if carried(name)}
    size = sum(file.size for file in chosen.values())
    if size > LARGEST_FILES:
        largest = max(chosen.values(), key=lambda file: file.size)
        raise JobError(
            f"job: its files hold {size} bytes, a ConfigMap at most {LARGEST_FILES} ({quoted(largest.name)} alone "
            f"{largest.size}); put large ones on the claim or in the image and name them by absolute paths"
        )
    root = listing.folder.resolve()
    return {name: read_file(file, root) for name, file in chosen.items()}


# RayJob's names for the ways in which a job ends → those of Ray's jobs.
DEPLOYMENT_ENDED = {"Complete": "SUCCEEDED", "Failed": "FAILED", "ValidationFailed": "FAILED"}


def free_attempt(submission: Submission, namespace: str | None) -> int:
    """The first attempt without a RayJob in this cluster: Kubernetes would take a second one of its name for the first.

    Raises:
        LandscapeError: an earlier attempt has not ended.
    """
    found = json.loads(
        ask("get", "rayjobs.ray.io", "-l", f"{BASE_LABEL}={submission.base}", "-o", "json", namespace=namespace)
    )
    return next_attempt(
        submission.base,
        {
            item["metadata"]["name"]: DEPLOYMENT_ENDED.get(
                item.get("status", {}).get("jobDeploymentStatus", ""), "RUNNING"
            )
            for item in found.get("items", [])
        },
    )


def send(manifest: str, namespace: str | None) -> str:
    """Run `kubectl apply -f -`; returns its output."""
    return ask("apply", "-f", "-", namespace=namespace, text=manifest)


def ask(*words: str, namespace: str | None, text: str | None = None) -> str:
    """Run kubectl; returns its standard output.

    Raises:
        ClusterUnreachableError, NotFoundError, LandscapeError: kubectl fails, or is not installed here.
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


def kuberay_state(identifier: str, known: SentJob) -> dict[str, Any]:
    """The state of a RayJob, by kubectl.

    Raises:
        LandscapeError: kubectl fails, or does not answer with a RayJob.
    """
    answer = ask("get", "rayjobs.ray.io", identifier, "-o", "json", namespace=known.namespace or None)
    try:
        found = json.loads(answer)
        status = found.get("status", {})
    except (ValueError, AttributeError):
        raise LandscapeError(f"status: kubectl answers something else than a RayJob: {quoted(answer)}") from None
    state = status.get("jobStatus") or status.get("jobDeploymentStatus") or "PENDING"
    since = status.get("endTime") or status.get("startTime") or found.get("metadata", {}).get("creationTimestamp")
    return job_state(
        identifier, "kuberay", known.namespace, str(state), since=since,
        entrypoint=found.get("spec", {}).get("entrypoint", ""), message=status.get("message"),
        exit_code=None,
    )  # fmt: skip
