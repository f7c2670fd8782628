"""Landscapes whose runs have trained on since: their own job is made again, and a job that contradicts is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_models import make_job, quadratic_problem, wandering, write_trajectory

from cluster.runtime.status import run_status, status_text
from landscape import JobError, open_run, run
from landscape.analysis.checks.check import CheckContext
from landscape.analysis.checks.evidence import Evidence
from landscape.analysis.checks.table import CHECKS
from landscape.compute.prepare import prepare
from landscape.compute.recorded_job import recorded_job
from landscape.job.reading import spec_as_computed
from landscape.model import history
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record
from landscape.views.prepare.words import caption

SPECS = [
    {"name": "own", "trajectory": "all"},
    {"name": "all", "directions": [{"kind": "pca", "trajectory": "all"}]},
    {"name": "mixed", "directions": [{"kind": "pca", "trajectory": "all"}, {"kind": "random"}], "range": [-9, 9]},
    {"name": "both", "paths": [".", "../other"]},
    {"name": "drawn", "paths": ["../other"], "origin": "../other@last", "directions": [{"kind": "random"}]},
    {"name": "line", "origin": "../other@first", "directions": [{"kind": "towards", "target": "last"}]},
    {"name": "plane", "plane": ["last", "first", "../other@last"]},
    {"name": "random"},
    {"name": "elsewhere", "origin": "../other@last"},
]
NAMES = [spec["name"] for spec in SPECS]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a landscape of each kind, whose training went on after these, as that of another run did."""
    folder, model = tmp_path_factory.mktemp("grown"), quadratic_problem().model
    own, other = wandering(model, 6, seed=1), wandering(model, 5, seed=2)
    write_trajectory(folder / "own", {number: own[number] for number in range(1, 5)})
    write_trajectory(folder / "other", {number: other[number] for number in range(1, 4)}, "step")
    lines = [json.dumps({"step": step, "epoch": 0, "loss": 10.0 - step}) for step in range(1, 6)]
    (folder / "other" / "history.jsonl").write_text("\n".join(lines) + "\n")
    run(job_of(folder, *SPECS))
    write_trajectory(folder / "own", own)
    write_trajectory(folder / "other", other, "step")
    return folder


def job_of(folder: Path, *specs):
    named, listed = "small_models:quadratic_problem", [{"size": 3, **spec} for spec in specs]
    return make_job(folder / "own", named, listed).in_folder(folder / "own")


@pytest.mark.parametrize("name", NAMES)
def test_the_job_of_a_landscape_means_the_snapshots_that_there_were(grown: Path, name: str) -> None:
    store = LandscapeStore.open(str(grown / "own"), name)
    again = prepare(recorded_job(str(grown / "own"), store)).landscapes[0]
    assert again.identity == store.identity.whole
    assert again.record.origin == store.record.origin


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("own", "(1-4 of trajectory)"),
        ("mixed", "(1-4 of trajectory)"),
        ("both", "(1-4 of path 1; 1-3 of path 2)"),
        ("drawn", "(1-3 of path 1; ../other@last was 3)"),
    ],
)
def test_a_job_of_all_snapshots_is_told_which_to_list(grown: Path, name: str, remedy: str) -> None:
    with pytest.raises(JobError) as refused:
        prepare(job_of(grown, SPECS[NAMES.index(name)]))
    assert f": training has gone on since; list the snapshots that it had {remedy}, or give" in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_job_that_means_another_last_snapshot_by_now_is_told_which_to_name(grown: Path) -> None:
    random = SPECS[NAMES.index("random")]
    with pytest.raises(JobError) as refused:
        prepare(job_of(grown, random))
    remedy = "the last snapshot was epoch 4 then, and is epoch 6 now; write `origin: 4` in the job, or give"
    assert f"changed: origin (other weights): {remedy}" in str(refused.value)
    prepare(job_of(grown, {**random, "origin": 4}))
    elsewhere = SPECS[NAMES.index("elsewhere")]
    with pytest.raises(JobError) as refused:
        prepare(job_of(grown, elsewhere))
    remedy = "the last snapshot of ../other was 3 then; write `origin: ../other@3` in the job"
    assert f"changed: origin (other weights): {remedy}" in str(refused.value)
    prepare(job_of(grown, {**elsewhere, "origin": "../other@3"}))
    with pytest.raises(JobError, match=r"changed: seed 0 to 1.*: change it back"):
        prepare(job_of(grown, {**random, "origin": 4}).model_copy(update={"seed": 1}))


def test_a_run_that_is_opened_says_how_far_training_has_gone_since(grown: Path) -> None:
    lines = [json.dumps({"epoch": number, "loss": 1.0, "epoch_end": True}) for number in (5, 6)]
    (grown / "own" / "history.jsonl").write_text("\n".join(lines) + "\n")
    opened = open_run(grown / "own")
    assert "Origin: epoch 4 (training went on to epoch 6)" in caption(opened["own"], "loss")
    assert opened["line"].record.went_on_to == LandscapeStore.open(str(grown / "own"), "line").record.went_on_to
    (grown / "own" / "history.jsonl").unlink()
    assert "Origin: epoch 4" in caption(open_run(grown / "own")["own"], "loss")


@pytest.mark.parametrize(
    ("losses", "at_origin", "ended"),
    [
        ([3, 2, 1, 0, 0], None, "the log ended at 1.2 (step 5)"),
        ([0, 0, 0, 0, 0], None, "the log ended at 0 (step 5)"),
        ([3, 2, 1, None, None], None, ""),
        (
            [3, None, None, 1, 1],
            "the training log of other has no finite loss at step 3, 3 on average up to step 1",
            "",
        ),
        ([None] * 5, "the training log of other has no finite loss at step 3", ""),
    ],
)
def test_a_log_that_is_not_finite_is_no_loss_to_expect(grown: Path, losses, at_origin, ended) -> None:
    history = grown / "other" / "history.jsonl"
    before = history.read_text()
    lines = [json.dumps({"step": step, "epoch": 0, "loss": loss}) for step, loss in enumerate(losses, 1)]
    history.write_text("\n".join(lines) + "\n")
    try:
        evidence = Evidence.of(str(grown / "own"), "drawn")
        assert evidence.log_not_finite == (at_origin or "")
        assert evidence.origin_went_on_to == "step 5" + (" (no finite loss)" if losses[-1] is None else "")
        assert (evidence.logged is None) == (at_origin is not None)
        assert evidence.logged is None or evidence.logged.ended == ended
        assert not (at_origin and evidence.last_stretches)
        text = CHECKS["2"][1](CheckContext(evidence, None)).text
        assert all(said in text for said in (at_origin or "", ended))
        assert losses[-1] is not None or "training went on to step 5 (no finite loss)" in text
    finally:
        history.write_text(before)


def test_what_is_told_of_a_log_reads_it_once(grown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, read_one = [], history.history_data

    def counted(folder):
        read.append(Path(folder.name).resolve())
        return read_one(folder)

    monkeypatch.setattr(history, "history_data", counted)
    evidence = Evidence.of(str(grown / "own"), "drawn")
    assert (evidence.logged.loss, evidence.origin_went_on_to, len(evidence.last_stretches)) == (8.0, "step 5", 0)
    assert read == [(grown / "other").resolve()]
    read.clear()
    assert run_status(str(grown / "other"))["went_on_to"] is None
    assert read == [(grown / "other").resolve()]
    status = run_status(str(grown / "own"))
    assert {each["name"]: each["origin"] for each in status["landscapes"]}["both"] == "own epoch 4"
    assert "loss at the origin (own epoch 4) " in status_text(status)


def test_the_log_of_the_run_whose_snapshot_is_the_origin_says_what_its_loss_should_be(grown: Path) -> None:
    found = {name: Evidence.of(str(grown / "own"), name) for name in ("both", "drawn", "line")}
    assert found["both"].origin_snapshot == (str(grown / "own"), 4)
    assert found["both"].logged is None
    assert found["both"].log_in_words == "your training log"
    assert found["drawn"].log_in_words == "the training log of other"
    assert found["drawn"].logged.loss == 8.0, "the mean of the losses of its three steps"
    assert found["drawn"].logged.words == "at step 3 the training log of other had"
    assert found["drawn"].logged.ended == "the log ended at 7 (step 5)", "the mean over its five steps"
    assert len(found["drawn"].last_stretches) < 2, "a log of one epoch"
    assert found["line"].origin_snapshot[1] == 1


def test_what_a_document_says_of_a_landscape_may_be_anything() -> None:
    odd = {"trajectory": "all", "directions": [7, {"kind": "pca", "trajectory": "all"}], "paths": [3], "plane": 5}
    identity = {"directions": [{}, {"snapshots": {"x": 1}}], "paths": [7, 8]}
    assert spec_as_computed(Record().changed(job={"landscapes": [odd]}, identity=identity)) == odd
    assert spec_as_computed(Record().changed(job={"landscapes": [{"directions": 7}]})) == {"directions": 7}
