"""How a run is named."""

from pathlib import Path

import pytest

from landscape.core.errors import JobError
from landscape.core.folders import open_folder


@pytest.mark.parametrize("run", ["", "  ", "\n", Path(), Path("")])
def test_an_empty_name_is_not_the_current_directory(run):
    with pytest.raises(JobError, match="run: must name a folder or URL, not"):
        open_folder(run)


def test_the_current_directory_can_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_folder(".").name == str(tmp_path)
    assert open_folder("./here").name == str(tmp_path / "here")


def test_a_name_that_no_folder_can_have_is_of_none(tmp_path):
    assert not open_folder(tmp_path / ("x" * 300)).exists()
