"""Where a callback is found once the folder that its job ran in is gone: where it was sent from, or a packed copy."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from object_stores import new_url, s3_server, use
from packed_scene import PLANE, members_of, small_file, small_problem

from landscape import Job, Problem, run
from landscape.analysis.inspection import inspect
from landscape.compute.extend import extend
from landscape.compute.prepare import prepare
from landscape.compute.recorded_job import recorded_job
from landscape.compute.refine import refine
from landscape.core.errors import JobError
from landscape.core.folders import open_folder
from landscape.job.reading import read_job
from landscape.model.snapshots import write_snapshot
from landscape.store.landscape import LandscapeStore
from landscape.store.results import remove_run

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
    assert inspect(sent.run, "plane").loss == sent.store.read_surface().loss[1, 1]


def test_a_callback_that_is_nowhere_is_refused_with_both_folders_and_the_remedy(sent, tmp_path):
    sent.end()
    moved = sent.home.rename(tmp_path / "moved")
    shutil.rmtree(Path(sent.run) / "packed")
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


def test_a_job_that_was_sent_leaves_a_packed_copy_from_which_any_machine_answers(sent, tmp_path, caplog):
    before = sent.store.read_surface().loss
    sent.end()
    shutil.rmtree(sent.home)
    moved = Path(sent.run).rename(tmp_path / "elsewhere")
    sent.run = str(moved)
    copy = sent.store.record.packed
    assert [str(moved / copy.file)] == [str(file) for file in (moved / "packed").iterdir()]
    job = recorded_job(sent.run, sent.store)
    assert job.problem == str(moved / copy.file)
    assert prepare(job, reading=True).landscapes[0].identity == sent.store.identity.whole
    assert inspect(sent.run, "plane").loss == before[1, 1]
    assert "not on this machine: the packed copy of the problem in the run serves instead" in caplog.text
    more = extend(sent.run, "plane", ranges=[(-2, 2)])["plane"]
    assert np.array_equal(more.loss[1:-1, 1:-1], before)
    after = sent.store.record  # of the extended landscape, which names the source still, and has the copy too
    assert (after.packed, after.job.whole["problem"]) == (copy, sent.reference)
    assert (after.provenance.folder, after.provenance.sent_from) == (str(sent.there), str(sent.home))
    refine(sent.run, "plane")
    assert remove_run(sent.run).foreign == ()
    assert not moved.exists()


def test_a_packed_copy_that_is_not_the_one_of_the_landscape_is_not_taken(sent, caplog):
    sent.end()
    shutil.rmtree(sent.home)
    shutil.copy(small_file(), Path(sent.run) / sent.store.record.packed.file)
    with pytest.raises(JobError, match="is not on this machine"):
        recorded_job(sent.run, sent.store)
    assert "cannot be taken: it is not the one that was made for this landscape, by its digest" in caplog.text


@pytest.mark.parametrize(("asked", "is_sent", "kept"), [(None, False, 0), (True, False, 1), (False, True, 0)])
def test_a_copy_is_kept_of_sent_jobs_alone_unless_the_job_says_otherwise(tmp_path, monkeypatch, asked, is_sent, kept):
    if is_sent:
        monkeypatch.setenv("LANDSCAPE_SENT_FROM", "laptop:/home/someone")
    job = Job(run=str(tmp_path), problem=small_problem, num_samples=8, landscapes=[PLANE], packed_copy=asked)
    run(job)
    assert len(list(tmp_path.glob("packed/*"))) == kept
    if kept:
        (file,) = tmp_path.glob("packed/*")
        before = file.stat().st_mtime_ns
        run(job)
        assert file.stat().st_mtime_ns == before  # not packed again
        file.unlink()
        run(job)
        assert file.is_file()


def untraceable():
    model = torch.nn.Linear(2, 2)

    def observe(model, batch):
        print(batch[0].sum().item())  # its numbers leave the graph
        return {"loss": model(batch[0]).square().sum(1) * int(batch[0].sum() > 0)}

    return Problem(model, (torch.randn(8, 2),), observe)


@pytest.mark.parametrize("why", ["does not export", "is too large"])
def test_a_problem_that_cannot_be_packed_gives_a_line_and_no_error(tmp_path, monkeypatch, caplog, why):
    monkeypatch.setenv("LANDSCAPE_SENT_FROM", "laptop:/home/someone")
    if why == "is too large":
        monkeypatch.setattr("landscape.compute.packed_copy.LARGEST_COPY", 100)
    problem = small_problem if why == "is too large" else untraceable
    done = run(Job(run=str(tmp_path), problem=problem, num_samples=8, landscapes=[PLANE]))["plane"]
    assert np.isfinite(done.loss).all()
    assert not list(tmp_path.glob("packed/*"))
    said = [each.message for each in caplog.records if "keeps no packed copy of the problem" in each.message]
    assert len(said) == 1
    assert why == "does not export" or "packed_copy: true" in said[0]


def test_what_the_job_names_is_found_in_the_copy_under_its_name_there(tmp_path, monkeypatch):
    """Weights in a file and another run lie in the copy, the snapshots of the run beside it."""
    folder = tmp_path / "job"
    state = small_problem().model.state_dict()
    generator = torch.Generator().manual_seed(1)
    for number in range(6):
        moved = {
            name: each + 0.01 * torch.randn(each.shape, generator=generator) if each.is_floating_point() else each
            for name, each in state.items()
        }
        write_snapshot(str(tmp_path / ("run", "other")[number % 2]), "epoch", number // 2, moved, step=number // 2)
    folder.mkdir()
    torch.save(state, folder / "w.pt")
    landscapes = [
        {"name": "line", "directions": [{"kind": "towards", "target": "first"}], "size": 3},
        {"name": "file", "directions": [{"kind": "random"}], "origin": "w.pt", "size": 3},
        {"name": "other", "directions": [{"kind": "random"}], "origin": "../other@last", "size": 3},
        {"name": "paths", "paths": [str(tmp_path / "run"), "../other"], "size": 3},
    ]
    job = Job(run="../run", problem=small_problem, num_samples=8, landscapes=landscapes, packed_copy=True)
    run(job.in_folder(folder))
    (file,) = (tmp_path / "run").glob("packed/*")
    assert not [name for name in members_of(file) if name.startswith("trajectory/")]
    shutil.rmtree(folder)
    shutil.rmtree(tmp_path / "other")
    monkeypatch.setattr("landscape.compute.callback_place.is_installed", lambda reference: False)
    for name in ("line", "file", "other", "paths"):
        store = LandscapeStore.open(tmp_path / "run", name)
        job = recorded_job(str(tmp_path / "run"), store)
        assert job.problem == str(file)
        assert prepare(job, reading=True).landscapes[0].identity == store.identity.whole, name
    extend(tmp_path / "run", "other", ranges=[(-2, 2)])
    assert LandscapeStore.open(tmp_path / "run", "other").job.landscapes[0]["origin"].startswith("../other@")


def test_the_copy_of_a_run_in_an_object_store_is_fetched_and_removed_with_it(monkeypatch):
    with s3_server() as endpoint:
        use(monkeypatch, endpoint)
        place = new_url()
        run(Job(run=place, problem=small_problem, num_samples=8, landscapes=[PLANE], packed_copy=True))
        monkeypatch.setattr("landscape.compute.callback_place.is_installed", lambda reference: False)
        store = LandscapeStore.open(place, "plane")
        job = recorded_job(place, store)
        assert Path(job.problem).is_file()
        assert prepare(job, reading=True).landscapes[0].identity == store.identity.whole
        assert remove_run(place).foreign == ()
        assert not open_folder(place).names("packed")
