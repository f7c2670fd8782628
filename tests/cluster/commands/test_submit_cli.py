"""`landscape submit` as it is given: what a dry run prints, what kubectl and sbatch receive, what is refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]


@pytest.fixture
def tools(tmp_path) -> dict[str, str]:
    """A PATH whose kubectl and sbatch write down what they are given; no cluster is ever asked."""
    folder = tmp_path / "tools"
    folder.mkdir()
    kubectl = f"""#!/bin/sh
echo "$@" >> {folder}/kubectl.words
case "$*" in
    *jsonpath*) echo uid-1;;
    *get*) cat {folder}/rayjobs.json;;
    *apply*) cat > {folder}/applied.yaml; echo created;;
    *patch*) test ! -e {folder}/forbidden;;
esac
"""
    sbatch = f"""#!/bin/sh
echo "$@" > {folder}/sbatch.words
cat > {folder}/script.sh
echo "17;cluster"
"""
    for name, text in (("kubectl", kubectl), ("sbatch", sbatch)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "rayjobs.json").write_text('{"items": []}')
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.fixture
def submit(call, monkeypatch) -> Callable[..., Any]:
    """Give `landscape submit`; a look at the job costs another process."""

    def run(*words: object, environment: dict[str, str], cwd: Path | None = None) -> Any:
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PATH", environment["PATH"])
        return call("submit", *words, "--no-look", cwd=cwd)

    return run


EXAMPLES = {
    "ray.json": ("--target", "ray", "--workers", 8),
    "rayjob.yaml": (
        "--target", "kuberay", "--image", "registry.example.org/landscape:gpu", "--claim", "landscape-runs",
        "--workers", 8, "--gpus-per-worker", 1, "--queue", "research",
        "--head-selector", "cloud.google.com/gke-provisioning=standard",
        "--worker-selector", "cloud.google.com/gke-spot=true",
        "--worker-toleration", "cloud.google.com/gke-spot=true:NoSchedule",
    ),
    "slurm.sh": (
        "--target", "slurm", "--workers", 8, "--gpus-per-worker", 1, "--nodes", 2, "--time", "04:00:00",
        "--setup", "source venv/bin/activate",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_what_the_command_prints(name, submit, tools):
    found = submit("deploy/examples/job.yaml", *EXAMPLES[name], "--dry-run", environment=tools, cwd=ROOT)
    out = re.sub(r"[^\s\"'=]+:" + re.escape(f"{ROOT}/deploy/examples"), "laptop:/home/me/examples", found.out)
    assert found.code == 0, found.err
    if os.environ.get("LANDSCAPE_GOLDEN") == "write":
        (ROOT / "deploy" / "examples" / name).write_text(out)
    assert out == (ROOT / "deploy" / "examples" / name).read_text()
    assert not (Path(tools["PATH"].partition(":")[0]) / "kubectl.words").exists(), "a dry run asks no cluster"


def test_kubectl_receives_what_the_dry_run_prints_under_the_next_free_attempt(write_job, submit, tools):
    job = write_job()
    words = (job, "--target", "kuberay", "--image", "i", "--claim", "c", "--workers", 2, "--namespace", "lab")
    dry = submit(*words, "--dry-run", environment=tools)
    assert dry.code == 0, dry.err
    folder = Path(tools["PATH"].partition(":")[0])

    sent = submit(*words, environment=tools)
    assert sent.code == 0, sent.err
    assert (folder / "applied.yaml").read_text() == dry.out
    first = sent.out.strip()
    asked, applied, known, owned = (folder / "kubectl.words").read_text().splitlines()
    assert asked == f"--namespace lab get rayjobs.ray.io -l landscape/job={first[:-2]} -o json"
    assert applied == "--namespace lab apply -f -"
    assert known == f"--namespace lab get rayjobs.ray.io {first} -o jsonpath={{.metadata.uid}}"
    words_before, _, patch = owned.partition(" -p ")
    assert words_before == f"--namespace lab patch configmap {first} --type=merge"
    (owner,) = json.loads(patch)["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": first, "uid": "uid-1"}
    assert f"kubectl delete rayjob -l app.kubernetes.io/instance={first} --namespace lab" in sent.err

    there = {"metadata": {"name": first}, "status": {"jobDeploymentStatus": "Running"}}
    (folder / "rayjobs.json").write_text(json.dumps({"items": [there]}))
    twice = submit(*words, environment=tools)
    assert twice.code == 1
    assert f"running as {first}" in twice.err

    there["status"]["jobDeploymentStatus"] = "Failed"
    (folder / "rayjobs.json").write_text(json.dumps({"items": [there]}))
    again = submit(*words, environment=tools)
    assert again.out.strip() == f"{first[:-1]}2"
    names = {each["metadata"]["name"] for each in yaml.safe_load_all((folder / "applied.yaml").read_text())}
    assert names == {f"{first[:-1]}2"}


def test_where_the_config_map_gets_no_owner_a_line_says_so_and_the_removal_names_it(write_job, submit, tools):
    (Path(tools["PATH"].partition(":")[0]) / "forbidden").touch()
    sent = submit(write_job(), "--target", "kuberay", "--image", "i", "--claim", "c", "--workers", 2, environment=tools)
    assert sent.code == 0, sent.err
    assert "will outlive its RayJob" in sent.err
    assert "kubectl delete rayjob,configmap -l " in sent.err


def test_a_kuberay_that_is_too_old_is_named(write_job, submit, tools):
    kubectl = Path(tools["PATH"].partition(":")[0]) / "kubectl"
    unknown = 'strict decoding error: unknown field "spec.rayClusterSpec.authOptions"'
    kubectl.write_text(f"""#!/bin/sh
case "$*" in *get*) echo '{{"items": []}}';; *) echo 'Error from server (BadRequest): {unknown}' >&2; exit 1;; esac
""")
    sent = submit(write_job(), "--target", "kuberay", "--image", "i", "--claim", "c", "--workers", 2, environment=tools)
    assert (sent.code, sent.out) == (1, "")
    assert "must be 1.5.1 or later" in sent.err


def test_the_options_of_a_site_are_read_from_words(write_job, submit, tools):
    job = write_job()
    (job.parent / "site.yaml").write_text("spec: {activeDeadlineSeconds: 60}\n")
    pods = (
        "--target", "kuberay", "--image", "i", "--claim", "c", "--workers", 1, "--pull-secret", "a", "--pull-secret",
        "b", "--pod-env", "A=--b", "--pod-volume", "data:/data:ro", "--head-cpus", 4, "--rayjob-patch",
        job.parent / "site.yaml", "--keep-cluster", 60, "--runtime-class", "nvidia",
    )  # fmt: skip
    found = submit(job, *pods, "--dry-run", environment=tools)
    _, ray_job = yaml.safe_load_all(found.out)
    assert ray_job["spec"]["activeDeadlineSeconds"] == 60
    head = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert [each["name"] for each in head["imagePullSecrets"]] == ["a", "b"]
    assert head["containers"][0]["env"] == [{"name": "A", "value": "--b"}]
    slurm = (
        "--target", "slurm", "--workers", 1, "--gpus-per-worker", 1, "--gpu-type", "a100", "--qos", "long",
        "--sbatch=--exclusive", "--sbatch", "mail-type=END", "--scratch", "$SLURM_TMPDIR",
    )  # fmt: skip
    script = submit(job, *slurm, "--dry-run", environment=tools).out
    for line in ("--gpus-per-node=a100:1", "--qos=long", "--exclusive", "--mail-type=END"):
        assert f"#SBATCH {line}\n" in script


def test_the_config_map_carries_the_files_of_the_job_and_no_others(write_job, submit, tools):
    job = write_job()
    (job.parent / ".env").write_text("PASSWORD=hidden")
    (job.parent / "notes.txt").write_text("not for the cluster")
    (job.parent / "table.csv").write_text("1,2\n")
    words = (job, "--target", "kuberay", "--image", "i", "--claim", "c", "--workers", 1, "--include", "table.csv")
    found = submit(*words, "--dry-run", environment=tools)
    config_map, ray_job = yaml.safe_load_all(found.out)
    held = {**config_map["data"], **config_map["binaryData"]}
    assert set(held) == {"job.yaml", "my_problem.py", "table.csv", "d1.safetensors", "d2.safetensors"}
    assert "hidden" not in found.out
    assert "--run /runs/run " in ray_job["spec"]["entrypoint"]


def test_sbatch_receives_what_the_dry_run_prints(write_job, submit, tools):
    words = (write_job(), "--target", "slurm", "--workers", 2)
    sent = submit(*words, environment=tools)
    assert (sent.code, sent.out) == (0, "17\n"), sent.err
    folder = Path(tools["PATH"].partition(":")[0])
    assert (folder / "script.sh").read_text() == submit(*words, "--dry-run", environment=tools).out
    assert (folder / "sbatch.words").read_text() == "--parsable\n"
    assert "scancel 17" in sent.err


def test_a_relative_run_becomes_a_place_outside_the_shipped_copy(write_job, submit, tools):
    job = write_job()
    found = json.loads(submit(job, "--dry-run", environment=tools).out)
    assert f"--run {job.parent}/run " in found["entrypoint"]
    assert not any(name.startswith("run/") for name in found["files"]), "the run is not shipped with the folder"
    elsewhere = job.parent / "sub"
    elsewhere.mkdir()
    found = json.loads(submit("../job.yaml", "--run", "mine", "--dry-run", environment=tools, cwd=elsewhere).out)
    assert f"--run {elsewhere}/mine " in found["entrypoint"]


def test_the_driver_there_logs_as_the_command_here_does(write_job, submit, tools):
    job = write_job()
    asked = submit(job, "--log-format", "json", "--dry-run", environment=tools)
    assert json.loads(asked.out)["entrypoint"].endswith(" --log-format json")
    script = submit(job, "--target", "slurm", "--workers", 1, "--dry-run", "--log-format=json", environment=tools)
    assert " --log-format json &\n" in script.out
    assert "--log-format" not in submit(job, "--dry-run", environment=tools).out


def test_what_cannot_be_sent_is_refused_in_one_line(write_job, submit, tools, tmp_path):
    job = write_job()
    outside = {"directions": [{"kind": "file", "path": "../d1.safetensors"}, {"kind": "random"}], "name": "a"}
    gone = {"directions": [{"kind": "file", "path": "d9.safetensors"}, {"kind": "random"}], "name": "a"}
    bare = tools | {"PATH": str(tmp_path / "empty")}
    (job.parent / "large.bin").write_bytes(bytes(1_000_000))
    pod = ("--target", "kuberay", "--image", "i", "--workers", 1)
    for words, environment, code, said in [
        ((tmp_path / "none.yaml",), tools, 3, "does not exist"),
        ((write_job(folder=tmp_path / "a", landscapes=[outside]), "--dry-run"), tools, 2, "outside the job file"),
        ((write_job(folder=tmp_path / "b", landscapes=[gone]), "--dry-run"), tools, 2, "d9.safetensors"),
        ((job, "--run", "s3://key:word@bucket/a", "--dry-run"), tools, 2, "credentials"),
        ((job, "--workers", 0, "--dry-run"), tools, 2, "workers"),
        ((job, "--attempt", 0, "--dry-run"), tools, 2, "attempt"),
        ((job, "--name", "Mine", "--dry-run"), tools, 2, "lower-case"),
        ((job, *pod), tools, 2, "--claim"),
        ((job, *pod, "--claim", "c", "--include", "../x"), tools, 2, "include"),
        ((job, *pod, "--claim", "c", "--include", "large.bin"), tools, 2, "ConfigMap"),
        ((job, *pod, "--claim", "c"), bare, 1, "kubectl is not on the PATH"),
        ((job, "--target", "slurm", "--workers", 1), bare, 1, "sbatch is not on the PATH"),
        ((job, "--target", "kuberay", "--workers", 1, "--claim", "c"), tools, 2, "image"),
        ((job, "--target", "lsf"), tools, 2, "target"),
        ((job, "--nodes", 2, "--dry-run"), tools, 2, "nodes: serves --target slurm only, not ray"),
        ((job, *pod, "--claim", "c", "--detach"), tools, 2, "detach: serves --target ray only, not kuberay"),
        ((job, "--address", "http://127.0.0.1:1"), tools, 5, "no Ray dashboard"),
    ]:
        found = submit(*words, environment=environment)
        assert found.code == code, (words, found.err)
        assert said in found.err
        assert found.out == ""
        assert len(found.err.strip().splitlines()) <= 2, found.err
        assert "key:word" not in found.err


def test_the_workers_of_the_job_file_are_read_by_every_target(write_job, submit, tools):
    job = write_job(workers=3, num_gpus=1)
    pods = ("--target", "kuberay", "--image", "i", "--claim", "c")
    for words, pods_wanted in ((pods, 3), ((*pods, "--workers", 5), 5)):
        _, ray_job = yaml.safe_load_all(submit(job, *words, "--dry-run", environment=tools).out)
        group = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
        assert group["replicas"] == pods_wanted
        assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    script = submit(job, "--target", "slurm", "--nodes", 3, "--dry-run", environment=tools).out
    assert "--gpus-per-node=1\n" in script
    assert " --workers 3 --num-gpus 1 " in script
    entrypoint = json.loads(submit(job, "--dry-run", environment=tools).out)["entrypoint"]
    assert "--workers" not in entrypoint, "the driver reads the file there"


def test_a_limit_of_workers_and_custom_resources_reach_the_driver(write_job, submit, tools):
    words = ("--max-workers", 16, "--worker-resources", "a100=1", "--worker-resources", "licence=0.5", "--dry-run")
    found = submit(write_job(), *words, environment=tools)
    expected = " --max-workers 16 --worker-resources=a100=1 --worker-resources=licence=0.5"
    assert json.loads(found.out)["entrypoint"].endswith(expected)
    wrong = submit(write_job(), "--worker-resources", "a100", "--dry-run", environment=tools)
    assert (wrong.code, wrong.out) == (2, "")
    assert "worker_resources: must have" in wrong.err
    many = submit(write_job(), "--workers", 17, "--max-workers", 16, "--dry-run", environment=tools)
    assert (many.code, many.out) == (2, "")
    assert "workers: must be at most the 16 of max_workers, not 17" in many.err
    for fields, option in (({"workers": 17}, "--max-workers=16"), ({"max_workers": 16}, "--workers=17")):
        many = submit(write_job(**fields), option, "--dry-run", environment=tools)
        assert (many.code, many.out) == (2, ""), "it is in part the job file that asks for too many"
        assert "not 17; ask for fewer, or give --max-workers 17" in many.err


SETTINGS = [
    ({"worker_resources": {"a": 1}}, ("--target", "slurm", "--workers", 2), "worker_resources: serve a Ray cluster"),
    ({"device_ids": [0]}, (), "device_ids: restricts a local Ray"),
    ({"device_ids": [0]}, ("--target", "slurm", "--workers", 2, "--nodes", 2), "device_ids: restricts a local Ray"),
    ({"device": "cpu"}, ("--gpus-per-worker", 1), "gpus_per_worker: must be 0 or left out, not 1"),
    ({"device": "cuda"}, ("--target", "slurm", "--workers", 2), "gpus_per_worker: must be said"),
    ({"engine": "cudagraph"}, ("--target", "slurm", "--workers", 2), "engine: cudagraph needs a GPU"),
    ({"engine": "cudagraph", "device": "cpu"}, (), "engine: cudagraph needs a GPU"),
    ({"threads": 4}, ("--target", "slurm", "--workers", 2, "--cpus-per-worker", 2), "at least the job's threads, 4"),
    ({}, ("--target", "slurm", "--workers", 2, "--include", "d1.safetensors"), "include: nothing travels"),
    ({}, ("--include", ".env"), "'.env' cannot be sent (may hold secrets)"),
]


@pytest.mark.parametrize(("fields", "words", "said"), SETTINGS)
def test_settings_that_would_fail_on_the_cluster_are_refused_here(fields, words, said, write_job, submit, tools):
    job = write_job(**fields)
    (job.parent / ".env").write_text("KEY=1")
    found = submit(job, *words, "--dry-run", environment=tools)
    assert (found.code, found.out) == (2, ""), found.err
    assert said in found.err


def test_the_dry_run_lists_every_file_that_travels_and_why_others_stay(write_job, submit, tools):
    job = write_job()
    (job.parent / "sub").mkdir()
    (job.parent / "sub" / "table.csv").write_text("1,2\n")
    (job.parent / ".env").write_text("KEY=1")
    found = submit(job, "--dry-run", environment=tools)
    files = json.loads(found.out)["files"]
    assert files["sub/table.csv"] == 4
    for name, size in files.items():
        assert f"travels: {name}, {size} bytes\n" in found.err
    assert "stays: .env (may hold secrets)\n" in found.err
    pods = ("--target", "kuberay", "--image", "i", "--claim", "c", "--workers", 1)
    found = submit(job, *pods, "--dry-run", environment=tools)
    assert "travels: my_problem.py, " in found.err
    assert "stays: sub/table.csv (not in a ConfigMap" in found.err
    sent = submit(job, *pods, environment=tools)
    assert "not sent with the job: .env (may hold secrets); sub/table.csv, tools/kubectl" in sent.err
