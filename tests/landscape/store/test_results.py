"""What a reader opens: a run by its folder, and what is said where something else is named."""

from __future__ import annotations

import pytest

from landscape import NotFoundError, open_run


def test_a_job_file_given_for_a_run_is_told_which_run_is_the_jobs(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("run: runs/mine\nproblem: my_problem:problem\n")
    with pytest.raises(NotFoundError) as caught:
        open_run(job)
    assert f"not the file '{job}'; the run of this job is '{tmp_path / 'runs/mine'}'" in str(caught.value)


@pytest.mark.parametrize("content", [b"def problem(): ...", b"\x00\xff", b""])
def test_another_file_given_for_a_run_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(NotFoundError, match=r"must be a folder or URL, not the file .*; name the run"):
        open_run(tmp_path / "file")
