"""Where a job can be sent, each target with its options.

A dataclass is a group of the command's help, and a field's docstring is its help. Only the chosen target loads what it
needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cluster.options import MaybeNumber, MaybeWhole, Whole
from cluster.process.logs import as_json, say, say_lines
from landscape.errors import Interrupted, JobError, shown

if TYPE_CHECKING:
    from cluster.shipping.listing import Listing
    from cluster.submit.common import Submission
    from cluster.submit.kuberay import KubeRayOptions
    from landscape.spec import Job

Flag = Annotated[bool, Parameter(negative="")]
Words = Annotated[list[str] | None, Parameter(negative="")]


@dataclass(frozen=True)
class What:
    """What is sent, to any target."""

    dry_run: Flag = False
    """Print exactly what would be sent, and send nothing. No cluster is asked."""
    name: str | None = None
    """Part of the identifier; default: the run's last part."""
    run: str | None = None
    """The run instead of the file's: a folder that the cluster sees, or a URL."""
    attempt: MaybeWhole = None
    """The number in the identifier; default: the first that is free, 1 in a dry run."""
    workers: MaybeWhole = None
    """How many workers evaluate; kuberay: one pod each."""
    gpus_per_worker: MaybeNumber = None
    """GPUs of each worker."""
    cpus_per_worker: MaybeWhole = None
    """kuberay, slurm: CPU cores of each worker; default: the job's threads, 2 with a GPU."""
    memory: str | None = None
    """slurm: memory of a node, kuberay: of a worker, such as 16G and 16Gi."""
    include: Words = None
    """ray, kuberay: a further file or folder beside the job that travels; may be repeated."""
    no_look: Flag = False
    """Send without trying out the callback here; for one that needs what only the cluster has."""

    def of_job(self, target: str, job: Job) -> What:
        """With what the job file says of workers; a driver on a Ray cluster reads it there itself."""
        if target == "ray":
            return self
        return replace(
            self,
            workers=job.workers if self.workers is None else self.workers,
            gpus_per_worker=job.num_gpus if self.gpus_per_worker is None else self.gpus_per_worker,
        )

    def look(self, job: Job, file: Path, run: str, listing: Listing | None = None) -> None:
        """Try out the job here, and compare what its callback opens with what travels (no listing: all is there).

        Raises:
            JobError: it would fail on the cluster.
        """
        from cluster.submit.look import compare, look

        if self.no_look:
            return
        seen = look(job, file, run)
        for each in (*seen.remarks, *(compare(seen, listing, run) if listing is not None else ())):
            say(each, "look")

    def submission(self, job: Job, file: Path, place: str) -> Submission:
        """The job under its name, its run at `place`."""
        from cluster.submit.common import make_submission

        number = 1 if self.attempt is None else self.attempt
        made = make_submission(job, file, place, self.name, number, self.workers, self.gpus_per_worker)
        return replace(made, log_format="json" if as_json() else "text")

    def cpus(self, job: Job) -> int:
        """A worker without a GPU fills its cores; one with a GPU needs a second one to feed it."""
        if self.cpus_per_worker is not None:
            return self.cpus_per_worker
        return 2 if self.gpus_per_worker else job.threads or 1


@dataclass(frozen=True)
class ToRay:
    """A Ray cluster that is there, through its dashboard."""

    address: str | None = None
    """The dashboard's URL; default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, http://127.0.0.1:8265."""
    detach: Flag = False
    """End when the job is accepted."""
    allow_open: Flag = False
    """Also send to a cluster that is not on this machine and asks for no token."""

    def send(self, what: What, job: Job, file: Path) -> int:
        from cluster.submit import ray_jobs
        from cluster.submit.common import folder_listing
        from cluster.submit.remembered import SentJob, remember

        submission = what.submission(job, file, job.run_path)
        listing = folder_listing(job, file, submission.run, what.include or ())
        tell_files(listing, what.dry_run)
        if what.dry_run:
            what.look(job, file, submission.run, listing)
            print(json.dumps(ray_jobs.render(submission, listing), indent=2))
            return 0
        client = ray_jobs.connect(self.address, self.allow_open)
        if what.attempt is None:
            number = ray_jobs.next_attempt(submission.base, ray_jobs.attempts(client))
            submission = replace(submission, attempt=number)
        what.look(job, file, submission.run, listing)
        identifier = ray_jobs.send(client, ray_jobs.render(submission, listing), listing)
        address = ray_jobs.dashboard_address(self.address)
        remember(identifier, SentJob("ray", submission.run, address, allow_open=self.allow_open))
        print(identifier, flush=True)
        if self.detach:
            say(f"sent; see landscape logs {identifier} --follow, or end it with landscape cancel {identifier}")
            return 0
        return watched(identifier, lambda: ray_jobs.follow(client, identifier, write_error))


@dataclass(frozen=True)
class ToSlurm:
    """Slurm, through sbatch."""

    nodes: Whole = 1
    """Over how many nodes the workers are spread."""
    time: str | None = None
    """The time limit of one allocation; at its end the job is requeued and goes on."""
    partition: str | None = None
    """The partition."""
    account: str | None = None
    """The account."""
    setup: str | None = None
    """A line of shell that makes `landscape` available, such as 'source venv/bin/activate'."""

    def send(self, what: What, job: Job, file: Path) -> int:
        from cluster.submit import slurm
        from cluster.submit.common import refuse_missing_files
        from cluster.submit.remembered import SentJob, remember

        refuse_missing_files(job)
        submission = what.submission(job, file, job.run_path)
        options = slurm.SlurmOptions(
            self.nodes, what.cpus(job), self.time, self.partition, self.account, what.memory, self.setup
        )
        script = slurm.render(submission, options)
        if what.include:
            raise JobError("include: nothing travels to Slurm, whose nodes read the job's folder itself; leave it out")
        if what.dry_run:
            say(f"nothing travels: the nodes read {shown(str(job.folder))} itself, and must see it under this name")
        what.look(job, file, submission.run)
        if what.dry_run:
            sys.stdout.write(script)
            return 0
        number = slurm.send(script)
        log = Path(f"{submission.base}-{number}.log").absolute()
        remember(number, SentJob("slurm", submission.run, log=str(log)))
        print(number, flush=True)
        say(f"sent; follow it with: tail -F {submission.base}-{number}.log; stop it with: scancel {number}")
        return 0


@dataclass(frozen=True)
class ToKubeRay:
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

    def send(self, what: What, job: Job, file: Path) -> int:
        from cluster.submit import kuberay
        from cluster.submit.common import folder_listing
        from cluster.submit.remembered import SentJob, remember

        place = kuberay.run_on_cluster(what.run or job.run, self.claim, self.mount)
        options = self._options(what, job)
        listing = folder_listing(job, file, job.run_path, what.include or ())
        files = kuberay.job_files(job, file, what.include or (), listing)
        submission = what.submission(job, file, place)
        manifest = kuberay.render(submission, files, options)
        carried = listing.only(files, kuberay.NOT_CARRIED)
        tell_files(carried, what.dry_run)
        what.look(job, file, place, carried)
        if what.dry_run:
            sys.stdout.write(manifest)
            return 0
        if what.attempt is None:
            submission = replace(submission, attempt=kuberay.free_attempt(submission, self.namespace))
            manifest = kuberay.render(submission, files, options)
        say(kuberay.send(manifest, self.namespace))
        remember(submission.id, SentJob("kuberay", submission.run, namespace=self.namespace or ""))
        print(submission.id, flush=True)
        say(
            f"follow it with: kubectl logs -f job/{submission.id}; "
            f"remove it with: kubectl delete rayjob,configmap -l app.kubernetes.io/instance={submission.id}"
        )
        return 0

    def _options(self, what: What, job: Job) -> KubeRayOptions:
        from importlib.metadata import version

        from cluster.submit import kuberay

        if self.image is None:
            raise JobError(
                "image: is required here: a container image with this system; deploy/Containerfile builds it"
            )
        return kuberay.KubeRayOptions(
            image=self.image,
            ray_version=version("ray"),
            claim=self.claim,
            mount=self.mount,
            secret=self.secret,
            namespace=self.namespace,
            queue=self.queue,
            cpus_per_worker=what.cpus(job),
            memory_per_worker=what.memory or "8Gi",
            head_selector=kuberay.parse_selector(self.head_selector),
            worker_selector=kuberay.parse_selector(self.worker_selector),
            worker_tolerations=kuberay.parse_tolerations(self.worker_toleration),
        )


def tell_files(listing: Listing, everything: bool) -> None:
    """What travels and what stays: file by file, or in a line what somebody might miss."""
    from cluster.shipping.listing import listing_lines, omitted_line

    lines = listing_lines(listing) if everything else [omitted_line(listing)]
    for line in filter(None, lines):
        say(line, "files")


def watched(identifier: str, follow: Callable[[], int]) -> int:
    """Ctrl-C ends the watching, not the job."""
    try:
        return follow()
    except KeyboardInterrupt:
        raise Interrupted(
            f"no longer watching; the job goes on: landscape logs {identifier} --follow, landscape cancel {identifier}"
        ) from None


def write_error(text: str) -> None:
    if as_json():
        say_lines(text, "log")
        return
    sys.stderr.write(text)
    sys.stderr.flush()
