"""Jobs that were sent, by their identifier alone: what is remembered of them, and what the clusters say."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.commands import submit
from cluster.commands.submit import names_a_job
from cluster.runtime.shipping import SentFiles
from cluster.submit import ray_jobs
from cluster.submit.ray_jobs import WholeLines, fit_to_show, outcome
from cluster.submit.submission import MOST_JOBS, SentJob, jobs_file, recall, remember
from landscape.core.errors import NotFoundError
from landscape.core.system import user_name

RAY_ID = "landscape-run-0badcafe-1"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "landscape" / "jobs.json"


def test_a_job_is_remembered_for_this_user_alone_and_without_a_key(state):
    assert recall(RAY_ID) is None
    remember(RAY_ID, SentJob("ray", "/runs/a", "http://me:hidden@head:8265/base?token=hidden", allow_open=True))
    found = recall(RAY_ID)
    assert found is not None
    assert (found.address, found.run, found.allow_open) == ("http://head:8265/base", "/runs/a", True)
    assert "hidden" not in state.read_text()
    assert state.stat().st_mode & 0o777 == 0o600
    assert state.parent.stat().st_mode & 0o077 == 0
    assert [each.name for each in state.parent.iterdir() if each.suffix != ".lock"] == ["jobs.json"]


def test_the_oldest_jobs_go(state):
    listed = {f"landscape-a-00000000-{k}": {"target": "ray"} for k in range(MOST_JOBS)}
    remember("first", SentJob("ray"))
    state.write_text(json.dumps(listed))
    remember("newest", SentJob("ray"))
    kept = json.loads(state.read_text())
    assert len(kept) == MOST_JOBS
    assert "newest" in kept
    assert "landscape-a-00000000-0" not in kept


def test_several_at_once_lose_nothing():
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda k: remember(f"job-{k}", SentJob("ray")), range(24)))
    assert all(recall(f"job-{k}") for k in range(24))


DAMAGED = [
    b"",
    b"\xff",
    b"[]",
    b'{"a": 1}',
    b'{"a": {"target": 3}}',
    b"[" * 100_000,
    b'{"a": {"run": "x"}}',
    b" " * (2 << 20),
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_list_is_passed_over_in_a_line_and_replaced(content, state, capsys):
    remember(RAY_ID, SentJob("ray"))
    state.write_bytes(content)
    assert recall(RAY_ID) is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "passed over: it holds no list of jobs" in said
    remember(RAY_ID, SentJob("ray", "/r"))
    assert recall(RAY_ID).run == "/r"


def test_a_list_that_others_may_write_is_not_believed(state, capsys):
    remember(RAY_ID, SentJob("ray", address="http://elsewhere:8265"))
    state.chmod(0o666)
    assert recall(RAY_ID) is None
    assert "chmod 600" in capsys.readouterr().err
    state.unlink()
    os.mkfifo(state)
    assert recall(RAY_ID) is None
    assert "it is no file" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_ends_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    remember(RAY_ID, SentJob("ray"))
    assert "is not remembered" in capsys.readouterr().err
    assert jobs_file({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local" / "state" / "landscape" / "jobs.json"


def test_an_identifier_is_told_from_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    remember("17", SentJob("slurm"))
    assert names_a_job(RAY_ID)
    assert names_a_job("17")
    (tmp_path / RAY_ID).mkdir()
    for run in (RAY_ID, "18", "runs/a", "s3://bucket/17", "landscape-run"):
        assert not names_a_job(run), run
    assert not names_a_job("x" * 300)  # of which no file system could have a folder


# -- what the clusters say ---------------------------------------------------------------------------------------


def tool(folder: Path, monkeypatch, **answers: str) -> None:
    """A PATH whose tools answer as the real ones do."""
    folder.mkdir(exist_ok=True)
    for name, script in answers.items():
        (folder / name).write_text(f'#!/bin/sh\necho "$@" >> {folder}/words\n{script}\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_slurm_is_asked_of_a_job_that_was_sent_to_it(tmp_path, monkeypatch, call):
    remember("17", SentJob("slurm", str(tmp_path / "no-run"), log="/home/me/a-17.log"))
    tool(tmp_path / "bin", monkeypatch, squeue="echo 'PENDING|N/A|Resources'")
    code, out, _ = call("status", "17")
    assert (code, out.splitlines()[:2]) == (0, ["job 17 on slurm: PENDING", "  it says: Resources"])
    assert "not to be read from here" in out
    tool(tmp_path / "bin", monkeypatch, squeue="exit 1", sacct="echo 'TIMEOUT|2026-11-20T10:00:00|0:0'")
    job = json.loads(call("status", "17", "--json")[1])["job"]
    assert (job["state"], job["exit_code"], job["since"][:7]) == ("TIMEOUT", 0, "2026-11")
    tool(tmp_path / "bin", monkeypatch, squeue="exit 1", sacct="true")
    code, out, said = call("status", "17")
    assert (code, out) == (3, "")
    assert "its log is /home/me/a-17.log" in said
    for words, told in ((("logs", "17"), "tail -F /home/me/a-17.log"), (("cancel", "17"), "scancel 17")):
        code, _, said = call(*words)
        assert (code, told in said) == (2, True)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "squeue is not on the PATH" in call("status", "17")[2]


def test_kubectl_is_asked_of_a_job_that_was_sent_to_kubernetes(tmp_path, monkeypatch, call):
    remember(RAY_ID, SentJob("kuberay", "/runs/a", namespace="research"))
    answer = {
        "spec": {"entrypoint": "landscape run /job/job.yaml --run https://h/x?sig=hidden"},
        "status": {"jobStatus": "RUNNING", "startTime": "2026-11-20T10:00:00Z", "message": "a\nb"},
    }
    tool(tmp_path / "bin", monkeypatch, kubectl=f"echo '{json.dumps(answer)}'".replace("\\n", "\\\\n"))
    code, out, said = call("status", RAY_ID)
    assert code == 0, said
    assert out.startswith(f"job {RAY_ID} on kuberay at research: RUNNING since 20")
    assert "  command: landscape run /job/job.yaml --run https://h/x?…\n  it says: a b\n" in out
    assert f"--namespace research get rayjobs.ray.io {RAY_ID} -o json" in (tmp_path / "bin" / "words").read_text()
    tool(tmp_path / "bin", monkeypatch, kubectl="echo nothing")
    assert "something else than a RayJob: 'nothing'" in call("status", RAY_ID)[2]
    gone = f"echo 'Error from server (NotFound): rayjobs.ray.io {RAY_ID} not found' >&2; exit 1"
    tool(tmp_path / "bin", monkeypatch, kubectl=gone)
    assert call("status", RAY_ID)[0] == 3
    assert f"kubectl --namespace research logs -f job/{RAY_ID}" in call("logs", RAY_ID)[2]


def test_where_no_cluster_answers_the_remembered_address_is_named(call):
    remember(RAY_ID, SentJob("ray", address="http://127.0.0.1:1"))
    for name in ("status", "logs", "cancel"):
        code, out, said = call(name, RAY_ID)
        assert (code, out) == (5, "")
        assert "no Ray dashboard answers at 'http://127.0.0.1:1' (connection refused)" in said
    code, _, said = call("logs", RAY_ID, "--address", "http://127.0.0.1:1/?token=hidden")
    assert (code, "hidden" in said) == (2, False)


@pytest.mark.parametrize("name", ["status", "logs", "cancel"])
@pytest.mark.parametrize("identifier", [RAY_ID, "raysubmit_Ab3"])
def test_an_unknown_job_is_not_found_and_the_address_that_was_asked_is_named(name, identifier, call, monkeypatch):
    for each in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setattr(ray_jobs, "DEFAULT_ADDRESS", "http://127.0.0.1:1")
    code, out, said = call(name, identifier)
    assert (code, out, said.count("\n")) == (3, "", 1)
    assert f"no job '{identifier}' was sent from here, and at 'http://127.0.0.1:1'" in said
    assert "--address" in said
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:2")
    code, _, said = call(name, identifier)
    assert (code, "'http://127.0.0.1:2'" in said) == (5, True), "this cluster was meant"


def test_a_name_that_is_neither_a_run_nor_a_job_is_told_so(call):
    code, out, said = call("status", "12345")
    assert (code, out, said.count("\n")) == (3, "", 1)
    assert "'12345' is no run here, nor a job that was sent from here" in said


def test_a_job_file_that_is_asked_for_its_state_is_told_its_run(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("run: runs/mine\nproblem: my_problem:problem\n")
    code, out, said = call("status", "job.yaml")
    assert (code, out, said.count("\n")) == (3, "", 1)
    assert f"the run of this job is '{tmp_path / 'runs/mine'}'" in said


def test_a_run_that_is_here_is_shown_whatever_address_is_given(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "landscapes.zarr").mkdir(parents=True)
    for run in ("mine", str(tmp_path / "mine")):
        code, out, said = call("status", run, "--address", "http://127.0.0.1:1")
        assert (code, out.split()[0], said) == (0, "run", "")
    for job in ("no-run", RAY_ID):
        code, _, said = call("status", job, "--address", "http://127.0.0.1:1")
        assert (code, "'http://127.0.0.1:1'" in said) == (5, True), job
    assert call("status", str(tmp_path / "none"), "--address", "http://127.0.0.1:1")[0] == 3, "no job has such a name"


def test_rays_own_remarks_are_no_part_of_a_log():
    rays = "2026-11-22 01:38:30,820\tINFO job_manager.py:581 -- Setting up.\n"
    users = "Running\nx\tINFO y.py:1 -- z\n2026-11-22 01:38:31,007\tINFO train.py:12 -- Setting up.\n"
    assert fit_to_show(rays + users) == users


def test_the_run_of_a_job_is_shown_though_its_cluster_is_gone(call, tmp_path):
    place = tmp_path / "run"
    (place / "landscapes.zarr").mkdir(parents=True)
    remember(RAY_ID, SentJob("ray", str(place), "http://127.0.0.1:1"))
    code, out, _ = call("status", RAY_ID)
    assert code == 0
    assert f"job {RAY_ID} on ray at http://127.0.0.1:1: UNREACHABLE" in out
    assert f"run {place}" in out
    place.rename(tmp_path / "away")
    assert call("status", RAY_ID)[0] == 5


def test_the_run_of_a_job_is_shown_though_a_new_head_has_forgotten_it(call, tmp_path, monkeypatch):
    def forgotten(*_: object) -> None:
        raise NotFoundError("no job of that name")

    (tmp_path / "run" / "landscapes.zarr").mkdir(parents=True)
    remember(RAY_ID, SentJob("ray", str(tmp_path / "run"), "http://127.0.0.1:1"))
    monkeypatch.setattr(submit, "connect_to", forgotten)
    code, out, _ = call("status", RAY_ID)
    assert code == 0
    assert f"job {RAY_ID} on ray at http://127.0.0.1:1: UNKNOWN" in out
    assert f"run {tmp_path / 'run'}" in out


@pytest.mark.parametrize(
    ("state", "of_job", "complete", "expected"),
    [
        ("RUNNING", None, True, 4),  # whatever its run holds by now
        ("PENDING", None, None, 4),
        ("SUCCEEDED", 0, True, 0),
        ("SUCCEEDED", 0, False, 4),
        ("SUCCEEDED", 0, None, 0),
        ("COMPLETED", 0, None, 0),
        ("FAILED", 4, True, 4),
        ("FAILED", None, True, 1),  # KubeRay gives no code
        ("TIMEOUT", 0, None, 1),
        ("STOPPED", 130, True, 130),
        ("UNREACHABLE", None, True, 5),
        ("UNKNOWN", None, True, 0),
        ("UNKNOWN", None, False, 4),
    ],
)
def test_the_exit_code_of_a_job_is_its_own_or_that_of_its_run(state, of_job, complete, expected):
    landscapes = [{"state": "complete" if complete else "interrupted"}]
    run = {"training": None, "problems": [], "landscapes": landscapes, "snapshots": [], "driver": False}
    status = {"job": {"state": state, "exit_code": of_job}, "run": None if complete is None else run}
    assert submit.code_of_job(status) == expected


def test_the_state_of_a_job_is_an_exit_code_where_it_is_asked_for(call, tmp_path, monkeypatch):
    remember("17", SentJob("slurm", str(tmp_path / "no-run"), log="/home/me/a-17.log"))
    tool(tmp_path / "bin", monkeypatch, squeue="echo 'PENDING|N/A|Resources'")
    assert call("status", "17", "--exit-code")[0] == 4
    tool(tmp_path / "bin", monkeypatch, squeue="exit 1", sacct="echo 'TIMEOUT|2026-11-20T10:00:00|0:0'")
    assert (call("status", "17")[0], call("status", "17", "--exit-code")[0]) == (0, 1)


def test_a_key_in_a_log_is_masked_though_it_comes_in_two_pieces():
    written: list[str] = []
    lines = WholeLines(written.append)
    for piece in ("begin https://h/x?si", "g=hidd", "en&a=1 end\nnext \x1b[2J", "line"):
        lines(piece)
    lines.end()
    assert "".join(written) == "begin https://h/x?… end\nnext \\u001b[2Jline"


def test_an_outcome_needs_no_cluster():
    assert outcome(SimpleNamespace(status=SimpleNamespace(value="FAILED"), driver_exit_code=5)) == 5


class RecordingClient:
    """Ray's client of jobs, as far as `send` uses it; it keeps what was submitted."""

    def get_address(self) -> str:
        return "http://127.0.0.1:8265"

    def submit_job(self, **arguments: Any) -> str:
        self.environment = arguments["runtime_env"]["env_vars"]
        return str(arguments["submission_id"])


def test_a_job_is_sent_with_the_name_of_its_user(monkeypatch, tmp_path):
    monkeypatch.setenv("LOGNAME", "ada")
    client = RecordingClient()
    rendered = {"submission_id": "mine-1", "runtime_env": {"env_vars": {"A": "1"}}, "files": {}}
    assert ray_jobs.send(client, rendered, SentFiles(tmp_path)) == "mine-1"
    assert client.environment == {"A": "1", "LOGNAME": "ada"}
    assert rendered["runtime_env"] == {"env_vars": {"A": "1"}}  # what --dry-run shows names no user


def test_a_user_without_a_name_has_a_number(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    assert user_name() == str(os.getuid())
