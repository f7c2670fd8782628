"""Where the data of a recipe are looked for, in which order, and what is said where they are not."""

import json
import logging

import numpy as np
import pytest

from landscape import NotFoundError, open_run, run
from landscape.core.errors import JobError
from landscape.job.reading import read_job
from landscape.problem.network import telling_network
from landscape.recipes import cifar10
from landscape.recipes.data import DataPlace

PLACE = DataPlace("the folder with numbers", "LANDSCAPE_NUMBERS")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("LANDSCAPE_NUMBERS", "LANDSCAPE_DATA", "LANDSCAPE_CIFAR10"):
        monkeypatch.delenv(name, raising=False)


def remembering(folder, path):
    """A run that was trained on data there."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"network": {"data": str(path)}}))
    return folder


def test_the_more_particular_of_several_names_is_taken(tmp_path, monkeypatch):
    before = remembering(tmp_path / "run", tmp_path)
    monkeypatch.setenv("LANDSCAPE_DATA", "/common")
    assert PLACE.for_training(None, tmp_path / "new") == "/common"
    assert PLACE.for_training(None, before) == str(tmp_path)
    assert PLACE.for_training(None, before, overwrite=True) == "/common"
    with telling_network({"data": str(tmp_path)}):
        assert PLACE.for_callback() == str(tmp_path)
        monkeypatch.setenv("LANDSCAPE_NUMBERS", "/mine")
        assert PLACE.for_callback() == "/mine"
    assert PLACE.for_training(None, before) == "/mine"
    assert PLACE.for_training("/given", before) == "/given"


def test_other_data_than_before_are_told(tmp_path, caplog):
    before = remembering(tmp_path / "run", "/elsewhere/numbers")
    with caplog.at_level(logging.WARNING, "landscape"):
        PLACE.for_training("/elsewhere/numbers", before)
        PLACE.for_training("/given", before, overwrite=True)
        assert not caplog.messages
        PLACE.for_training("/given", before)
    assert caplog.messages == ["data: the run was trained on '/elsewhere/numbers', and is now on '/given'"]


def test_a_relative_path_is_remembered_from_wherever_it_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert PLACE.for_training("numbers", tmp_path) == str(tmp_path / "numbers")


def test_data_that_are_no_longer_there_are_named_with_the_remedy(tmp_path, monkeypatch, caplog):
    before = remembering(tmp_path / "run", "/elsewhere/numbers")
    gone = r"^data: '/elsewhere/numbers', on which the run was trained, is not on this machine; "
    with pytest.raises(NotFoundError, match=gone + "give data, or set .* LANDSCAPE_NUMBERS to the folder with numbers"):
        PLACE.for_training(None, before)
    with telling_network({"data": "/elsewhere/numbers"}):
        with pytest.raises(NotFoundError, match=gone + "set the environment variable LANDSCAPE_NUMBERS to the folder"):
            PLACE.for_callback()
        monkeypatch.setenv("LANDSCAPE_DATA", "/common")
        with caplog.at_level(logging.WARNING, "landscape"):
            assert PLACE.for_callback() == "/common"
        assert "'/elsewhere/numbers', on which the run was trained, is not on this machine; taken from" in caplog.text


def test_where_nothing_names_the_data_every_variable_that_could_is_told():
    with pytest.raises(JobError, match=r"data: must name the folder with numbers; .* LANDSCAPE_NUMBERS or LANDSCAPE_D"):
        PLACE.for_training(None, "absent")
    alone = DataPlace("the folder", "LANDSCAPE_NUMBERS", in_common=False)
    with pytest.raises(JobError, match="variable LANDSCAPE_NUMBERS must name the folder"):
        alone.for_callback()


def test_a_job_of_two_lines_has_the_data_that_its_run_was_trained_on(tmp_path, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "test"):
        images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
        np.savez(data / f"cifar10-{split}-8.npz", images=images, labels=np.arange(8))
    options = {"depth": 8, "batch_size": 8, "device": "cpu", "intervals": [[0, 1, 2]]}
    monkeypatch.chdir(tmp_path)
    cifar10.train("run", "data", 2, **options)
    (tmp_path / "job.yaml").write_text(
        "run: run\nlandscapes: [{name: line, size: 3, range: [-1, 1], directions: [{kind: random, seed: 1}]}]\n"
    )
    monkeypatch.chdir("/")
    run(read_job(tmp_path / "job.yaml"))
    assert np.isfinite(open_run(tmp_path / "run")["line"].loss).all()
    monkeypatch.setenv("LANDSCAPE_DATA", str(tmp_path / "moved"))
    data.rename(tmp_path / "moved")
    # On another machine LANDSCAPE_DATA serves; trained on, the run remembers that.
    cifar10.train(tmp_path / "run", None, 3, **options | {"intervals": [[0, 1, 2]]}, overwrite=True)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["network"]["data"] == str(tmp_path / "moved")
