"""A job that was packed is the job that it was: the same samples, the same identity, the same bits."""

import os
import shutil

import numpy as np
import pytest
import torch
from packed_scene import PLANE, packed, small_file, small_problem

from landscape import Job, JobError, Problem, run
from landscape.compute.pack import pack
from landscape.compute.prepare import prepare
from landscape.job.reading import read_job
from landscape.problem.callback import load_problem
from landscape.problem.selection import select_samples
from landscape.store.landscape import LandscapeStore


def source_job(tmp_path, fields):
    asked = {"num_samples": 24, **fields}
    return Job(run=str(tmp_path / "source"), problem=small_problem, landscapes=[PLANE], **asked)


def prepared_both(tmp_path, **fields):
    source = source_job(tmp_path, fields)
    return prepare(source), prepare(read_job(small_file(), run=str(tmp_path / "packed"), **fields))


def test_the_packed_job_has_the_identity_of_its_source(tmp_path):
    source, packed_job = prepared_both(tmp_path)
    assert packed_job.landscapes[0].identity == source.landscapes[0].identity
    assert packed_job.samples.digest() == source.samples.digest()
    assert np.array_equal(packed_job.sample_index, source.sample_index)


@pytest.mark.parametrize("fields", [{}, {"batch_norm": "batch"}, {"batch_norm": "recalibrate"}, {"num_samples": 7}])
def test_it_computes_the_same_bits(tmp_path, fields):
    source = source_job(tmp_path, fields)
    theirs = run(read_job(small_file(), run=str(tmp_path / "packed"), **fields))["plane"]
    mine = run(source)["plane"]
    stores = [LandscapeStore.open(str(tmp_path / name), "plane") for name in ("source", "packed")]
    assert stores[0].identity.whole == stores[1].identity.whole
    for name, values in mine.observables.items():
        assert np.array_equal(values, theirs.observables[name]), name


def test_the_same_job_gives_the_same_file():
    made = packed(small_problem, "again")
    assert made.compared.equal
    assert made.path.read_bytes() == small_file().read_bytes()


def wide_problem():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 400), torch.nn.ReLU(), torch.nn.Linear(400, 400))
    return Problem.supervised(model, (torch.randn(40, 20), torch.randint(400, (40,))))


def test_the_file_is_little_larger_than_its_tensors():
    made = packed(wide_problem, "wide")
    weights = sum(each.nbytes for each in wide_problem().model.parameters())
    samples = 24 * (20 * 4 + 8 + 8)  # inputs, targets, and their places in the data
    assert made.tensor_bytes == weights + samples
    assert made.tensor_bytes < made.size == made.path.stat().st_size < 1.1 * made.tensor_bytes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_samples": 25}, "num_samples: must be at most the 24 samples that the data has, not 25"),
        ({"seed": 1}, "seed: must be 0, with which the samples of"),
    ],
)
def test_what_the_file_cannot_give_is_refused(tmp_path, fields, words):
    with pytest.raises(JobError, match=words):
        prepare(read_job(small_file(), run=str(tmp_path / "run"), **fields))


def test_a_job_file_may_name_a_packed_problem(tmp_path):
    place = tmp_path / "job.yaml"
    (tmp_path / "small.landscape").write_bytes(small_file().read_bytes())
    line = "landscapes: [{name: line, size: 3, directions: [{kind: random}]}]"
    place.write_text(f"run: run\nproblem: small.landscape\n{line}")
    surface = run(read_job(place))["line"]
    assert surface.record.num_samples == 24  # all that the file holds
    assert np.isfinite(surface.loss).all()


def test_a_packed_job_is_packed_again(tmp_path):
    """With fewer samples, for one."""
    again = pack(read_job(small_file(), run=str(tmp_path / "run"), num_samples=9), tmp_path / "again.landscape")
    assert again.compared.equal
    source, packed_job = prepare(source_job(tmp_path, {"num_samples": 9})), prepare(read_job(again.path))
    assert packed_job.landscapes[0].identity == source.landscapes[0].identity


def test_a_file_whose_values_are_others_is_not_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("landscape.compute.pack.TOLERANCE", -1.0)
    with pytest.raises(JobError, match="model: computes otherwise when it is exported"):
        pack(source_job(tmp_path, {}), tmp_path / "other.landscape")
    assert list(tmp_path.iterdir()) == []


def test_samples_that_are_larger_than_the_memory_stay_in_a_file(monkeypatch):
    held = select_samples(load_problem(str(small_file())).data, 20, 0).samples
    monkeypatch.setenv("LANDSCAPE_HOST_BYTES", "1")
    data = load_problem(str(small_file())).data
    mapped, copied = (select_samples(data, 20, 0, limit=limit).samples for limit in (0, 1 << 30))
    assert mapped.digest() == copied.digest() == held.digest()
    assert mapped.rows[0].data_ptr() == data.sets[""][0].data_ptr()
    assert copied.rows[0].data_ptr() != data.sets[""][0].data_ptr()


@pytest.mark.parametrize("limit", ["1", "1000000"])
def test_a_file_that_is_cut_off_while_it_is_read_fails_in_a_sentence_and_takes_nothing_from_what_was(
    tmp_path, monkeypatch, limit
):
    """A map of such a file would end the process by SIGBUS."""
    monkeypatch.setenv("LANDSCAPE_HOST_BYTES", limit)
    place = shutil.copy(small_file(), tmp_path / "cut.landscape")
    early, late = load_problem(str(place)).data, load_problem(str(place)).data
    samples = select_samples(early, 20, 0, limit=0).samples
    os.truncate(place, 600)
    with pytest.raises(JobError, match=r"cut\.landscape' cannot be taken: it has become shorter since it was opened"):
        select_samples(late, 20, 0)
    assert samples.digest() == select_samples(load_problem(str(small_file())).data, 20, 0).samples.digest()
