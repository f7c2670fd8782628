"""A KubeRay RayJob: spot workers, an on-demand head, token authentication, and retries that resume."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.runtime.logs import write_remark
from cluster.runtime.options import Whole, Words
from cluster.submit.manifest import merge, read_patch, yaml_text
from cluster.submit.options import NOT_CARRIED, SubmitOptions, folder_listing, job_files, tell_files
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
from landscape.core.errors import ClusterUnreachableError, JobError, LandscapeError, NotFoundError, message_of, quoted

OLDEST_KUBERAY = "1.5.1"  # has authOptions
LONGEST_NAME = 47  # KubeRay appends suffixes to name pods and services, whose names have at most 63 characters
JOB_FOLDER = "/job"
RETRIES = 3  # each is a new cluster; computed parts are not computed again
WORKER_MEMORY = "8Gi"  # unless --memory is given
SUBMITTER_CPUS, SUBMITTER_MEMORY = "500m", "1Gi"  # it runs `ray job submit`, and prints the driver's log
NVIDIA = "nvidia.com/gpu"
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
    head_cpus: Whole = 2
    """CPU cores of the head, which runs the driver."""
    head_memory: str = "8Gi"
    """Memory of the head."""
    gpu_resource: str = NVIDIA
    """The resource that a GPU of a worker is, such as nvidia.com/mig-1g.10gb or amd.com/gpu."""
    keep_cluster: Whole = 0
    """Seconds for which the pods stay after the job, with their GPUs, to be examined; its log stays in any case."""
    pull_secret: Words = None
    """A Secret with which images are pulled; may be repeated."""
    service_account: str | None = None
    """The service account of all pods."""
    priority_class: str | None = None
    """The priority class of all pods."""
    runtime_class: str | None = None
    """The runtime class of the workers, such as nvidia."""
    pod_env: Words = None
    """NAME=VALUE for the head and the workers; may be repeated. Keys belong in a --secret."""
    pod_volume: Words = None
    """CLAIM:FOLDER[:ro], a further PersistentVolumeClaim of the head and the workers; may be repeated."""
    rayjob_patch: Path | None = None
    """A YAML file that is merged into the RayJob, for whatever else the site demands."""

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
        kinds = "rayjob" if own_files(submission.id, self.namespace) else "rayjob,configmap"
        where = f" --namespace {self.namespace}" if self.namespace else ""
        write_remark(
            f"follow it with: kubectl logs -f job/{submission.id}{where}; "
            f"remove it with: kubectl delete {kinds} -l app.kubernetes.io/instance={submission.id}{where}"
        )
        return 0


NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
LABEL = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
KEY, VALUE = rf"({NAME}/)?{LABEL}", rf"({LABEL})?"
AMOUNT = r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?"


def parse_selector(given: list[str] | None, option: str = "selector") -> dict[str, str]:
    """`key=value` texts as a node selector.

    Raises:
        JobError: one of them is not of this form, or two have one key.
    """
    labels: dict[str, str] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not (equals and re.fullmatch(KEY, key) and re.fullmatch(VALUE, value)):
            raise JobError(f"{option}: must be key=value, a label of the nodes, not {quoted(text)}")
        if key in labels:
            raise JobError(
                f"{option}: must name {quoted(key)} once, not also {quoted(text)}: a node has one value of it"
            )
        labels[key] = value
    return labels


def parse_tolerations(given: list[str] | None) -> tuple[dict[str, str], ...]:
    """`key`, `key=value` or either with `:Effect`, as kubectl writes taints."""
    tolerations = []
    for text in given or []:
        taint, colon, effect = text.partition(":")
        key, equals, value = taint.partition("=")
        is_taint = re.fullmatch(KEY, key) and re.fullmatch(VALUE, value)
        if not is_taint or (colon and effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute")):
            raise JobError(
                f"worker_toleration: must be key[=value][:NoSchedule|PreferNoSchedule|NoExecute], a taint of the "
                f"nodes, not {quoted(text)}"
            )
        match = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
        tolerations.append({"key": key, **match, **({"effect": effect} if effect else {})})
    return tuple(tolerations)


def parse_environment(given: list[str] | None) -> list[dict[str, str]]:
    """`NAME=VALUE` texts as a container's environment.

    Raises:
        JobError: one of them is not of this form, or two have one name.
    """
    variables: dict[str, str] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise JobError(f"pod_env: must be NAME=VALUE, not {quoted(text)}")
        if name in variables:
            raise JobError(f"pod_env: must give {name} once, not also {quoted(text)}")
        variables[name] = value
    return [{"name": name, "value": value} for name, value in variables.items()]


def parse_volumes(given: list[str] | None, taken: Sequence[str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """`CLAIM:FOLDER` and `CLAIM:FOLDER:ro` texts as volumes of a pod, each with its mount in the container.

    Args:
        taken: folders where something else is mounted.

    Raises:
        JobError: one of them is not of this form, or two have one folder.
    """
    volumes = []
    folders = set(map(os.path.normpath, taken))
    for number, text in enumerate(given or [], 1):
        parts = re.fullmatch(r"([a-z0-9][a-z0-9.-]*):(/[^:]*[^:/])(:ro)?", text)
        if parts is None:
            raise JobError(f"pod_volume: must be CLAIM:FOLDER or CLAIM:FOLDER:ro, not {quoted(text)}")
        claim, folder, read_only = parts.groups()
        if os.path.normpath(folder) in folders:
            raise JobError(f"pod_volume: {quoted(folder)} is the folder of another volume; name another one")
        folders.add(os.path.normpath(folder))
        name = f"volume-{number}"
        mount = {"name": name, "mountPath": folder, **({"readOnly": True} if read_only else {})}
        volumes.append(({"name": name, "persistentVolumeClaim": {"claimName": claim}}, mount))
    return volumes


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
    _check(submission, target)
    ray_job = _ray_job(submission, files, target, ray_version)
    if target.rayjob_patch is not None:
        ray_job = merge(ray_job, read_patch(target.rayjob_patch))
    return yaml_text([_config_map(submission, files, target), ray_job])


def _check(submission: Submission, target: KubeRayTarget) -> None:
    if len(submission.id) > LONGEST_NAME:
        raise JobError(
            f"name: {quoted(submission.id)} has {len(submission.id)} characters, KubeRay takes {LONGEST_NAME}"
        )
    if submission.workers is None:
        raise JobError("workers: KubeRay must be told how many pods; say --workers N, or workers: in the job file")
    gpus = submission.gpus_per_worker or 0
    if gpus != int(gpus):
        raise JobError(f"gpus_per_worker: a pod has whole GPUs, not {gpus:g}")
    if target.head_cpus < 1:
        raise JobError(f"head_cpus: must be at least 1, not {target.head_cpus}")
    if target.keep_cluster < 0:
        raise JobError(f"keep_cluster: must be 0 or more seconds, not {target.keep_cluster}")
    if not re.fullmatch(rf"{NAME}/{LABEL}", target.gpu_resource):
        raise JobError(
            f"gpu_resource: must be the name of a resource, such as {NVIDIA}, not {quoted(target.gpu_resource)}"
        )
    _refuse_malformed(submission, target)


NAMES = (
    "claim", "secret", "namespace", "queue", "pull_secret", "service_account", "priority_class", "runtime_class",
)  # fmt: skip


def _refuse_malformed(submission: Submission, target: KubeRayTarget) -> None:
    """Refuse texts that Kubernetes would refuse, some of them only when it makes the pods."""
    for option in NAMES:
        given = getattr(target, option)
        for text in given if isinstance(given, list) else [given]:
            if text is not None and not re.fullmatch(NAME, text):
                raise JobError(
                    f"{option}: must be a name in Kubernetes, of lower-case letters, digits, '-' and '.', "
                    f"not {quoted(text)}; mend it, or leave it out"
                )
    for option, amount in (("head_memory", target.head_memory), ("memory", submission.memory)):
        if amount is not None and not re.fullmatch(AMOUNT, amount):
            raise JobError(f"{option}: must be an amount such as 16Gi, not {quoted(amount)}")
    if target.image is not None and not re.fullmatch(r"\S+", target.image):
        raise JobError(f"image: must be the name of a container image, not {quoted(target.image)}")
    mount = os.path.normpath(target.mount)
    if mount not in (target.mount, target.mount[:-1]) or not os.path.isabs(mount) or mount == JOB_FOLDER:
        raise JobError(
            f"mount: must be an absolute folder other than {JOB_FOLDER}, where the job's files are, "
            f"not {quoted(target.mount)}"
        )


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
            "runtimeEnvYAML": yaml_text([{"env_vars": DRIVER_ENVIRONMENT | submission.environment}]),
            "backoffLimit": RETRIES,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": target.keep_cluster,
            "submitterPodTemplate": {"spec": _submitter(target)},
            "rayClusterSpec": {
                "rayVersion": ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": _head(submission, files, target),
                "workerGroupSpecs": [_workers(submission, files, target)],
            },
        },
    }


def _submitter(target: KubeRayTarget) -> dict[str, Any]:
    """The pod that runs `ray job submit`, the command that KubeRay gives it; a restricted namespace refuses its own."""
    amounts = {"cpu": SUBMITTER_CPUS, "memory": SUBMITTER_MEMORY}
    container = {"name": "ray-job-submitter", "image": target.image, "resources": _resources(amounts)}
    return _pod(target, container, parse_selector(target.head_selector, "head_selector")) | {"restartPolicy": "Never"}


def _head(submission: Submission, files: Mapping[str, bytes], target: KubeRayTarget) -> dict[str, Any]:
    """The head, which holds the driver and the cluster's state: on a node that is not preempted, without workers."""
    volumes, mounts = _volumes(submission, files, target, with_run=True)
    amounts = {"cpu": str(target.head_cpus), "memory": target.head_memory}
    container = {
        "name": "ray-head",
        "image": target.image,
        "resources": _resources(amounts),
        "volumeMounts": mounts,
        **_environment(target, with_secret=True),
    }
    pod = _pod(target, container, parse_selector(target.head_selector, "head_selector"), volumes) | {
        "terminationGracePeriodSeconds": STOP_SECONDS + 30
    }
    return {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": pod}}


def _volumes(
    submission: Submission, files: Mapping[str, bytes], target: KubeRayTarget, *, with_run: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes of a pod, and their mounts in its container.

    Args:
        with_run: whether the job's files and the run are among them.
    """
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if with_run:
        items = [{"key": _key(name, files), "path": name} for name in files]
        volumes.append({"name": "job", "configMap": {"name": submission.id, "items": items}})
        mounts.append({"name": "job", "mountPath": JOB_FOLDER, "readOnly": True})
        if target.claim:
            volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": target.claim}})
            mounts.append({"name": "runs", "mountPath": target.mount})
    for volume, mount in parse_volumes(target.pod_volume, (JOB_FOLDER, target.mount)):
        volumes.append(volume)
        mounts.append(mount)
    return volumes, mounts


def _environment(target: KubeRayTarget, *, with_secret: bool) -> dict[str, Any]:
    """The fields of a container that give it its environment."""
    variables = parse_environment(target.pod_env)
    secret = [{"secretRef": {"name": target.secret}}] if target.secret and with_secret else []
    return {**({"env": variables} if variables else {}), **({"envFrom": secret} if secret else {})}


def _workers(submission: Submission, files: Mapping[str, bytes], target: KubeRayTarget) -> dict[str, Any]:
    """The workers' pods, which may be preempted at any moment. The driver sends them everything that they need.

    Only the ranks of a training import its module themselves, and write the run.
    """
    gpus = int(submission.gpus_per_worker or 0)
    trains = submission.training is not None
    volumes, mounts = _volumes(submission, files, target, with_run=trains)
    amounts = {"cpu": str(submission.cpus_per_worker), "memory": submission.memory or WORKER_MEMORY}
    container = {
        "name": "ray-worker",
        "image": target.image,
        "resources": _resources(amounts | ({target.gpu_resource: str(gpus)} if gpus else {})),
        **({"volumeMounts": mounts} if mounts else {}),
        **_environment(target, with_secret=trains),
    }
    tolerations = parse_tolerations(target.worker_toleration)
    if gpus:
        # Parts of a GPU are on nodes with the taint of whole ones.
        taint = NVIDIA if target.gpu_resource.startswith("nvidia.com/") else target.gpu_resource
        tolerations = (*tolerations, {"key": taint, "operator": "Exists", "effect": "NoSchedule"})
    pod = _pod(target, container, parse_selector(target.worker_selector, "worker_selector"), volumes, tolerations)
    return {
        "groupName": "workers",
        "replicas": submission.workers,
        "minReplicas": 0,
        "maxReplicas": submission.workers,
        # Earlier versions of KubeRay tell Ray only of resources whose names end in "gpu".
        "rayStartParams": {"num-gpus": str(gpus)} if gpus else {},
        "template": {"spec": pod | ({"runtimeClassName": target.runtime_class} if target.runtime_class else {})},
    }


def _resources(amounts: Mapping[str, str]) -> dict[str, Any]:
    """Requests equal to limits, so that the kernel does not end this pod first when memory is short."""
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _pod(
    target: KubeRayTarget,
    container: Mapping[str, Any],
    selector: Mapping[str, str],
    volumes: Sequence[Mapping[str, Any]] = (),
    tolerations: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """A pod that a namespace with the restricted security standard admits."""
    guarded = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    fields = {
        "serviceAccountName": target.service_account,
        "priorityClassName": target.priority_class,
        "imagePullSecrets": [{"name": name} for name in target.pull_secret or []],
        "nodeSelector": dict(selector),
        "tolerations": [dict(toleration) for toleration in tolerations],
    }
    return {
        # The callback does not need the Kubernetes API.
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **{name: value for name, value in fields.items() if value},
        "containers": [{**container, "securityContext": guarded}],
        **({"volumes": list(volumes)} if volumes else {}),
    }


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
    """Run `kubectl apply -f -`; returns its output.

    Raises:
        LandscapeError: it fails; if KubeRay is too old, says so.
    """
    try:
        return ask("apply", "-f", "-", namespace=namespace, text=manifest)
    except LandscapeError as error:
        if "authOptions" in str(error):
            raise LandscapeError(
                f"kuberay: this cluster's KubeRay knows no authOptions, with which Ray asks for a token; "
                f"it must be {OLDEST_KUBERAY} or later"
            ) from error
        raise


def own_files(identifier: str, namespace: str | None) -> bool:
    """Make the RayJob the owner of the ConfigMap with its files, which Kubernetes then removes with it.

    Returns:
        Whether it is; if not, a line says why.
    """
    try:
        uid = ask("get", "rayjobs.ray.io", identifier, "-o", "jsonpath={.metadata.uid}", namespace=namespace)
        owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": identifier, "uid": uid}
        patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
        ask("patch", "configmap", identifier, "--type=merge", "-p", patch, namespace=namespace)
    except LandscapeError as error:
        write_remark(f"the ConfigMap {identifier} will outlive its RayJob: {message_of(error)}")
        return False
    return True


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
