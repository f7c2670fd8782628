"""`--folder DIR` and `--folder RUN=DIR`: where a command finds the callback of each of its runs."""

from __future__ import annotations

import sys

import pytest

from cluster.commands.output import CallbackOptions
from cluster.serving.sources import catalog_of
from landscape import run
from landscape.core.errors import JobError
from landscape.job.reading import read_job

PROBLEM = """
import torch
from landscape import Problem

def problem():
    torch.manual_seed(0)
    return Problem.supervised(torch.nn.Linear(3, 2), (torch.ones(8, 3), torch.zeros(8, dtype=torch.long)))
"""
JOB = """
run: ../run-{name}
problem: {module}:problem
num_samples: 8
landscapes: [{{name: plane, size: 3}}]
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs, whose callbacks have one name, and the folders to which the code was moved since."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"moved_{tmp_path.name.replace('-', '_')}"
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{module}.py").write_text(PROBLEM)
        (folder / "job.yaml").write_text(JOB.format(name=name, module=module))
        run(read_job(folder / "job.yaml"))
        folder.rename(tmp_path / f"moved-{name}")
    forget(module)
    yield tmp_path, module
    forget(module)


def forget(module: str) -> None:
    sys.modules.pop(module, None)
    sys.path_importer_cache.clear()


def test_each_run_has_its_own_folder_else_that_of_all(tmp_path):
    for name in ("one", "two", "x=y"):
        (tmp_path / name).mkdir()
    one, two, odd = (tmp_path / name for name in ("one", "two", "x=y"))
    given = CallbackOptions(folder=[str(one), f"runs/b={two}"])
    assert given.folders(["runs/a", "runs/b/"]) == {"runs/a": one, "runs/b/": two}
    assert given.folder_of("runs/b") == two
    assert CallbackOptions(folder=[str(odd)]).folder_of("run") == odd  # a folder with that name, and no run
    assert CallbackOptions().folder_of("run") is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["nowhere"], "must be a run's folder of code, DIR or RUN=DIR with one of 'a', 'b' as RUN, not 'nowhere'"),
        (["c=."], "not 'c=.'"),
        ([".", "."], "must be given once for a run, not again as '.'"),
        (["a=.", "a=."], "must be given once for a run, not again as 'a=.'"),
    ],
)
def test_a_folder_that_is_none_or_is_given_twice_is_refused(given, words):
    with pytest.raises(JobError) as refused:
        CallbackOptions(folder=given).folders(["a", "b"])
    assert words in str(refused.value)


def test_commands_of_one_run_and_of_several_take_the_folder_of_each(runs, call):
    place, module = runs
    a, b = (str(place / f"run-{name}") for name in "ab")
    code, _, err = call("inspect", a, "plane", "--serial")
    assert code == 2
    assert f"problem: '{module}:problem' is not on this machine" in err
    with pytest.raises(JobError, match="is not on this machine"):
        catalog_of([a, b])
    given = [f"{a}={place}/moved-a", f"{b}={place}/moved-b"]
    code, out, err = call("inspect", a, "plane", "--serial", "--folder", place / "moved-a")
    assert code == 0, err
    assert out.startswith("plane at ")
    forget(module)
    code, _, err = call(
        "compare", f"{a}:plane", f"{b}:plane", "--points", 4, "--serial", "--folder", given[0], "--folder", given[1]
    )
    assert code == 0, err
    sources = catalog_of([a, b], folders=CallbackOptions(folder=given).folders([a, b])).sources()
    assert [source.folder for source in sources] == [place / "moved-a", place / "moved-b"]
