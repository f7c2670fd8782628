"""Clusters of several nodes on which faults are caused, and the run without faults that is the reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import landscape
from landscape.job.job import Job
from landscape.job.reading import read_job
from landscape.store.results import open_run
from landscape.surface.surface import OK, Surface

# Ray notices a dead node after 15 s by default; here after about 1 s. One that only is slow to answer has 10 s.
FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 2,
}

NODES = """
import json, logging, os, signal, sys, threading, time
from contextlib import ExitStack
from pathlib import Path

sys.path.append({support!r})
import psutil, ray
from ray.cluster_utils import Cluster
from warm_workers import warm_workers

from cluster.runtime.session import without_services

small = ExitStack()
small.enter_context(warm_workers())
small.enter_context(without_services())

# Nodes join from threads here, where Python allows no signal handlers.
ray._private.utils.set_sigterm_handler = lambda handler: None
HERE = Path({folder!r})
nodes = Cluster(
    initialize_head=True, head_node_args={{"num_cpus": 0, "include_dashboard": False, "_system_config": {fast!r}}}
)
extra = [nodes.add_node(num_cpus={cpus}) for _ in range({nodes})]
nodes.wait_for_nodes()
import cluster


def kill_node(node):
    nodes.remove_node(node, allow_graceful=False)


{body}
try:
    nodes.shutdown()
except Exception:
    pass
print(json.dumps(told))
"""
JOB = """
from cluster.driver.schedule import Policy
from landscape.job.reading import read_job
from landscape.store.results import open_run

job = read_job(HERE / "job.yaml")


def committed():
    try:
        return int((open_run(job.run_path)["plane"].status == 1).sum())
    except LookupError:
        return 0


def when(points, act):
    def wait():
        while committed() < points:
            time.sleep(0.05)
        act()
        time.sleep(3600)  # a node dies with the thread that started it
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


class Marks(logging.StreamHandler):
    # Shows what is said, and leaves a file when a worker goes.
    def emit(self, record):
        super().emit(record)
        for words, name in (("is lost", "noticed"), ("leaves with its node", "left")):
            if words in record.getMessage():
                (HERE / name).touch()


logging.getLogger("landscape").addHandler(Marks())

{body}
told = open_run(job.run_path)["plane"].attributes["progress"]
"""


def disturbed(job: Job, body: str, ray_folder: Path, nodes: int = 2, cpus: int = 2) -> dict[str, object]:
    """Run a script against a cluster of its own, in a process of its own; the landscape's progress at the end."""
    return on_nodes(JOB.format(body=textwrap.dedent(body)), job.folder, ray_folder, nodes, cpus)


def on_nodes(body: str, folder: Path, ray_folder: Path, nodes: int, cpus: int) -> dict[str, object]:
    """Run a script in a process of its own that has started a cluster; what it leaves in `told`, and its stderr.

    Args:
        body: knows the folder as HERE, the cluster as `nodes`, those beside its head as `extra`, and `kill_node`.
    """
    text = NODES.format(
        folder=str(folder), support=str(Path(__file__).parent), fast=FAST, nodes=nodes, cpus=cpus, body=body
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text],
        env={**os.environ, "RAY_TMPDIR": str(ray_folder)}, capture_output=True, text=True, timeout=270, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    return dict(json.loads(found.stdout.strip().splitlines()[-1]), stderr=found.stderr)


def undisturbed(job: Job) -> Surface:
    """The reference, computed serially by a problem without trouble."""
    calm = job.folder / "my_problem.py"
    text = calm.read_text()
    calm.write_text(text.replace("        trouble(x, y)\n", ""))
    sys.modules.pop("my_problem", None)
    try:
        return landscape.run(read_job(job.folder / "job.yaml").replace(run="calm"))["plane"]
    finally:
        calm.write_text(text)


def assert_undisturbed(job: Job) -> Surface:
    found, expected = open_run(job.run_path)["plane"], undisturbed(job)
    for name in ("loss", "loss_stderr"):
        assert found[name].tobytes() == expected[name].tobytes(), name
    assert (found.status == OK).all()
    return found
