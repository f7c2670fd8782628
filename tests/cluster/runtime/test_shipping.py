"""What of a job's folder travels: never a key or what lies elsewhere; what is listed is what an archive holds."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import zipfile
from pathlib import Path

import pytest

from cluster.runtime.shipping import (
    LEAVES,
    SECRET,
    archive,
    ignored_by,
    is_secret,
    list_folder,
    listing_lines,
    omitted_line,
    read_ignore_file,
)
from landscape.core.errors import JobError

SECRETS = [
    ".env", ".env.production", "prod.env", ".netrc", ".aws/credentials", ".ssh/id_ed25519", "keys/server.pem",
    "sub/tls.KEY", "id_rsa", "id_rsa.pub", ".git/config", "sub/.git/config", ".kube/config", ".docker/config.json",
    "cert.p12", "credentials.json", "Credentials", ".npmrc", ".pypirc", ".huggingface/token", "token", "hf_token",
    ".config/gcloud/application_default_credentials.json", "secrets.yaml",
]  # fmt: skip
PLAIN = ["job.yaml", "my_problem.py", "net/model.py", "environment.yaml", "tokens.pt", "keyboard.py", "monkey.csv"]


def lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"content of {name}")


def packed(folder: Path, **options: object) -> dict[str, str]:
    listing = list_folder(folder, str(folder / "run"), **options)
    held = zipfile.ZipFile(io.BytesIO(archive(listing)))
    assert held.testzip() is None
    assert set(held.namelist()) == {*listing.files, *listing.empty}, "the list is what travels"
    assert all(len(held.read(name)) == each.size for name, each in listing.files.items())
    return {name: held.read(name).decode() for name in listing.files}


def test_what_may_hold_secrets_never_travels_whoever_asks(tmp_path):
    lay(tmp_path, *SECRETS, *PLAIN)
    assert set(packed(tmp_path)) == set(PLAIN)
    for name in SECRETS:
        with pytest.raises(JobError, match="cannot be sent \\(may hold secrets\\)"):
            list_folder(tmp_path, "", include=[name])
    assert all(is_secret(name) for name in SECRETS)


def test_a_link_takes_nothing_out_of_the_folder_nor_a_secret_along(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "job"
    lay(outside, "private.txt", "data/x.csv")
    lay(folder, "job.yaml", "net/model.py", ".env", "real/deep/a.csv")
    links = {
        "leaves": outside / "private.txt", "leaves_too": outside / "data", "up": "..", "plain_name": ".env",
        "file": "real/deep/a.csv", "folder": "real", "real/deep/again": "../..", "gone": "nowhere", "itself": "itself",
        "net/absolute": folder / "real" / "deep",
    }  # fmt: skip
    for name, target in links.items():
        (folder / name).symlink_to(target)
    listing = list_folder(folder, str(folder / "run"))
    assert set(packed(folder)) == {
        "job.yaml", "net/model.py", "real/deep/a.csv", "file", "folder/deep/a.csv", "net/absolute/a.csv",
    }  # fmt: skip
    assert packed(folder)["file"] == "content of real/deep/a.csv"
    assert {name for name, why in listing.omitted.items() if why == LEAVES} == {"leaves", "leaves_too/", "up/"}
    assert {name for name, why in listing.omitted.items() if why == SECRET} == {".env", "plain_name"}
    assert {"gone", "itself", "real/deep/again/"} <= set(listing.omitted)
    with pytest.raises(
        JobError, match="'leaves' cannot be sent \\(a link that leaves the job file's folder\\); copy in"
    ):
        list_folder(folder, "", required=["leaves"])


def test_what_is_no_plain_file_is_named_and_never_opened(tmp_path):
    lay(tmp_path, "job.yaml", "a\nb.csv", "back\\slash", "c:drive.txt")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / ".gitignore")
    (tmp_path / os.fsdecode(b"\xff\xfe")).write_text("bytes")
    (tmp_path / "void").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        before = Path.cwd()
        os.chdir(tmp_path)  # a socket's path may have 107 characters
        try:
            listening.bind("socket")
        finally:
            os.chdir(before)
        assert set(packed(tmp_path)) == {"job.yaml"}
        listing = list_folder(tmp_path, "")
    assert len(listing.omitted) == 7
    assert listing.empty == {"void/"}
    assert all("\n" not in line and line.isprintable() for line in (*listing_lines(listing), omitted_line(listing)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(tmp_path):
    lay(tmp_path, "job.yaml", "locked")
    (tmp_path / "locked").chmod(0)
    assert list_folder(tmp_path, "").omitted == {"locked": "unreadable"}


def test_a_file_that_became_a_link_or_grows_after_it_was_listed_is_not_packed(tmp_path):
    folder = tmp_path / "job"
    lay(folder, "job.yaml", "a.csv")
    lay(tmp_path, "private")
    listing = list_folder(folder, "")
    (folder / "a.csv").unlink()
    (folder / "a.csv").symlink_to(tmp_path / "private")
    with pytest.raises(JobError, match=r"'a\.csv' cannot be packed: it has become a link"):
        archive(listing)
    (folder / "a.csv").unlink()
    with pytest.raises(JobError, match=r"'a\.csv' cannot be packed"):
        archive(listing)


def test_ignored_files_stay_unless_they_are_asked_for_or_the_job_needs_them(tmp_path):
    lay(
        tmp_path, "job.yaml", "my_problem.py", "data/a.pt", "data/b.csv", "data/.env", "x.log", "runs/old/w.pt", "run/z"
    )
    lay(tmp_path, "pkg/__pycache__/m.pyc", "pkg/__init__.py", "sub/y.tmp", ".venv/lib/x.py")
    (tmp_path / ".gitignore").write_text("data/\n*.log\n!keep.log\nmy_problem.py\n")
    (tmp_path / "sub" / ".gitignore").write_text("*.tmp\n")
    (tmp_path / ".rayignore").write_text("/pkg\n")
    common = {"job.yaml", ".gitignore", ".rayignore", "sub/.gitignore"}
    assert set(packed(tmp_path)) == common
    listing = list_folder(tmp_path, str(tmp_path / "run"))
    assert "data/, my_problem.py, x.log (.gitignore)" in omitted_line(listing)
    assert "stays: sub/y.tmp (sub/.gitignore)" in listing_lines(listing)
    assert "stays: run/ (the run itself)" in listing_lines(listing)
    assert f"travels: job.yaml, {listing.files['job.yaml'].size} bytes" in listing_lines(listing)
    asked = packed(tmp_path, include=["data", "runs/old/w.pt"], required=["my_problem.py", "pkg", "job.yaml"])
    assert set(asked) == {*common, "data/a.pt", "data/b.csv", "runs/old/w.pt", "my_problem.py", "pkg/__init__.py"}
    for wrong in ("../x", "/etc/passwd", "nowhere", "", "."):
        with pytest.raises(JobError, match="include: "):
            list_folder(tmp_path, "", include=[wrong])


@pytest.mark.parametrize("mark", ["run.json", "landscapes.zarr/zarr.json", "launch.json"])
def test_a_run_stays_whatever_its_name_unless_the_job_names_what_it_reads(tmp_path, mark):
    lay(tmp_path, "job.yaml", f"sgd/{mark}", "sgd/trajectory/epoch-00001.safetensors", "sgd/notes.txt", "net/run.py")
    lay(tmp_path, f"old/adam/{mark}", "old/adam/history.jsonl", "old/data.csv")
    assert set(packed(tmp_path)) == {"job.yaml", "net/run.py", "old/data.csv"}
    listing = list_folder(tmp_path, "")
    assert set(listing.omitted) == {"sgd/", "old/adam/"}
    assert "old/adam/, sgd/ (environments, caches and runs, which stay)" in omitted_line(listing)
    weights = "sgd/trajectory/epoch-00001.safetensors"
    assert weights in packed(tmp_path, required=[weights])
    assert {"sgd/notes.txt", f"sgd/{mark}", weights} <= set(packed(tmp_path, include=["sgd"]))


def test_the_same_files_give_the_same_archive(tmp_path):
    for name in ("a", "b"):
        lay(tmp_path / name, *PLAIN)
    os.utime(tmp_path / "b" / "job.yaml", (1, 1))
    assert archive(list_folder(tmp_path / "a", "")) == archive(list_folder(tmp_path / "b", ""))


def test_links_that_lead_to_the_same_folder_on_many_ways_end(tmp_path, monkeypatch):
    monkeypatch.setattr("cluster.runtime.shipping.MOST_ENTRIES", 500)
    folders = [tmp_path / f"f{k}" for k in range(12)]
    for each in folders:
        each.mkdir()
    for each in folders:
        for other in folders:
            (each / f"to{other.name}").symlink_to(other)
    with pytest.raises(JobError, match="holds more than 500 files"):
        list_folder(tmp_path, "")


PATTERNS = [
    "*.pt", "/a.csv", "data/", "data/*.npy", "**/deep", "a/**/z", "logs/**", "!keep.pt", "# no", "\\#yes", "x?z",
    "[ab]c", "[!ab]d", "trailing  ", "weird\\*", "foo/bar", "[", "!data/raw/", "*", "!*/", "!*.py", "a[b/]c", "***",
]  # fmt: skip
NAMES = [
    "w.pt", "sub/w.pt", "a.csv", "sub/a.csv", "data/x.npy", "sub/data/x", "deep/1", "p/deep/2", "a/z", "a/m/n/z",
    "logs/1", "keep.pt", "#yes", "xyz", "ac", "bc", "ad", "cd", "trailing", "weird*", "foo/bar/q", "s/foo/bar/q",
    "k.py", "data/raw/1", "[", "sub/k.py", "a[b/]c",
]  # fmt: skip


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@pytest.mark.parametrize("chosen", [*((each,) for each in PATTERNS), tuple(PATTERNS[:17]), ("*", "!*/", "!*.py")])
def test_ignore_files_mean_what_they_mean_to_git(chosen, tmp_path):
    lay(tmp_path, *NAMES)
    (tmp_path / ".gitignore").write_text("\n".join(chosen))
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    asked = ["git", "-C", tmp_path, "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"]
    expected = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split("\0")
    found = set(list_folder(tmp_path, "").files)
    assert found == {name for name in expected if name}


def test_rules_are_read_by_line_and_the_last_one_decides():
    rules = [read_ignore_file("*.pt\n!best.pt\n", "sub/.gitignore")]
    assert ignored_by(rules, "sub/a.pt", False) == "sub/.gitignore"
    assert ignored_by(rules, "sub/best.pt", False) == ""
    assert ignored_by(rules, "a.pt", False) == ""
