"""Ray jobs on a real cluster of the test's own, started with `ray start` and a token: sent, cancelled, gone on with."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_commands import committed, free_port
from waiting import wait_for

import landscape
from cluster.runtime.status import run_status, validate_run
from cluster.submit.kuberay import KubeRayTarget, render
from cluster.submit.options import job_files
from cluster.submit.ray_jobs import RAYS_REMARK
from cluster.submit.submission import make_submission
from landscape.store.results import open_run

ROOT = Path(__file__).parents[3]
# With minutes of work left until a file is there.
SLOW = """
    def trouble(x, y):
        held(20, {release!r}, 6.0)
"""
BROKEN = """
    def trouble(x, y):
        if x == 1 and y == 3:
            raise ValueError("beside me: " + " ".join(sorted(os.listdir(HERE))))
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@dataclass(frozen=True)
class RayCluster:
    address: str
    token: str
    folder: Path
    environment: dict[str, str]

    def command(self, *words: object, seconds: float = 120, **changes: str) -> subprocess.CompletedProcess[str]:
        """Give a `landscape` command; whatever it says, the token is not in it."""
        ended = subprocess.run(
            [sys.executable, "-m", "cluster", *map(str, words)],
            env=self.environment | changes, capture_output=True, text=True, check=False, timeout=seconds,
        )  # fmt: skip
        assert self.token not in ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        assert not RAYS_REMARK.search(ended.stdout + ended.stderr)
        return ended


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    folder = Path(tempfile.mkdtemp(prefix="ll"))
    port, token = free_port(), secrets.token_hex(32)
    here = Path(sys.executable).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "PATH": f"{here}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
    }
    command = [
        here / "ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={free_port()}",
        f"--ray-client-server-port={free_port()}", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}",
        "--dashboard-agent-listen-port=0", f"--temp-dir={folder}", "--num-cpus=2", "--num-gpus=0",
        "--object-store-memory=100000000", "--disable-usage-stats",
    ]  # fmt: skip
    with (folder / "head.log").open("w") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert head.poll() is None, (folder / "head.log").read_text()
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=2)
        except urllib.error.HTTPError as error:
            return error.code in (401, 403)
        except OSError:
            return False
        return True

    try:
        wait_for(answers, lambda: "the dashboard does not answer")
        yield RayCluster(address, token, folder, environment)
    finally:
        head.terminate()
        head.wait(timeout=120)  # after trainings it waits for an actor of Ray's own that outlives them
        shutil.rmtree(folder, ignore_errors=True)


def test_cancelled_in_mid_run_and_sent_again_it_ends_with_the_bits_of_a_serial_run(
    ray_cluster, make_job, tmp_path_factory
):
    release = tmp_path_factory.mktemp("slow") / "no-longer"
    job = make_job(SLOW.format(release=str(release)), tile=[1])
    send = ("submit", job.folder / "job.yaml", "--address", ray_cluster.address, "--workers", 2, "--no-look")

    sent = ray_cluster.command(*send, "--detach")
    assert sent.returncode == 0, sent.stderr
    first = sent.stdout.strip()
    assert first.startswith("landscape-run-")
    assert first.endswith("-1")
    again = ray_cluster.command(*send)
    assert again.returncode == 1
    assert f"ing as {first}" in again.stderr  # pending or running

    # From here on the identifier alone says where.
    wait_for(lambda: committed(job.run_path) >= 5, lambda: ray_cluster.command("logs", first).stdout)
    status = ray_cluster.command("status", first)
    assert status.stdout.startswith(f"job {first} on ray at {ray_cluster.address}: RUNNING since "), status.stderr
    assert f"\nrun {job.run_path}\nplane  running" in status.stdout

    cancelled = ray_cluster.command("cancel", first)
    assert (cancelled.returncode, cancelled.stdout) == (0, f"{first} stopped\n"), cancelled.stderr
    done = committed(job.run_path)
    assert 5 <= done < 63
    assert run_status(job.run_path)["landscapes"][0]["state"] == "interrupted"
    assert validate_run(job.run_path)["damaged"] == 0
    told = json.loads(ray_cluster.command("status", first, "--json").stdout)
    assert (told["job"]["state"], told["job"]["exit_code"]) == ("STOPPED", 130)
    assert told["run"]["landscapes"][0]["done"] == done
    log = ray_cluster.command("logs", first, "--follow")
    assert log.returncode == 130
    assert "the same command goes on" in log.stdout

    release.touch()
    resumed = ray_cluster.command(*send)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == f"{first[:-1]}2\n"
    assert f"{done}/63 points" in resumed.stderr.replace(f"{done + 1}/63", f"{done}/63")
    found, expected = open_run(job.run_path)["plane"], landscape.run(make_job(run="undisturbed"))["plane"]
    for name in expected.observables:
        assert found[name].tobytes() == expected[name].tobytes(), name
    assert not any(ray_cluster.token.encode() in path.read_bytes() for path in Path(job.run_path).rglob("*.json"))

    record = found.record
    assert record.provenance.sent_from == str(job.folder)
    assert not Path(record.provenance.folder).is_relative_to(job.folder)


def test_the_exit_code_is_the_jobs_and_the_cluster_holds_what_was_listed(ray_cluster, make_job, tmp_path_factory):
    job = make_job(BROKEN)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "private.txt"
    elsewhere.write_text("mine")
    (job.folder / "link").symlink_to(elsewhere)
    (job.folder / ".env").write_text("KEY=1")
    listed = ray_cluster.command("submit", job.folder / "job.yaml", "--dry-run")
    ended = ray_cluster.command("submit", job.folder / "job.yaml", "--address", ray_cluster.address, "--name", "broken")
    assert ended.returncode == 4, ended.stderr
    assert "given up" in ended.stderr
    assert "not sent with the job: .env (may hold secrets); link (links that leave the folder)" in ended.stderr
    (failure,) = run_status(job.run_path)["landscapes"][0]["failures"]
    there = failure["cause"].partition("beside me: ")[2].split()
    files = set(json.loads(listed.stdout)["files"])
    written = {"points.log", "devices.log", "__pycache__"}  # there, by the workers
    assert files <= set(there) <= files | written, failure


def mount(config_map: dict[str, Any], volume: dict[str, Any], folder: Path) -> None:
    """Lay a ConfigMap out as a kubelet does: files in a dated folder, a link to it, links to the files through that."""
    content = {key: text.encode() for key, text in config_map["data"].items()}
    content |= {key: base64.b64decode(text) for key, text in config_map["binaryData"].items()}
    (folder / "..2026_11_20").mkdir(parents=True)
    (folder / "..data").symlink_to("..2026_11_20")
    for item in volume["configMap"]["items"]:
        (folder / "..2026_11_20" / item["path"]).write_bytes(content[item["key"]])
        (folder / item["path"]).symlink_to(f"..data/{item['path']}")


def test_what_kuberay_would_start_runs_from_the_links_of_a_config_map(ray_cluster, make_job, tmp_path):
    job = make_job()
    submission = make_submission(job, job.folder / "job.yaml", job.run_path, workers=2)
    files = job_files(job, job.folder / "job.yaml")
    config_map, ray_job = yaml.safe_load_all(render(submission, files, KubeRayTarget(image="i", claim="c"), "2.60.0"))
    pod = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    mount(config_map, pod["volumes"][0], tmp_path / "mounted")
    entrypoint = shlex.split(ray_job["spec"]["entrypoint"].replace("/job/", f"{tmp_path}/mounted/"))
    environment = json.dumps(yaml.safe_load(ray_job["spec"]["runtimeEnvYAML"]))
    # The submitter's pod gives this command.
    command = [Path(sys.executable).parent / "ray", "job", "submit", f"--address={ray_cluster.address}"]
    ended = subprocess.run(
        [*command, f"--runtime-env-json={environment}", "--", *entrypoint],
        env=ray_cluster.environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert committed(job.run_path) == 63


def test_what_goes_wrong_has_a_code_and_one_line(ray_cluster, make_job):
    job = make_job().folder / "job.yaml"
    at = ("--address", ray_cluster.address)
    for words, changes, code, said in [
        (("logs", "landscape-no-00000000-1", *at), {}, 3, "no job 'landscape-no-00000000-1' at"),
        (("submit", job, *at), {"RAY_AUTH_TOKEN": "f" * 64}, 5, "refuses the token"),
        (("submit", job, *at), {"RAY_AUTH_MODE": "disabled"}, 5, "RAY_AUTH_MODE=token"),
    ]:
        ended = ray_cluster.command(*words, **changes)
        assert ended.returncode == code, ended.stderr
        assert said in ended.stderr
        assert len(ended.stderr.strip().splitlines()) <= 2, ended.stderr
        assert ended.stdout == ""


TRAINING = """
import torch


def train(training, epochs: int = 1):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    network, done = training.prepare(model), training.resume(model=model, optimizer=optimizer)
    for epoch in range(done.get("epoch", 0), epochs):
        for share in training.batches(4, 2, epoch):
            loss = network(torch.ones(len(share.index), 2)).mean() * share.weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            training.mean(loss)
        training.keep(model=model, optimizer=optimizer, epoch=epoch + 1)
    print("trained", __file__)
"""


@pytest.mark.timeout(600)
def test_a_training_that_is_sent_ships_its_module_to_the_ranks(ray_cluster, tmp_path):
    (tmp_path / "sent_training.py").write_text(TRAINING)
    words = ("train", "sent_training:train", "--folder", tmp_path, "--run", tmp_path / "run", "--workers", 2)
    send = ("--epochs", 2, "--target", "ray", "--address", ray_cluster.address)
    ended = ray_cluster.command(*words, *send, seconds=250)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("landscape-run-")
    assert "epoch 2 of 2: loss " in ended.stderr
    assert "2 epochs, 4 steps" in ended.stderr  # the job's own stdout, as its log follows on stderr
    for rank in range(2):
        log = ray_cluster.command("logs", tmp_path / "run", "--rank", rank).stdout
        assert f"rank {rank} of 2 starts" in log
        assert "working_dir_files" in log.splitlines()[-1]
    again = ray_cluster.command(*words, *send, seconds=250)
    assert again.stdout == f"{ended.stdout.strip()[:-1]}2\n"
    assert "nothing was left to do" in again.stderr
