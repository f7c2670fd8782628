"""Where the callback of a landscape is found once the folder that its job ran in is gone, as that of a sent job is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from packed_scene import PLANE

from landscape import Job, run
from landscape.analysis.inspection import inspect_point
from landscape.compute.prepare import prepare
from landscape.compute.recorded_job import recorded_job
from landscape.core.errors import JobError
from landscape.job.reading import read_job
from landscape.store.landscape import LandscapeStore

CALLBACK = """
import torch
from landscape import Problem

def problem():
    torch.manual_seed(3)
    return Problem.supervised(torch.nn.Linear(3, 2), (torch.randn(40, 3), torch.randint(2, (40,))))
"""


class Sent:
    """A job that ran in a folder of a cluster, and the folder that it was sent from, which holds the same files."""

    def __init__(self, place: Path, module: str) -> None:
        self.home, self.there, self.run = place / "home", place / "ray" / "package", str(place / "run")
        self.module, self.reference = module, f"{module}:problem"
        for folder in (self.home, self.there):
            folder.mkdir(parents=True)
            (folder / f"{module}.py").write_text(CALLBACK)

    def end(self) -> None:
        """The cluster ends, and its folders with it; so does the process that had imported the callback."""
        shutil.rmtree(self.there)
        forget(self.module)

    @property
    def store(self) -> LandscapeStore:
        return LandscapeStore.open(self.run, "plane")


def forget(module: str) -> None:
    sys.modules.pop(module, None)
    sys.path[:] = [place for place in sys.path if not Path(place).joinpath(f"{module}.py").is_file()]
    sys.path_importer_cache.clear()


@pytest.fixture
def sent(tmp_path, monkeypatch, request):
    monkeypatch.setattr(sys, "path", list(sys.path))
    scene = Sent(tmp_path, f"sent_{abs(hash(request.node.name))}")
    monkeypatch.setenv("LANDSCAPE_SENT_FROM", f"laptop:{scene.home}")
    run(Job(run=scene.run, problem=scene.reference, num_samples=20, landscapes=[PLANE]).in_folder(scene.there))
    monkeypatch.delenv("LANDSCAPE_SENT_FROM")
    yield scene
    forget(scene.module)


def test_the_folder_that_the_job_was_sent_from_is_recorded_and_taken_once_the_other_is_gone(sent):
    provenance = sent.store.record.provenance
    assert (provenance.folder, provenance.sent_from, provenance.sent_host) == (
        str(sent.there), str(sent.home), "laptop",
    )  # fmt: skip
    assert recorded_job(sent.run, sent.store).folder == sent.there
    sent.end()
    assert recorded_job(sent.run, sent.store).folder == sent.home
    prepared = prepare(recorded_job(sent.run, sent.store), reading=True)
    assert prepared.landscapes[0].identity == sent.store.identity.whole
    assert inspect_point(sent.run, "plane").loss == sent.store.read_surface().loss[1, 1]


def test_a_callback_that_is_nowhere_is_refused_with_both_folders_and_the_remedy(sent, tmp_path):
    sent.end()
    moved = sent.home.rename(tmp_path / "moved")
    with pytest.raises(JobError) as refused:
        recorded_job(sent.run, sent.store)
    said = str(refused.value)
    assert f"neither in {str(sent.there)!r}, where the job ran" in said
    assert f"nor in {str(sent.home)!r} of laptop, where it was sent from" in said
    assert said.endswith("name its folder with --folder")
    assert recorded_job(sent.run, sent.store, folder=moved).folder == moved


def test_a_packed_job_that_was_sent_is_found_as_the_file_that_was_sent(sent, tmp_path, monkeypatch):
    from landscape.compute.pack import pack

    file = pack(recorded_job(sent.run, sent.store), sent.home / "job.landscape").path
    copy = shutil.copy(file, sent.there / "job.landscape")
    monkeypatch.setenv("LANDSCAPE_SENT_FROM", f"laptop:{file}")
    sent.run = str(tmp_path / "of-packed")
    run(read_job(copy, run=sent.run))
    sent.end()
    job = recorded_job(sent.run, sent.store)
    assert (job.problem, job.folder) == (str(file), file)
    assert prepare(job, reading=True).landscapes[0].identity == sent.store.identity.whole
