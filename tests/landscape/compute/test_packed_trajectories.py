"""What a job names beside its problem travels in the file: snapshots of its run, those of others, files of weights."""

import json

import numpy as np
import pytest
import torch
from packed_scene import PLANE, members_of, new_folder, small_file, small_problem, written
from safetensors.torch import save_file

from landscape import Job, JobError, open_run, run
from landscape.compute.pack import pack
from landscape.compute.prepare import prepare
from landscape.job.reading import read_job
from landscape.model.snapshots import read_trajectory, write_snapshot
from landscape.store.landscape import LandscapeStore

LANDSCAPES = [
    {"name": "epochs", "trajectory": [0, 2, 3], "size": 3},
    {"name": "both", "paths": [".", {"run": "../other/sgd", "snapshots": [1, 2]}], "size": 3},
    {"name": "line", "directions": [{"kind": "towards", "target": "first"}], "size": 3},
    {"name": "file", "directions": [{"kind": "file", "path": "d.safetensors"}], "origin": "w.pt", "size": 3},
    {"name": "others", "origin": "../other/sgd@last", "directions": [{"kind": "random"}], "size": 3},
]


def moved(scale, seed):
    generator, state = torch.Generator().manual_seed(seed), small_problem().model.state_dict()
    return {
        name: each + scale * torch.randn(each.shape, generator=generator) if each.is_floating_point() else each
        for name, each in state.items()
    }


@pytest.fixture(scope="module")
def job():
    folder = new_folder() / "trained"
    for epoch in range(5):
        write_snapshot(str(folder), "epoch", epoch, moved(0.01 * epoch, epoch), step=epoch * 10)
        write_snapshot(str(new_folder() / "other" / "sgd"), "epoch", epoch, moved(0.02 * epoch, 10 + epoch))
    save_file(dict(small_problem().model.named_parameters()), folder / "d.safetensors")
    torch.save(small_problem().model.state_dict(), folder / "w.pt")
    return Job(run=str(folder), problem=small_problem, num_samples=8, landscapes=LANDSCAPES).in_folder(folder)


@pytest.fixture(scope="module")
def file(job):
    return pack(job, new_folder() / "trained.landscape").path


def test_snapshots_files_and_other_runs_travel(job, file, tmp_path):
    """Also where nothing of the source is left."""
    place = tmp_path / "job.landscape"
    place.write_bytes(file.read_bytes())
    packed = read_job(place, run=str(tmp_path / "run"))
    assert prepare(packed).run == str(tmp_path / "run")
    assert not (tmp_path / "run").exists()  # a look writes nothing
    theirs, mine = run(packed), run(job)
    for name in ("epochs", "both", "line", "file", "others"):
        stores = [LandscapeStore.open(each.path, name) for each in (mine, theirs)]
        assert stores[0].identity.whole == stores[1].identity.whole, name
        assert np.array_equal(mine[name].loss, theirs[name].loss), name
    assert theirs["both"].path is not None
    assert read_trajectory(theirs.path).numbers == (0, 2, 3, 4)  # those that the job needs
    for epoch in (0, 2, 3, 4):
        name = f"trajectory/epoch-{epoch:05d}.safetensors"
        assert (tmp_path / "run" / name).read_bytes() == (new_folder() / "trained" / name).read_bytes()
    assert np.array_equal(run(packed)["line"].loss, open_run(tmp_path / "run")["line"].loss), "it goes on"


def test_a_packed_job_names_no_place_of_the_machine_that_runs_it(tmp_path):
    place = tmp_path / "other.landscape"
    for landscape in (
        {**PLANE, "origin": "/etc/passwd"},
        {**PLANE, "paths": ["/home/someone"]},
        {**PLANE, "origin": "../secret@last"},
    ):
        written(place, {**members_of(small_file()), "job.yaml": json.dumps({"landscapes": [landscape]}).encode()})
        with pytest.raises(JobError, match=r"its job names .*, which it does not hold"):
            read_job(place)
