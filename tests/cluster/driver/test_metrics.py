"""What a real job leaves on Ray's metrics port: every metric, under the name that deploy/ reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cluster.driver import pool

# The names as they stand in the source; the dashboard's own test reads them too.
NAMES = set(re.findall(r'"(landscape_\w+)"', Path(pool.__file__).read_text()))

SCRIPT = """
import json, socket, sys, time, urllib.request
import ray

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
ray.init(
    address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
    _metrics_export_port=port, _system_config={{"metrics_report_interval_ms": 500}}, object_store_memory=100_000_000,
)
import cluster
from landscape.job.reading import read_job

cluster.run(read_job({job!r}), workers=2)
wanted, found, end = set({names!r}), {{}}, time.monotonic() + 100
# Every worker reports its own at its own time, so the sums are there after the names.
sums = ("ray_landscape_points_total", "ray_landscape_tiles_total", "ray_landscape_tile_seconds_count")
while not (wanted <= set(found) and all(found[each] >= 62 for each in sums)) and time.monotonic() < end:
    time.sleep(0.5)
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{{port}}/metrics", timeout=5).read().decode()
    except OSError:
        continue
    found = {{}}
    for line in text.splitlines():
        if line.startswith("ray_landscape"):
            name = line.partition("{{")[0]
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
ray.shutdown()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_real_job_exports_every_metric_under_the_name_that_the_dashboard_reads(make_job, ray_folder):
    assert len(NAMES) == 6
    # A counter appears with its first increment: one tile is given up.
    job = make_job(
        """
        def trouble(x, y):
            if x == 1 and y == 3:
                raise ValueError("this point is wrong")
    """,
        tile=[1],
    )
    names = {f"ray_{name}" for name in NAMES - {"landscape_tile_seconds"}} | {"ray_landscape_tile_seconds_bucket"}
    script = textwrap.dedent(SCRIPT).format(job=str(job.folder / "job.yaml"), names=sorted(names))
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "RAY_TMPDIR": str(ray_folder)}, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert names <= set(found), sorted(found)
    assert found["ray_landscape_points_total"] == found["ray_landscape_tiles_total"] == 62
    assert found["ray_landscape_tile_seconds_count"] == 62
    assert found["ray_landscape_failures_total"] == 1
