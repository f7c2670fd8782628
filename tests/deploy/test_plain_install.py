"""What an installation without extras can do, and how it refuses the rest: by the extra that is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from plain_install import in_plain_installation

RUN = "runs/plain"
COMMAND = """
import sys
sys.argv[:] = ["landscape", *{words}]
from cluster.commands.app import command
sys.exit(command())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of `landscape init`, whose run is computed without extras."""
    folder = tmp_path_factory.mktemp("plain")
    done = call(folder, "init")
    assert done.returncode == 0, done.stderr
    job = yaml.safe_load((folder / "job.yaml").read_text())
    job["landscapes"] = [{"name": "minimum", "size": 5}]
    (folder / "job.yaml").write_text(yaml.safe_dump({**job, "run": RUN}))
    done = call(folder, "run", "job.yaml", "--serial")
    assert done.returncode == 0, done.stderr
    return folder


def call(folder: Path, *words: str):
    return in_plain_installation(COMMAND.format(words=list(words)), folder)


@pytest.mark.long
def test_a_first_landscape_is_computed_and_seen_without_extras(folder):
    done = call(folder, "export", RUN, "--to", "report,html,csv,npz")
    assert done.returncode == 0, done.stderr
    assert {Path(line).suffix for line in done.stdout.split()} == {".html", ".csv", ".npz"}
    code = f"""
import landscape
opened = landscape.open_run({RUN!r})
for name in opened:
    opened[name].plot().figure.savefig(name + ".png")
"""
    done = in_plain_installation(code, folder)
    assert done.returncode == 0, done.stderr
    assert list(folder.glob("*.png"))


WORKERS = "ray: workers and clusters need it; `pip install 'loss-landscape-cluster[ray]'`"
REFUSED = [
    (["run", "job.yaml", "--workers", "2", "--run", "anew"], f"{WORKERS}, or give --serial to compute in this process"),
    (["run", "job.yaml", "--address", "auto", "--run", "anew"], WORKERS),
    (["submit", "job.yaml", "--address", "http://127.0.0.1:8265", "--run", "s"], WORKERS),
    (["doctor", "--address", "127.0.0.1:6379"], WORKERS.removeprefix("ray: ")),
    (["demo"], WORKERS),
    (["serve", RUN], "serve: needs the package ray; `pip install 'loss-landscape-cluster[serve]'`"),
    (["train", "lenet-digits", "--run", "t", "--workers", "2"], "pip install 'loss-landscape-cluster[train]'"),
    (["view", RUN, "--no-open"], "`pip install 'loss-landscape-cluster[page]'`"),
    (["export", RUN, "--to", "png"], "pip install 'loss-landscape-cluster[export]'"),
    (["export", RUN, "--to", "vtk"], "pip install 'loss-landscape-cluster[export]'"),
]


@pytest.mark.long
@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[" ".join(words[:3]) for words, _ in REFUSED])
def test_what_needs_an_extra_is_refused_by_its_name(folder, words, said):
    done = call(folder, *words)
    assert done.returncode != 0
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
