"""What a job leaves on Ray's metrics port: each metric that deploy/ reads, with labels, exact, and gone afterwards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import ClassVar

import pytest

from cluster.driver import pool
from cluster.driver.pool import Metrics

# The names as they stand in the source; the dashboard's own test reads them too.
NAMES = set(re.findall(r'"(landscape_\w+)"', Path(pool.__file__).read_text()))


class RecordedGauge:
    """A gauge that keeps the last value of each set of labels."""

    values: ClassVar[dict[tuple[str, frozenset[tuple[str, str]]], float]] = {}

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self._name, self._keys = name, tag_keys

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert set(tags) == set(self._keys)
        self.values[self._name, frozenset(tags.items())] = value


@pytest.fixture
def gauges(monkeypatch):
    """What has been set of the metrics of one run by one user: (name, landscape, le) → value."""
    monkeypatch.setattr(pool, "Gauge", RecordedGauge)
    monkeypatch.setattr(RecordedGauge, "values", {})

    def read() -> dict[tuple[str, str, str], float]:
        read: dict[tuple[str, str, str], float] = {}
        for (name, items), value in RecordedGauge.values.items():
            labels = dict(items)
            assert (labels["run"], labels["user"]) == ("s3://bucket/run", "ada")
            read[name.removeprefix("landscape_"), labels.get("landscape", ""), labels.get("le", "")] = value
        return read

    return read


def test_each_landscape_has_its_own_exact_totals(gauges):
    metrics = Metrics("s3://bucket/run", "ada")
    for seconds in (0.1, 0.25, 7.0, 2000.0):
        metrics.committed("minimum", 16, seconds)
    metrics.committed("line", 5, 1.5)
    metrics.failed("line")
    metrics.publish(waiting=3, workers=2)
    values = gauges()
    assert values["tiles_total", "minimum", ""] == values["tile_seconds_count", "minimum", ""] == 4
    assert (values["points_total", "minimum", ""], values["points_total", "line", ""]) == (64, 5)
    assert (values["failures_total", "minimum", ""], values["failures_total", "line", ""]) == (0, 1)
    assert values["tile_seconds_sum", "minimum", ""] == 2007.35  # and not what its buckets suggest
    within = [values["tile_seconds_bucket", "minimum", le] for le in ("0.1", "0.3", "3", "10", "1000", "+Inf")]
    assert within == [1, 2, 2, 3, 3, 4]
    assert (values["queue", "", ""], values["workers", "", ""]) == (3, 2)


def test_a_run_of_any_name_is_a_label_that_ray_takes():
    metrics = Metrics("/scratch/übung/\udcff", "zoë")  # with the gauges of Ray itself
    metrics.committed("minimum", 16, 0.1)
    metrics.publish(waiting=3, workers=2)


SCRIPT = """
import json, re, socket, time, urllib.request
from ray.cluster_utils import Cluster

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
head = Cluster(initialize_head=True, head_node_args=dict(
    num_cpus=2, include_dashboard=False, metrics_export_port=port, object_store_memory=100_000_000,
    _system_config={{"metrics_report_interval_ms": 1000}},
))
import cluster
from landscape.job.reading import read_job

def read():
    text = urllib.request.urlopen(f"http://127.0.0.1:{{port}}/metrics", timeout=5).read().decode()
    return [line for line in text.splitlines() if line.startswith("ray_landscape")]

job = read_job({job!r})
cluster.run(job, workers=2, address=head.address)
found, labels = {{}}, set()
for line in read():  # at once: what a job that is shorter than a report leaves is there when it ends
    name, _, rest = line.partition("{{")
    of_line = dict(re.findall(r'(run|user|landscape|le)="(.*?)"', rest))
    if of_line.get("le", "+Inf") == "+Inf":
        found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    labels.add((of_line.get("run") == job.run_path, of_line.get("user"), of_line.get("landscape")))
end = time.monotonic() + 60
while read() and time.monotonic() < end:
    time.sleep(1)
left = read()
head.shutdown()
print(json.dumps([found, sorted(labels, key=str), left]))
"""


@pytest.mark.slow
def test_a_real_job_exports_every_metric_with_its_labels_and_takes_them_with_it(make_job, ray_folder):
    assert len(NAMES) == 8
    job = make_job(
        """
        def trouble(x, y):
            if x == 1 and y == 3:
                raise ValueError("this point is wrong")
    """,
        tile=[1],
    )
    script = textwrap.dedent(SCRIPT).format(job=str(job.folder / "job.yaml"))
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "RAY_TMPDIR": str(ray_folder), "LOGNAME": "ada"}, capture_output=True, text=True,
        check=False, timeout=200,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found, labels, left = json.loads(ended.stdout.splitlines()[-1])
    assert set(found) == {f"ray_{name}" for name in NAMES}
    assert found["ray_landscape_points_total"] == found["ray_landscape_tiles_total"] == 62
    assert found["ray_landscape_tile_seconds_count"] == found["ray_landscape_tile_seconds_bucket"] == 62
    assert found["ray_landscape_failures_total"] == 1
    (name,) = {landscape for _, _, landscape in labels if landscape}
    assert labels == [[True, "ada", name], [True, "ada", None]]
    assert left == []
