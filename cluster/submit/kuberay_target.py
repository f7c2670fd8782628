"""`landscape submit --target kuberay`: its options, and the sending."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.runtime.logs import write_remark
from cluster.runtime.options import Words
from cluster.submit.options import SubmitOptions, tell_files
from landscape.core.errors import JobError

if TYPE_CHECKING:
    from cluster.submit.kuberay_options import KubeRayOptions
    from cluster.submit.work import Work


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
        """Send the job, or with --dry-run print the manifest; the exit code."""
        from cluster.submit.checks import folder_listing
        from cluster.submit.files import NOT_CARRIED, job_files
        from cluster.submit.kubectl import free_attempt, send
        from cluster.submit.kuberay import render
        from cluster.submit.kuberay_options import run_on_cluster
        from cluster.submit.sent_jobs import SentJob, remember

        place = run_on_cluster(asked.run or job.run, self.claim, self.mount)
        options = self._options(asked, job)
        listing = folder_listing(job, file, job.run_path, asked.include or ())
        files = job_files(job, file, asked.include or (), listing)
        submission = asked.submission(job, file, place)
        manifest = render(submission, files, options)
        carried = listing.only(files, NOT_CARRIED)
        tell_files(carried, asked.dry_run)
        asked.look(job, file, place, carried)
        if asked.dry_run:
            sys.stdout.write(manifest)
            return 0
        if asked.attempt is None:
            submission = replace(submission, attempt=free_attempt(submission, self.namespace))
            manifest = render(submission, files, options)
        write_remark(send(manifest, self.namespace))
        remember(submission.id, SentJob("kuberay", submission.run, namespace=self.namespace or ""))
        print(submission.id, flush=True)
        write_remark(
            f"follow it with: kubectl logs -f job/{submission.id}; "
            f"remove it with: kubectl delete rayjob,configmap -l app.kubernetes.io/instance={submission.id}"
        )
        return 0

    def _options(self, asked: SubmitOptions, job: Work) -> KubeRayOptions:
        from importlib.metadata import version

        from cluster.submit.kuberay_options import KubeRayOptions, parse_selector, parse_tolerations

        if self.image is None:
            raise JobError(
                "image: is required here: a container image with this system; deploy/Containerfile builds it"
            )
        return KubeRayOptions(
            image=self.image,
            ray_version=version("ray"),
            claim=self.claim,
            mount=self.mount,
            secret=self.secret,
            namespace=self.namespace,
            queue=self.queue,
            cpus_per_worker=asked.cpus(job),
            memory_per_worker=asked.memory or "8Gi",
            head_selector=parse_selector(self.head_selector),
            worker_selector=parse_selector(self.worker_selector),
            worker_tolerations=parse_tolerations(self.worker_toleration),
        )
