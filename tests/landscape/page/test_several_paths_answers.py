"""What the page is told of a landscape that draws the paths of several runs, and the job of a box of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from opened_page import opened
from page_client import Client
from small_models import make_job, quadratic_problem, wandering, write_trajectory

from landscape import read_job, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainings, and a run with the landscape of both, of which only paths by relative names are known."""
    folder, model = tmp_path_factory.mktemp("paths"), quadratic_problem().model
    write_trajectory(folder / "sgd", wandering(model, 4, seed=1))
    write_trajectory(folder / "thor", wandering(model, 3, seed=2), "step")
    spec = {"name": "both", "paths": ["sgd", {"run": "thor", "label": "THOR"}], "size": [4, 3]}
    run(make_job(folder / "both", quadratic_problem, [spec], num_samples=23).in_folder(folder))
    return folder


@pytest.fixture
def page(folder: Path) -> Iterator[tuple[Client, str]]:
    with opened(folder) as (client, ids):
        yield client, ids["both"]


def test_each_path_is_told_by_itself_and_a_box_has_the_same_paths(page: tuple[Client, str], folder: Path):
    client, both = page
    (landscape,) = client.json(f"/api/run?run={both}")["landscapes"]
    assert [(path["label"], path["unit"], path["numbers"]) for path in landscape["paths"]] == [
        ("sgd", "epoch", [1, 2, 3, 4]), ("THOR", "step", [1, 2, 3]),
    ]  # fmt: skip
    assert landscape["paths"][1]["places"]["alpha"] == landscape["path"]["places"]["alpha"][4:]
    told = client.json(f"/api/job?run={both}&landscape=both&box=0,1,0,1&size=3")
    assert "Paths in it are relative to the folder" in told["note"]
    write_trajectory(folder / "sgd", {9: wandering(quadratic_problem().model, 1)[1]})  # it has trained on since
    assert client.json(f"/api/job?run={both}&landscape=both&box=0,1,0,1&size=3")["yaml"] == told["yaml"]
    document = yaml.safe_load(told["yaml"]) | {"problem": "small_models:quadratic_problem"}
    (folder / "box.yaml").write_text(yaml.safe_dump(document))
    surface = run(read_job(folder / "box.yaml"))["both-box"]
    assert [path.label for path in surface.paths] == ["sgd", "THOR"]
    assert surface.paths[1].loss.tolist() == landscape["paths"][1]["loss"]
