"""The commands that send a job to a cluster and look after it there: submit, logs, cancel."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from cluster.logs import say

if TYPE_CHECKING:
    from cluster.submit.common import Submission
    from cluster.submit.kuberay import KubeRayOptions
    from cluster.submit.slurm import SlurmOptions
    from landscape.spec import Job

Flag = Annotated[bool, Parameter(negative="")]
Words = Annotated[list[str] | None, Parameter(negative="")]
Target = Literal["ray", "kuberay", "slurm"]


def register(app: App) -> None:
    """Give the commands to the application."""
    for each in (submit, logs, cancel):
        app.command(each)


def submit(
    job: Path,
    *,
    target: Target = "ray",
    dry_run: Flag = False,
    detach: Flag = False,
    address: str | None = None,
    name: str | None = None,
    run: str | None = None,
    attempt: int | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: int | None = None,
    allow_open: Flag = False,
    nodes: int = 1,
    time: str | None = None,
    partition: str | None = None,
    account: str | None = None,
    memory: str | None = None,
    setup: str | None = None,
    image: str | None = None,
    claim: str | None = None,
    mount: str = "/runs",
    secret: str | None = None,
    namespace: str | None = None,
    queue: str | None = None,
    include: Words = None,
    head_selector: Words = None,
    worker_selector: Words = None,
    worker_toleration: Words = None,
) -> int:
    """Send a job to a cluster; the same command again goes on where an earlier one stopped.

    Prints the identifier of what was sent. With Ray, the log follows on stderr and the exit code is the job's.

    Parameters
    ----------
    job
        The YAML job file. Its folder goes with it.
    target
        ray: a Ray cluster's dashboard; kuberay: Kubernetes with KubeRay; slurm: sbatch.
    dry_run
        Print exactly what would be sent, and send nothing. No cluster is asked.
    detach
        ray: end when the job is accepted.
    address
        ray: the dashboard's URL; default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, http://127.0.0.1:8265.
    name
        Part of the identifier; default: the run's last part.
    run
        The run instead of the file's: a folder that the cluster sees, or a URL.
    attempt
        The number in the identifier; default: the first that is free, 1 in a dry run.
    workers
        How many workers evaluate; kuberay: one pod each.
    gpus_per_worker
        GPUs of each worker.
    cpus_per_worker
        kuberay, slurm: CPU cores of each worker; default: the job's threads, 2 with a GPU.
    allow_open
        ray: also send to a cluster that is not on this machine and asks for no token.
    nodes
        slurm: over how many nodes the workers are spread.
    time
        slurm: the time limit of one allocation; at its end the job is requeued and goes on.
    partition
        slurm: the partition.
    account
        slurm: the account.
    memory
        slurm: memory of a node, kuberay: of a worker, such as 16G and 16Gi.
    setup
        slurm: a line of shell that makes `landscape` available, such as 'source venv/bin/activate'.
    image
        kuberay: the container image (deploy/Containerfile builds it).
    claim
        kuberay: the PersistentVolumeClaim that the run lies on.
    mount
        kuberay: where the claim is mounted.
    secret
        kuberay: a Secret for the head's environment, such as a bucket's credentials.
    namespace
        kuberay: the namespace.
    queue
        kuberay: a Kueue LocalQueue.
    include
        kuberay: a further file of the job's folder; may be repeated.
    head_selector
        kuberay: key=value of the nodes that the head may use; may be repeated.
    worker_selector
        kuberay: key=value of the (spot) nodes that workers use; may be repeated.
    worker_toleration
        kuberay: key[=value][:Effect], a taint of those nodes; may be repeated.
    """
    from importlib.metadata import version

    from cluster.submit import common, kuberay, slurm
    from landscape.spec import read_job

    given = read_job(job, run=run)
    common.refuse_files_left_behind(given)

    def submission(place: str) -> Submission:
        return common.make_submission(given, job, place, name, attempt or 1, workers, gpus_per_worker)

    if attempt is not None and attempt < 1:
        common.make_submission(given, job, given.run_path, name, attempt)
    # A worker without a GPU fills its cores; one with a GPU needs a second one to feed it.
    cpus = cpus_per_worker if cpus_per_worker is not None else (2 if gpus_per_worker else given.threads or 1)
    if target == "slurm":
        options = slurm.SlurmOptions(nodes, cpus, time, partition, account, memory, setup)
        return _submit_slurm(submission(given.run_path), options, dry_run)
    if target == "kuberay":
        place = kuberay.run_on_cluster(run or given.run, claim, mount)
        pods = kuberay.KubeRayOptions(
            image=_required(image, "image", "a container image with this system; deploy/Containerfile builds it"),
            ray_version=version("ray"),
            claim=claim,
            mount=mount,
            secret=secret,
            namespace=namespace,
            queue=queue,
            cpus_per_worker=cpus,
            memory_per_worker=memory or "8Gi",
            head_selector=kuberay.parse_selector(head_selector),
            worker_selector=kuberay.parse_selector(worker_selector),
            worker_tolerations=kuberay.parse_tolerations(worker_toleration),
        )
        files = kuberay.job_files(given, job, include)
        return _submit_kuberay(submission(place), files, pods, dry_run, attempt is None)
    return _submit_ray(given, submission(given.run_path), address, allow_open, dry_run, detach, attempt is None)


def _required(value: str | None, name: str, what: str) -> str:
    from landscape.errors import JobError

    if value is None:
        raise JobError(f"{name}: is required here: {what}")
    return value


def _submit_slurm(submission: Submission, options: SlurmOptions, dry_run: bool) -> int:
    from cluster.submit import slurm

    script = slurm.render(submission, options)
    if dry_run:
        sys.stdout.write(script)
        return 0
    number = slurm.send(script)
    print(number, flush=True)
    say(f"sent; follow it with: tail -F {submission.base}-{number}.log; stop it with: scancel {number}")
    return 0


def _submit_kuberay(
    submission: Submission, files: dict[str, bytes], options: KubeRayOptions, dry_run: bool, find_attempt: bool
) -> int:
    from dataclasses import replace

    from cluster.submit import kuberay

    manifest = kuberay.render(submission, files, options)
    if dry_run:
        sys.stdout.write(manifest)
        return 0
    if find_attempt:
        submission = replace(submission, attempt=kuberay.free_attempt(submission, options.namespace))
        manifest = kuberay.render(submission, files, options)
    say(kuberay.send(manifest, options.namespace))
    print(submission.id, flush=True)
    say(
        f"follow it with: kubectl logs -f job/{submission.id}; "
        f"remove it with: kubectl delete rayjob,configmap -l app.kubernetes.io/instance={submission.id}"
    )
    return 0


def _submit_ray(
    job: Job,
    submission: Submission,
    address: str | None,
    allow_open: bool,
    dry_run: bool,
    detach: bool,
    find_attempt: bool,
) -> int:
    from dataclasses import replace

    from cluster.session import refuse_large_upload, upload_excludes
    from cluster.submit import ray_jobs

    excluded = upload_excludes(job.folder, submission.run)
    refuse_large_upload(job.folder, excluded)
    if dry_run:
        print(json_module.dumps(ray_jobs.render(submission, excluded), indent=2))
        return 0
    client = ray_jobs.connect(address, allow_open)
    if find_attempt:
        number = ray_jobs.next_attempt(submission.base, ray_jobs.attempts(client))
        submission = replace(submission, attempt=number)
    identifier = ray_jobs.send(client, ray_jobs.render(submission, excluded))
    print(identifier, flush=True)
    if detach:
        say(f"sent; see landscape logs {identifier} --follow, or end it with landscape cancel {identifier}")
        return 0
    return _watched(identifier, lambda: ray_jobs.follow(client, identifier, _write_error))


def _watched(identifier: str, follow: Callable[[], int]) -> int:
    """Ctrl-C ends the watching, not the job."""
    from landscape.errors import Interrupted

    try:
        return follow()
    except KeyboardInterrupt:
        raise Interrupted(
            f"no longer watching; the job goes on: landscape logs {identifier} --follow, landscape cancel {identifier}"
        ) from None


def logs(identifier: str, *, follow: Flag = False, address: str | None = None, allow_open: Flag = False) -> int:
    """Print the log of a job that was sent to a Ray cluster.

    Parameters
    ----------
    identifier
        What `landscape submit` printed.
    follow
        Go on until the job ends; the exit code is the job's.
    address
        The dashboard's URL; default: as for submit.
    allow_open
        Also talk to a cluster that is not on this machine and asks for no token.
    """
    from cluster.submit import ray_jobs

    client = ray_jobs.connect(address, allow_open)
    if follow:
        return _watched(identifier, lambda: ray_jobs.follow(client, identifier, _write_output))
    _write_output(ray_jobs.log_so_far(client, identifier))
    return 0


def cancel(identifier: str, *, address: str | None = None, allow_open: Flag = False) -> int:
    """Stop a job on a Ray cluster in order, and wait until it has; submitting it again goes on where it stopped.

    Parameters
    ----------
    identifier
        What `landscape submit` printed.
    address
        The dashboard's URL; default: as for submit.
    allow_open
        Also talk to a cluster that is not on this machine and asks for no token.
    """
    from cluster.submit import ray_jobs

    print(f"{identifier} {ray_jobs.cancel(ray_jobs.connect(address, allow_open), identifier).lower()}", flush=True)
    return 0


def _write_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _write_output(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
