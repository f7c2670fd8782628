"""The look at a job before it is sent: what would fail there fails here, what is opened and would stay is named."""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import landscape
from cluster.submit import dry_run
from cluster.submit.dry_run import OpenedFiles, compare, files_of_user, look, prepare_job
from cluster.submit.options import folder_listing
from landscape.core.errors import JobError
from landscape.job.job import Job
from landscape.job.reading import read_job

BODY = """
import torch
from pathlib import Path
from safetensors.torch import load_file
from torch import nn
from landscape import Problem

def problem():
{body}
    return Problem(nn.Linear(2, 1), torch.randn(8, 2), lambda model, batch: {{"loss": model(batch).squeeze(1)}})
"""


@pytest.fixture
def job_of(tmp_path) -> Callable[..., Job]:
    def write(body: str = "pass", **fields: object) -> Job:
        folder = tmp_path / "job"
        folder.mkdir(exist_ok=True)
        (folder / "looked.py").write_text(BODY.format(body=textwrap.indent(textwrap.dedent(body), "    ")))
        plain = {"run": "run", "problem": "looked:problem", "landscapes": [{"name": "a", "size": 3}], "device": "cpu"}
        (folder / "job.yaml").write_text(yaml.safe_dump(plain | fields))
        return read_job(folder / "job.yaml")

    return write


def warnings(job: Job) -> list[str]:
    listing = folder_listing(job, job.folder / "job.yaml", job.run_path)
    return compare(look(job, job.folder / "job.yaml", job.run_path), listing, job.run_path)


@pytest.mark.long
def test_what_the_callback_opens_elsewhere_is_warned_of_and_what_travels_is_not(job_of, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data.csv").write_text("1")
    (tmp_path / "elsewhere" / "helper.py").write_text("")
    job = job_of(f"""
        import sys
        sys.path.append("../elsewhere")
        import helper
        Path("beside.csv").read_text()
        Path({str(tmp_path)!r}, "elsewhere", "data.csv").read_text()
        Path("new.csv").write_text("made here")
        Path("new.csv").read_text()
        try:
            open("absent.csv")
        except OSError:
            print("on stdout")
        open(".env").read()
    """)
    (job.folder / "beside.csv").write_text("1")
    (job.folder / ".env").write_text("KEY=1")
    (job.folder / "random.py").write_text("raise ValueError('a file of the user, not the module of Python')")
    secret, outside = warnings(job)
    assert "the job opens '.env', which never travels" in secret
    assert outside.startswith(f"the job opens '{tmp_path}/elsewhere/data.csv', '{tmp_path}/elsewhere/helper.py', ")
    assert outside.endswith(
        "beyond the folder that travels: nothing to do where every node sees it under its whole path and the callback "
        "opens it by that; else copy it beside the job file"
    )


@pytest.mark.long
def test_a_file_beside_the_job_that_would_stay_is_refused_with_the_word_that_takes_it_along(job_of):
    job = job_of("""
        load_file("data/w.safetensors")
        Path("data/a.csv").read_text()
    """)
    (job.folder / "data").mkdir()
    (job.folder / "data" / "a.csv").write_text("1")
    (job.folder / ".gitignore").write_text("data\n")
    from safetensors.torch import save_file
    from torch import zeros

    save_file({"w": zeros(1)}, job.folder / "data" / "w.safetensors")
    seen, file = look(job, job.folder / "job.yaml", job.run_path), job.folder / "job.yaml"
    with pytest.raises(JobError) as refused:
        compare(seen, folder_listing(job, file, job.run_path), job.run_path)
    said = str(refused.value)
    assert "the job opens 'data/a.csv', 'data/w.safetensors', which would not travel (.gitignore)" in said
    assert "say --include 'data/a.csv' --include 'data/w.safetensors', or --no-look" in said
    assert compare(seen, folder_listing(job, file, job.run_path, include=["data"]), job.run_path) == []


OPENING = """
import threading
def open_files():
    for number in range(20_000):
        try: open(f"absent-{number}")
        except OSError: pass
threading.Thread(target=open_files, daemon=True).start()
"""
FAILING = [
    (OPENING + "raise ValueError('wrong')", "looked:problem raised ValueError: wrong"),
    pytest.param(
        "import os, sys; print('oh no', file=sys.stderr); os.kill(os.getpid(), 11)",
        "ended the process that looked at it, with code -11; its last words: oh no",
        marks=pytest.mark.faults,
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("body", "said"), FAILING)
def test_a_callback_that_fails_is_refused_before_anything_is_sent(body, said, job_of):
    job = job_of(body)
    with pytest.raises(JobError) as refused:
        look(job, job.folder / "job.yaml", job.run_path)
    assert said in str(refused.value)
    assert "--no-look sends it unseen" in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 2
    assert not Path(job.run_path).exists(), "a look writes nothing"


@pytest.mark.long
def test_a_look_that_takes_long_says_so(job_of, monkeypatch, capsys):
    monkeypatch.setattr(dry_run, "QUIET_SECONDS", 0.1)
    job = job_of()
    assert look(job, job.folder / "job.yaml", job.run_path).error == ""
    said = capsys.readouterr().err
    assert said == "trying out the callback here, before anything is sent, for up to 180 s\n"


@pytest.fixture
def told(tmp_path) -> Callable[[Job], list[tuple[str, list[str]]]]:
    """What the process that looks at a job tells of it, told here: the error, and the remarks."""

    def prepare(job: Job) -> list[tuple[str, list[str]]]:
        found: list[tuple[str, list[str]]] = []
        given = {"file": str(job.folder / "job.yaml"), "run": job.run_path, "fresh": str(tmp_path / "fresh")}
        prepare_job(given, lambda error, remarks: found.append((error, remarks)))
        return found

    return prepare


@pytest.mark.parametrize(
    ("body", "fields", "said"),
    [
        ("import no_such_module", {}, "No module named 'no_such_module'"),
        ("raise SystemExit(0)", {}, "looked:problem called sys.exit(0)"),
        ("pass", {"num_samples": 100}, "num_samples"),
    ],
)
def test_what_is_wrong_with_a_job_is_told_once(body, fields, said, job_of, told):
    job = job_of(body, **fields)
    [(error, remarks)] = told(job)
    assert said in error
    assert remarks == []
    assert not Path(job.run_path).exists()


def test_a_run_that_holds_another_job_is_refused_where_it_can_be_read(job_of, told):
    job = job_of()
    landscape.run(job)
    assert told(job) == [("", [])]
    [(error, _)] = told(job_of(seed=5))
    assert "was computed with another job; changed: seed 0 to 5" in error


@pytest.mark.faults  # one look is in `make test`, above
def test_what_the_run_holds_is_there_on_the_cluster_too_also_behind_a_link(job_of, tmp_path):
    job = job_of("Path('run/notes.txt').read_text()")
    (job.folder / "run").mkdir()
    (job.folder / "run" / "notes.txt").write_text("1")
    (tmp_path / "link").symlink_to(job.folder)
    assert warnings(read_job(tmp_path / "link" / "job.yaml")) == []
    assert not list(job.folder.rglob("__pycache__")), "a look leaves nothing"


def test_a_run_that_lies_elsewhere_refuses_no_trajectory(job_of, told):
    landscapes = [{"name": "a", "size": 3}, {"name": "b", "trajectory": "all"}, {"name": "c", "origin": "last"}]
    assert told(job_of(run="/no/such/folder/run", landscapes=landscapes)) == [("", [])]


@pytest.mark.faults  # an outage
def test_a_run_whose_store_does_not_answer_here_is_looked_at_as_if_it_were_new(job_of, monkeypatch):
    pytest.importorskip("obstore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setattr("cluster.submit.dry_run.STORE_SECONDS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    job = job_of(run="s3://bucket/run")
    (remark,) = look(job, job.folder / "job.yaml", job.run_path).remarks
    assert remark.startswith("the run cannot be read from here, so it is not known whether it holds the same job: ")


def test_what_is_only_written_or_is_no_file_is_not_opened(tmp_path):
    opened = OpenedFiles()
    opened.hook("open", (str(tmp_path / "w"), "w", os.O_WRONLY | os.O_CREAT))
    opened.hook("open", (7, "r", 0))
    opened.hook("open", ("a\0b", "r", 0))
    opened.hook("import", ("x",))
    assert files_of_user(opened.paths, 0) == []
    (tmp_path / "data").write_text("1")
    opened.hook("open", (os.fsencode(tmp_path / "data"), None, os.O_RDONLY))
    assert [each for each in opened.paths if not opened.add(f"{each}-while-they-are-read")] == [str(tmp_path / "data")]
    later = (tmp_path / "data").stat().st_ctime_ns
    assert files_of_user(opened.paths, later) == [str(tmp_path / "data")]
    assert files_of_user(opened.paths, later - 1) == []
    assert files_of_user([os.__file__, landscape.__file__, "/etc/hostname"], later) == []


def test_data_in_shared_memory_are_the_users_and_on_this_machine_alone():
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        pytest.skip("no shared memory")
    with tempfile.NamedTemporaryFile(dir=shared) as data:
        opened = OpenedFiles()
        opened.hook("open", (data.name, "r", 0))
        opened.hook("open", ("/dev/null", "r", 0))
        assert files_of_user(opened.paths, os.stat(data.name).st_ctime_ns) == [data.name]
