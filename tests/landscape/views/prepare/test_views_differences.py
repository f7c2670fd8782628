"""The table of what differs between runs and landscapes."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

from landscape.store.results import open_run
from landscape.views.prepare.differences import DifferenceRow, DifferencesTable, TableItem, tabulate


def rows(table: DifferencesTable, title: str) -> dict[str, DifferenceRow]:
    return {row.name: row for section in table.sections if section.title == title for row in section.rows}


def test_jobs_and_trainings_are_compared_by_dotted_keys(make: ModuleType) -> None:
    jobs = [{"run": "runs/x", "seed": seed, "landscapes": [{"name": "minimum", "size": [9, 9]}]} for seed in (0, 1)]
    infos = [{"model": "LeNet5", "hyperparameters": {"momentum": value, "nesterov": True}} for value in (0.9, 0.5)]
    items = [
        TableItem(label, make.with_record(make.quadratic(), job=job), info)
        for label, job, info in zip("ab", jobs, infos, strict=True)
    ]
    table = tabulate(items)
    assert table.columns == ("a", "b")
    job = rows(table, "Job")
    assert job["seed"] == DifferenceRow("seed", ("0", "1"), (0.0, 1.0))
    assert job["landscape.size"].values == ("[9, 9]", "[9, 9]")
    assert not job["landscape.size"].differs
    training = rows(table, "Training")
    assert training["hyperparameters.momentum"].numbers == (0.9, 0.5)
    assert training["hyperparameters.nesterov"].values == ("yes", "yes")
    left = table.differing()
    assert set(rows(left, "Training")) == {"hyperparameters.momentum"}
    assert set(rows(left, "Job")) == {"seed"}


def test_numbers_are_those_of_the_landscapes(make: ModuleType) -> None:
    one = make.with_record(make.quadratic(41, 31), origin_loss=0.1, origin_loss_stderr=0.01)
    two = make.quadratic(41, 31, offset=0.5)
    numbers = rows(tabulate([TableItem("a", one), TableItem("b", two), TableItem("run alone")]), "Numbers")
    assert numbers["lowest loss"].numbers == (0.1, 0.5, None)
    assert numbers["loss at the origin"].values == ("0.1 ± 0.02 (2 s.e.)", "0.5", None)
    assert numbers["done"].numbers == (1.0, 1.0, None)
    assert numbers["lowest loss"].differs
    holed = rows(tabulate([TableItem("a", make.holed())], "accuracy"), "Numbers")
    assert holed["done"].numbers[0] == 1 - (80 + 16) / 1200
    assert "lowest accuracy" in holed


def test_long_values_are_shortened_and_whole_behind_it() -> None:
    files = [f"/data/lenet/checkpoint_lenet-{k}.ckpt" for k in range(51)]
    others = [*files[:-1], "/data/lenet/last.ckpt"]
    infos = [{"files": names, "note": "word " * 60, "sizes": [1, 2, 3]} for names in (files, others)]
    training = rows(
        tabulate([TableItem(label, info=info) for label, info in zip("ab", infos, strict=True)]), "Training"
    )
    row = training["files"]
    assert all(value is not None and len(value) <= 40 and value.endswith("… (51 in all)]") for value in row.values)
    assert row.values[0] == row.values[1]
    assert row.differs  # in the last file
    assert row.wholes == tuple(f"[{', '.join(names)}]" for names in (files, others))
    assert len(training["note"].values[0] or "") == 40
    assert training["note"].wholes[0] == ("word " * 60).strip()
    assert not training["note"].differs
    assert training["sizes"] == DifferenceRow("sizes", ("[1, 2, 3]",) * 2, (None, None))
    huge = [{"files": files * 100}, {"files": [*files * 100, "one more"]}]
    row = rows(tabulate([TableItem(label, info=info) for label, info in zip("ab", huge, strict=True)]), "Training")[
        "files"
    ]
    assert all(whole is not None and len(whole) < 4100 and "characters, digest" in whole for whole in row.wholes)
    assert row.differs


def test_final_metrics_are_the_last_that_were_recorded() -> None:
    history = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0, "learning_rate": 0.1}, {"step": 2, "accuracy": 0.5}]
    diverged = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": None}]
    final = rows(tabulate([TableItem("a", history=history), TableItem("b", history=diverged)]), "Final metrics")
    assert list(final) == ["loss", "accuracy", "learning_rate", "last step"]
    assert final["loss"].numbers == (1.0, 3.0)
    assert final["accuracy"].numbers == (0.5, None)


def test_measures_are_read_where_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "measures.json").write_text(json.dumps({"sharpness": {"eigenvalue": 12.5, "low": [1, 2]}, "note": "x"}))
    measures = open_run(tmp_path).measures
    table = rows(tabulate([TableItem("a", measures=measures), TableItem("b")]), "Measures")
    assert table["sharpness.eigenvalue"].numbers == (12.5, None)
    assert table["sharpness.low"].values == ("[1, 2]", None)
    assert table["note"].values == ("x", None)
    for damaged in ("[1, 2]", "{", "", "[" * 100_000, '{"a": ' * 5000):
        (tmp_path / "measures.json").write_text(damaged)
        assert open_run(tmp_path).measures == {}
    (tmp_path / "measures.json").unlink()
    assert open_run(tmp_path).measures == {}


def test_hostile_documents_stay_small() -> None:
    deep: dict[str, object] = {}
    for _ in range(200):
        deep = {"k" * 300: deep}
    info = {
        "deep": deep,
        "many": {str(k): k for k in range(10_000)},
        "long": "x" * 100_000,
        "huge": 10**5000,
        "nan": float("nan"),
        "url": "s3://name:secret@bucket/run",
        "list": list(range(1000)),
    }
    table = tabulate(
        [TableItem("a", info={key: info[key] for key in ("long", "huge", "nan", "url", "list", "deep", "many")})]
    )
    training = rows(table, "Training")
    assert len(training) <= 400
    assert all(len(name) <= 200 and len(row.values[0] or "") <= 260 for name, row in training.items())
    assert "secret" not in str(training["url"])
    assert training["huge"].numbers == (None,)
    assert training["nan"].values == ("not finite",)
