"""`engine: RUN`: a job takes the engine and the batches of another run, or is told why it cannot."""

from __future__ import annotations

import shutil

import pytest
from pooled import pooled_problem
from small_models import make_job, plan_on_disk

from landscape import JobError, LandscapeError, run
from landscape.compute.identity import recorded_plan
from landscape.compute.plans import borrowed_plan
from landscape.job.reading import read_job
from landscape.store.landscape import LandscapeStore

ENGINE = "eager+channels_last+folded"
PLANE = {"name": "plane", "size": [5, 4]}


@pytest.fixture(scope="module")
def problem():
    return pooled_problem()[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, problem):
    """A run in batches of 8 by an engine of its own."""
    place = tmp_path_factory.mktemp("finished") / "run"
    run(make_job(place, lambda: problem, [PLANE], num_samples=21, engine=ENGINE, batch_size=8))
    return place


@pytest.fixture
def other(tmp_path, finished):
    return shutil.copytree(finished, tmp_path / "other")


def job_of(tmp_path, problem, engine, landscapes=(PLANE,), **fields):
    return make_job(tmp_path / "mine", lambda: problem, landscapes, num_samples=21, engine=str(engine), **fields)


def test_a_job_takes_the_engine_and_the_batches_of_another_run(tmp_path, problem, other):
    found = run(job_of(tmp_path, problem, other))["plane"]
    plan, attributes = plan_on_disk(tmp_path / "mine")
    assert (plan["engine"], plan["batch_size"]) == (ENGINE, 8)
    assert attributes["job"]["engine"] == str(other)
    by_hand = make_job(tmp_path / "hand", lambda: problem, [PLANE], num_samples=21, engine=ENGINE, batch_size=8)
    assert found.loss.tobytes() == run(by_hand)["plane"].loss.tobytes()
    # It goes on as it began, whatever has become of the other one; so do landscapes that are added.
    shutil.rmtree(other)
    run(job_of(tmp_path, problem, other, [PLANE, {"name": "more", "size": 3}]))
    assert plan_on_disk(tmp_path / "mine", "more")[0] == plan


def test_its_place_is_relative_to_the_job_file(tmp_path, other):
    (tmp_path / "job.yaml").write_text("{run: mine, problem: 'a:b', engine: ./other, landscapes: [{name: plane}]}")
    plan = borrowed_plan(read_job(tmp_path / "job.yaml"), 6)
    assert (str(plan.engine), plan.batch_size) == (ENGINE, 6)  # a batch holds no more than there are


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"precision": "bfloat16"}, "computes with precision float32, the job with bfloat16; make them agree"),
        ({"batch_norm": "batch"}, "computes with batch_norm eval, the job with batch;"),
        ({"threads": 2, "batch_size": 4}, "computes with threads 1, batch_size 8, the job with 2, 4;"),
    ],
)
def test_what_does_not_agree_is_refused_by_name(tmp_path, problem, other, fields, reason):
    with pytest.raises(JobError, match=f"^engine: run .*{reason}") as error:
        run(job_of(tmp_path, problem, other, **fields))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "mine").exists()


def test_a_run_with_several_engines_must_be_named_by_hand(tmp_path, problem, other):
    run(make_job(tmp_path / "two", lambda: problem, [{**PLANE, "name": "b"}], num_samples=21, engine="eager"))
    shutil.copytree(tmp_path / "two" / "landscapes.zarr" / "b", other / "landscapes.zarr" / "b")
    with pytest.raises(JobError, match=r"has several \(eager, batch_size 21; .*, batch_size 8\); name one of them"):
        run(job_of(tmp_path, problem, other))


def test_a_place_without_landscapes_is_refused(tmp_path, problem, other):
    (tmp_path / "empty").mkdir()
    with pytest.raises(JobError, match=r"engine: must be a run that has landscapes, not .*empty"):
        run(job_of(tmp_path, problem, tmp_path / "empty"))
    with pytest.raises(JobError, match=r"engine: must be auto.*written with a slash: \./RUN"):
        job_of(tmp_path, problem, "empty")


def test_what_was_computed_is_not_gone_on_with_by_another_runs_engine(tmp_path, problem, other):
    run(job_of(tmp_path, problem, "eager", batch_size=21))
    with pytest.raises(JobError, match=r"changed: engine eager to eager\+channels_last\+folded; batch_size 21 to 8"):
        run(job_of(tmp_path, problem, other))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", -(10**30)), ("batch_size", 0), ("batch_size", True), ("batch_size", "8"), ("threads", 0),
        ("threads", 1.5), ("seed", None), ("device", "tpu"), ("precision", "float8"), ("batch_norm", 3),
        ("engine", None), ("unknown", 1),
    ],
)  # fmt: skip
def test_a_recorded_plan_that_cannot_be_is_refused(other, field, value):
    store = LandscapeStore.open(str(other), "plane", write=True)
    store.update_attributes(plan=store.attributes["plan"] | {field: value})
    with pytest.raises(LandscapeError, match=r"its recorded plan .* is not one of this version"):
        recorded_plan(LandscapeStore.open(str(other), "plane"))


@pytest.mark.parametrize("value", ["warp", "eager+warp", 7])
def test_a_recorded_engine_that_this_version_does_not_know_is_refused(other, value):
    store = LandscapeStore.open(str(other), "plane", write=True)
    store.update_attributes(plan=store.attributes["plan"] | {"engine": value})
    with pytest.raises(LandscapeError, match=r"its recorded plan .* is not one of this version; update the software"):
        recorded_plan(LandscapeStore.open(str(other), "plane"))
