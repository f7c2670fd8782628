"""What SECURITY.md promises: no secret is written anywhere, no name leaves the run, no file's content is executed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import landscape
from landscape.core.errors import JobError, flat, masked, one_line, quoted
from landscape.job.job import Job
from landscape.job.reading import read_job

ROOT = Path(__file__).parents[1]
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAFAKEFAKEFAKEFAKE",
    "AWS_SECRET_ACCESS_KEY": "fakesecretkey0123456789",
    "AWS_SESSION_TOKEN": "fakesessiontoken0123456789",
    "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/fakecredentials.json",
    "RAY_AUTH_TOKEN": "f4ce" * 16,
}
PROBLEM = """
import torch
from torch import nn
from landscape import Problem


def problem():
    torch.manual_seed(0)
    return Problem(nn.Linear(2, 1), torch.randn(8, 2), lambda model, batch: {"loss": model(batch)[:, 0] ** 2})
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "secure_problem.py").write_text(PROBLEM)
    job = {
        "run": "run", "problem": "secure_problem:problem", "num_samples": 8,
        "landscapes": [{"name": "a", "size": 4, "directions": [{"kind": "random"}, {"kind": "random"}]}],
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    return tmp_path / "job.yaml"


# -- secrets -----------------------------------------------------------------------------------------------------

EVERY_COMMAND = """
import gc
from cluster.commands.app import app
from cluster.runtime.logs import configure

configure("json", debug=True)
job, run = "job.yaml", "run"
pods = ("--target", "kuberay", "--image", "i", "--claim", "c", "--workers", "2", "--secret", "bucket")
for words in (
    ("plan", job, "--json"), ("run", job, "--serial"), ("status", run, "--json"), ("validate", run, "--json"),
    ("export", run, "--to", "csv,npz,html"), ("doctor", "--run", run, "--json"),
    ("submit", job, "--dry-run"), ("submit", job, "--dry-run", "--no-look", *pods),
    ("submit", job, "--dry-run", "--no-look", "--target", "slurm", "--workers", "4", "--nodes", "2"),
):
    app(words, exit_on_error=False, print_error=False)
gc.freeze()
"""


@pytest.mark.long
def test_nothing_that_is_written_or_said_holds_a_secret_of_the_environment(job_file):
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EVERY_COMMAND],
        cwd=job_file.parent, capture_output=True, text=True, check=False, timeout=250,
        env={**os.environ, **SECRETS, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "RayJob" in ended.stdout
    assert "#SBATCH" in ended.stdout
    written = {path: path.read_bytes() for path in job_file.parent.rglob("*") if path.is_file()}
    assert any(path.name == "zarr.json" for path in written)
    for name, secret in SECRETS.items():
        assert secret not in ended.stdout + ended.stderr, name
        for path, content in written.items():
            assert secret.encode() not in content, (name, path)


HOLDERS = [
    {"run": "s3://key:hidden@bucket/run"},
    {"landscapes": [{"name": "a", "origin": "https://me:hidden@host/w.safetensors"}]},
    {"landscapes": [{"name": "a", "directions": [{"kind": "towards", "target": "s3://k:hidden@b/w"}]}]},
    {"landscapes": [{"name": "a", "directions": [{"kind": "file", "path": "gs://hidden@b/w"}]}]},
    {"run": "s3://key:hid/hidden@bucket/run"},
    {"run": "s3://bucket/run?X-Amz-Signature=hidden"},
    {"landscapes": [{"name": "a", "origin": "https://account.blob.host/w?sv=1&sig=hidden"}]},
]


@pytest.mark.parametrize("fields", HOLDERS)
def test_credentials_in_a_url_are_refused_and_not_repeated(job_file, fields):
    with pytest.raises(JobError, match=r"must not hold credentials \('\w+://.*….*; give them to the driver") as refused:
        read_job(job_file, **fields)
    assert "hidden" not in str(refused.value)
    assert list(job_file.parent.glob("run*")) == []


TEXTS = [
    ("cannot open 's3://AKIA:hid/hidden+x@bucket/run': no", "cannot open 's3://…@bucket/run': no"),
    ("s3://AKIA:a@hidden@bucket/run", "s3://…@bucket/run"),
    ("at https://b.host/x?X-Amz-Credential=hidden%2F1&X-Amz-Signature=hidden (5 s)", "at https://b.host/x?… (5 s)"),
    ("GET http://127.0.0.1:8265/api/jobs/#access_token=hidden, 401", "GET http://127.0.0.1:8265/api/jobs/?… 401"),
    ('{"url": "https://h/x?sig=hidden"}', '{"url": "https://h/x?…"}'),
    (r'{"text": "https://h/x?sig=hidden\nnext"}', r'{"text": "https://h/x?…\nnext"}'),
    ("Max retries exceeded with url: /api/jobs/?a=1&token=hidden (Caused", "with url: /api/jobs/?a=1&token=… (Caused"),
    ("AccountName=me;AccountKey=hidden==;Suffix=x", "AccountName=me;AccountKey=…;Suffix=x"),
    ("env AWS_SECRET_ACCESS_KEY=hidden RAY_AUTH_TOKEN=hidden x", "AWS_SECRET_ACCESS_KEY=… RAY_AUTH_TOKEN=… x"),
    ("Authorization: Bearer hidden.hidden.0123456789", "Authorization: Bearer …"),
    ("http://127.0.0.1:8265/a@b, max_tokens=7, set RAY_AUTH_MODE=token; a basic understanding", None),
    ("wait for s3://bucket/runs/mine: a basic misunderstanding of token=5?", None),
]


@pytest.mark.parametrize(("text", "rest"), TEXTS)
def test_keys_in_a_text_are_blotted_out_and_nothing_else(text, rest):
    assert "hidden" not in masked(text)
    assert (rest or text) in masked(text)


def test_a_key_does_not_survive_where_a_long_url_is_cut_short():
    url = f"s3://bucket/{'a' * 500}?X-Amz-Signature={'hidden' * 50}"
    assert "hidden" not in quoted(url) + flat(f"it fails: {url}") + one_line(ValueError(url))


def test_a_secret_in_an_argument_is_masked_where_an_error_repeats_it(capsys, monkeypatch):
    from cluster.commands.entry import main

    # Where no other test has imported torch, the command would fork this process.
    monkeypatch.setattr("cluster.runtime.supervision.can_supervise", lambda: False)
    for words in (
        ["--log-format=json", "status", "s3://key:hidden@bucket"],
        ["status", "s3://key:hidden@bucket/run"],
        ["status", "s3://key:hid/hidden@bucket/run"],
        ["status", "s3://bucket/run?X-Amz-Signature=hidden"],
    ):
        monkeypatch.setattr(sys, "argv", ["landscape", *words])
        with pytest.raises(SystemExit):
            main()
        said = capsys.readouterr()
        assert "hidden" not in said.out + said.err
        assert "s3:" in said.err


# -- names and paths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", "../a", "/a", "a/b", "a\\b", ".a", "", "a\n", "a\0", "ä", "zarr.json"])
def test_a_landscape_cannot_be_called_what_leaves_the_run(name):
    with pytest.raises(JobError, match="name"):
        Job(run="r", problem="a:b", landscapes=[{"name": name}])


def test_names_that_are_given_to_readers_do_not_leave_the_run(job_file):
    landscape.run(read_job(job_file))
    outside = job_file.parent / "outside"
    (job_file.parent / "run" / "landscapes.zarr" / "a").rename(outside)
    opened = landscape.open_run(job_file.parent / "run")
    for name in ("../../outside", str(outside), "../landscapes.zarr/a"):
        with pytest.raises(KeyError):
            opened[name]


def test_no_file_outside_the_jobs_folder_is_shipped(job_file, tmp_path_factory):
    from cluster.submit.options import job_files, refuse_files_left_behind

    outside = tmp_path_factory.mktemp("outside") / "secret.py"
    outside.write_text("PASSWORD = 'hidden'")
    (job_file.parent / "link.safetensors").symlink_to(outside)
    landscapes = [{"name": "a", "directions": [{"kind": "file", "path": "link.safetensors"}]}]
    linked = read_job(job_file, landscapes=landscapes)
    with pytest.raises(JobError, match="outside the job file's folder"):
        refuse_files_left_behind(linked)
    job = read_job(job_file)
    for name in ("../outside/secret.py", str(outside)):
        with pytest.raises(JobError, match="include: must be a file in the job file's folder"):
            job_files(job, job_file, [name])
    with pytest.raises(JobError, match="a link that leaves the job file's folder"):
        job_files(job, job_file, ["link.safetensors"])
    (job_file.parent / "linked.py").symlink_to(outside)
    with pytest.raises(JobError, match=r"'linked.py' is a link that leaves"):
        job_files(job, job_file)


# -- no code in data ---------------------------------------------------------------------------------------------

# Samples of any class travel between the processes of one job as Ray's own objects do. Their bytes lie in memory, or in
# files without a name of the same user: never in a file that anybody sends.
OWN_BYTES = {("landscape/problem/collated.py", "loads")}
HARMLESS = {"UnpicklingError", "Pickler"}  # an exception, and what only writes
LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def executes(call: ast.Call) -> bool:
    """Whether a call runs what it reads or is given."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    options = {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg in SWITCHES}
    if called in EXECUTING:
        name = ast.unparse(call.func)
        return (
            (name == "torch.load" and options.get("weights_only") != "True")
            or (name in ("np.load", "numpy.load") and options.get("allow_pickle", "False") != "False")
            or name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load", "eval", "exec")
        )
    return options.get("shell") == "True"


SWITCHES = {"weights_only", "allow_pickle", "shell"}
EXECUTING = {"load", "unsafe_load", "full_load", "eval", "exec"}


def loaders(node: ast.AST) -> list[str]:
    """What is used of modules that execute what they read; see HARMLESS."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in LOADERS:
        return [node.attr]
    if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in LOADERS:
        return [alias.name for alias in node.names]
    return []


def test_no_content_of_a_file_is_executed():
    unsafe = []
    for path in (path for package in ("landscape", "cluster") for path in sorted((ROOT / package).rglob("*.py"))):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            used = [name for name in loaders(node) if name not in HARMLESS and (file, name) not in OWN_BYTES]
            unsafe += [f"{file}: {name}" for name in used]
            if isinstance(node, ast.Call) and executes(node):
                unsafe.append(f"{file}: {ast.unparse(node)}")
    assert not unsafe
