"""What would be sent, as text kept in golden files: `LANDSCAPE_GOLDEN=write pytest` writes them anew, to be read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from kuberay_schemas import check_manifest

from cluster.runtime import address as attach
from cluster.runtime.shipping import ListedFile, SentFiles
from cluster.submit import kuberay, ray_jobs
from cluster.submit import slurm as script
from cluster.submit.kuberay import KubeRayTarget, parse_selector, parse_tolerations, run_on_cluster
from cluster.submit.ray_jobs import connect, dashboard_address, outcome
from cluster.submit.slurm import SlurmTarget
from cluster.submit.submission import SentTraining, Submission, check_name, next_attempt, plain_name
from landscape.core.errors import JobError, LandscapeError

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[3]
FILES = {
    "job.yaml": b"run: runs/resnet20\nproblem: my_problem:problem\n",
    "my_problem.py": b"from model import problem\n",
    "net/model.py": b'"""A \'quoted\' text: with #, tabs\tand \xc3\xa4."""\n',
    "d1.safetensors": bytes(range(256)),
}


LISTING = SentFiles(Path("jobs"), {name: ListedFile(name, Path(name), len(FILES[name]), 0o644) for name in FILES})


def submission(**changes: object) -> Submission:
    given = {
        "folder": Path("jobs"),
        "file": "job.yaml",
        "run": "/runs/resnet20",
        "name": "resnet20",
        "digest": "0badcafe",
    }
    return Submission(**(given | changes))


def manifest(given: Submission, files: dict[str, bytes] = FILES, **options: object) -> str:
    return kuberay.render(given, files, KubeRayTarget(image="example.org/landscape:1", **options), "2.60.0")


def kuberay_cpu() -> str:
    return manifest(submission(workers=3), claim="runs")


def kuberay_spot() -> str:
    wide = submission(run="s3://bucket/runs/resnet20", workers=16, gpus_per_worker=1.0, attempt=4, cpus_per_worker=2)
    return manifest(
        wide, secret="bucket-credentials", namespace="research", queue="gpus", head_selector=["pool=on-demand"],
        worker_selector=["cloud.google.com/gke-spot=true"],
        worker_toleration=["cloud.google.com/gke-spot=true:NoSchedule", "spot"],
    )  # fmt: skip


TRAINING = SentTraining("my_training:train", Path("trainings"), "/runs/mine", ("--epochs=20", "--name=it's mine"))
RECIPE = SentTraining("lenet-mnist", Path(), "s3://bucket/runs/lenet", ("--data=/data/mnist",))


def training(what: SentTraining = TRAINING, **changes: object) -> Submission:
    return submission(folder=what.folder, file="", run=what.run, training=what, **changes)


def kuberay_training() -> str:
    given = training(workers=2, gpus_per_worker=1.0, cpus_per_worker=2)
    return manifest(given, {"my_training.py": b"def train(training):\n    pass\n"}, claim="runs")


RENDERED = {
    "ray-training.json": lambda: json.dumps(ray_jobs.render(training(workers=2), LISTING), indent=2) + "\n",
    "ray-recipe.json": lambda: json.dumps(ray_jobs.render(training(RECIPE), SentFiles(Path())), indent=2) + "\n",
    "kuberay-training.yaml": kuberay_training,
    "slurm-training.sh": lambda: script.render(training(workers=4, gpus_per_worker=1.0), SlurmTarget(nodes=2)),
    "ray.json": lambda: json.dumps(ray_jobs.render(submission(), LISTING), indent=2) + "\n",
    "ray-awkward.json": lambda: (
        json.dumps(
            ray_jobs.render(
                submission(file="my job.yaml", run="/runs/it's $HOME", workers=2, gpus_per_worker=0.5, attempt=12),
                LISTING,
            ),
            indent=2,
        )
        + "\n"
    ),
    "kuberay-cpu.yaml": kuberay_cpu,
    "kuberay-spot.yaml": kuberay_spot,
    "slurm-one-node.sh": lambda: script.render(submission(workers=2), SlurmTarget()),
    "slurm-awkward.sh": lambda: script.render(
        submission(folder=Path("my jobs"), run="/runs/it's here", workers=4, cpus_per_worker=2),
        SlurmTarget(setup="source 'my venv/bin/activate'"),
    ),
    "slurm-gpus.sh": lambda: script.render(
        submission(workers=10, gpus_per_worker=1.0, cpus_per_worker=2, memory="64G"),
        SlurmTarget(nodes=3, time="04:00:00", partition="gpu", account="lab", setup="module load python"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RENDERED)
def test_what_would_be_sent_is_as_it_was(name):
    rendered = RENDERED[name]()
    if os.environ.get("LANDSCAPE_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_text(rendered)
    assert rendered == (GOLDEN / name).read_text()


# -- independent judges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("render", [kuberay_cpu, kuberay_spot])
def test_kuberay_accepts_the_manifest(render):
    config_map, ray_job = yaml.safe_load_all(render())
    check_manifest("rayjob", ray_job)
    assert len(ray_job["metadata"]["name"]) <= 47
    assert ray_job["spec"]["backoffLimit"] >= 3
    assert ray_job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    environment = yaml.safe_load(ray_job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert all(isinstance(value, str) for value in environment.values())
    volume = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"][0]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    held = {**config_map["data"], **config_map["binaryData"]}
    assert {each["path"]: each["key"] for each in volume["configMap"]["items"]}.keys() == FILES.keys()
    assert {each["key"] for each in volume["configMap"]["items"]} == held.keys()
    assert all(key.replace("-", "").replace("_", "").replace(".", "").isalnum() for key in held)


def test_a_wrong_manifest_is_refused_by_the_same_schema():
    _, ray_job = yaml.safe_load_all(kuberay_cpu())
    check_manifest("rayjob", ray_job)
    validators = pytest.importorskip("jsonschema")
    ray_job["spec"]["backoffLimits"] = 3
    with pytest.raises(validators.ValidationError, match="backoffLimits"):
        check_manifest("rayjob", ray_job)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck: apt install shellcheck")
@pytest.mark.parametrize("name", [each for each in RENDERED if each.endswith(".sh")])
def test_shellcheck_has_nothing_to_say(name, tmp_path):
    script = tmp_path / name
    script.write_text(RENDERED[name]())
    found = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    code = "\n".join(line for line in script.read_text().splitlines() if not line.startswith("#"))
    assert "ray stop" not in code, "it ends every Ray on the node, also other people's"


# -- names, attempts, refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("/runs/ResNet_20", "resnet-20"),
        ("s3://bucket/a/b/", "b"),
        ("/runs/Ümlaut.v2", "mlaut-v2"),
        ("/", "run"),
        ("/runs/" + "a" * 60, "a" * 24),
    ],
)
def test_the_name_comes_from_the_run_and_fits_everywhere(run, name):
    assert plain_name(run) == name
    assert check_name(name) == name


def test_the_longest_name_and_a_large_attempt_still_fit_kuberay():
    _, ray_job = yaml.safe_load_all(manifest(submission(name="a" * 24, workers=1, attempt=999), claim="runs"))
    assert len(ray_job["metadata"]["name"]) == 47
    with pytest.raises(JobError, match=r"48 characters, KubeRay takes 47"):
        manifest(submission(name="a" * 24, workers=1, attempt=1000), claim="runs")


ATTEMPTS = [
    ({}, 1),
    ({"landscape-a-00000000-1": "FAILED"}, 2),
    ({"landscape-a-00000000-9": "STOPPED", "landscape-a-00000000-10": "SUCCEEDED"}, 11),
    ({"landscape-a-11111111-7": "RUNNING", "landscape-a-00000000-x": "FAILED", "other": "RUNNING"}, 1),
]


@pytest.mark.parametrize(("known", "number"), ATTEMPTS)
def test_the_next_attempt_is_the_first_never_used(known, number):
    assert next_attempt("landscape-a-00000000", known) == number


@pytest.mark.parametrize("status", ["PENDING", "RUNNING"])
def test_a_job_that_is_there_already_is_not_sent_twice(status):
    with pytest.raises(LandscapeError, match=f"{status.lower()} as landscape-a-00000000-2"):
        next_attempt("landscape-a-00000000", {"landscape-a-00000000-2": status})


class Info:
    def __init__(self, status: str, code: int | None) -> None:
        self.status = type("Status", (), {"value": status})
        self.driver_exit_code = code


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 4, 4),
        ("FAILED", 2, 2),
        ("FAILED", None, 1),
        ("FAILED", -9, 137),
        ("STOPPED", None, 130),
    ],
)
def test_the_outcome_of_a_job_is_an_exit_code(status, code, expected):
    assert outcome(Info(status, code)) == expected


REFUSED = [
    (lambda: check_name("Großes"), "lower-case"),
    (lambda: check_name("a" * 25), "at most 24"),
    (lambda: parse_selector(["spot"]), "key=value"),
    (lambda: parse_tolerations(["a=b:Never"]), "NoSchedule"),
    (lambda: run_on_cluster("runs/a", None, "/runs"), "--claim"),
    (lambda: run_on_cluster("/home/a", "runs", "/runs"), "outside the claim's mount"),
    (lambda: manifest(submission(), claim="runs"), "how many pods"),
    (lambda: manifest(submission(workers=1, gpus_per_worker=0.5)), "whole GPUs"),
    (lambda: script.render(submission(), SlurmTarget()), "how many"),
    (lambda: script.render(submission(workers=2), SlurmTarget(nodes=3)), "idle"),
    (lambda: script.render(submission(workers=2), SlurmTarget(time="1\n#SBATCH --uid=0")), "time"),
    (lambda: dashboard_address("10.0.0.1:6379"), "dashboard's URL"),
]


@pytest.mark.parametrize(("refused", "words"), REFUSED)
def test_what_no_cluster_takes_is_refused_before_it_is_sent(refused, words):
    with pytest.raises(JobError, match=words):
        refused()


@pytest.mark.parametrize(
    ("run", "claim", "place"),
    [
        ("s3://bucket/a", None, "s3://bucket/a"),
        ("runs/a", "runs", "/runs/a"),
        ("/runs/deep/a", "runs", "/runs/deep/a"),
        ("file:///runs/a", "runs", "/runs/a"),
    ],
)
def test_the_run_on_kubernetes_outlives_its_pods(run, claim, place):
    assert run_on_cluster(run, claim, "/runs") == place


NO_FILE = {"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": "/nonexistent/t"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "environment", "said"),
    [
        (200, {}, "runs code of anybody who reaches it"),
        (403, {}, "the dashboard at .* refuses the token"),
        (401, NO_FILE, r"no token was sent \(RAY_AUTH_TOKEN_PATH='/nonexistent/t': no such file\), and the dashboard"),
        (401, {"RAY_AUTH_MODE": "disabled"}, r"no token was sent \(RAY_AUTH_MODE='disabled'\), and the dashboard"),
    ],
)
def test_a_dashboard_on_every_interface_is_open_or_asks_for_the_token(code, environment, said, monkeypatch):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if code == 200:  # one on this machine is warned of alone
        monkeypatch.setattr(attach, "is_loopback", lambda host: False)
    with ThreadingHTTPServer(("", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            with pytest.raises(LandscapeError, match=said):
                connect(address)
        finally:
            server.shutdown()
