"""The progress of a job: lines from a script, a bar on a terminal and in a notebook, nothing where it is not wanted."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path

import nbformat
import pytest
from rich.console import Console
from small_models import make_job, quadratic_problem
from waiting import wait_for

import cluster
import execute
import landscape
from landscape.core.plan import Engine
from landscape.core.progress import CHOOSING, ProgressDisplay, stage
from landscape.evaluation.tuning.choices import Candidate
from landscape.evaluation.tuning.search import report_candidate

IN_A_NOTEBOOK = """
from landscape.core.progress import Progress, show_progress, stage

with show_progress(None) as display:
    stage("finding the range")
    for done in range(0, 101, 10):
        display(Progress("plane", done // 10, 10, done, 100, 2.0, 50.0))
"""


@pytest.mark.parametrize("run", [landscape.run, cluster.run])
def test_a_script_gets_a_line_for_every_tenth_unless_it_asks_for_none(run, tmp_path, capsys):
    def job(folder: Path) -> landscape.Job:
        return make_job(folder, quadratic_problem, [{"name": "plane", "size": 3}], tile=(1,))

    run(job(tmp_path / "told"))
    told = capsys.readouterr()
    assert [*re.findall(r"plane: (\d)/9 points", told.err)][-1] == "9"
    assert len(re.findall("^plane: ", told.err, re.M)) >= 9
    assert not told.out
    run(job(tmp_path / "silent"), progress=False)
    watched = []
    run(job(tmp_path / "watched"), observer=watched.append)
    assert watched[-1].points_done == 9
    assert capsys.readouterr() == ("", "")


def test_extending_and_refining_show_theirs_too(tmp_path, capsys, caplog):
    job = make_job(tmp_path, quadratic_problem, [{"name": "line", "directions": [{"kind": "random"}], "size": 3}])
    landscape.run(job, progress=False)
    for more in (partial(landscape.extend, ranges=[(-2, 2)]), landscape.refine):
        more(tmp_path, "line", problem=quadratic_problem, progress=False)
        assert (capsys.readouterr().err, caplog.messages) == ("", [])
    landscape.refine(tmp_path, "line", factor=4, problem=quadratic_problem)
    assert "line: " in capsys.readouterr().err


def test_a_terminal_shows_the_candidate_beside_the_stage():
    written = io.StringIO()
    with ProgressDisplay(Console(file=written, force_terminal=True, width=200, color_system=None)):
        stage(CHOOSING)
        report_candidate(Candidate(Engine.parse("eager+maxima"), 64), 1, 7, 12.0)
        line = f"{CHOOSING}.* engine 1 of about 7: eager\\+maxima, batches of 64; 12 s left"
        wait_for(lambda: re.search(line, written.getvalue()), "the bar, which is drawn ten times a second")


@pytest.mark.long
def test_a_notebook_shows_one_bar_that_is_drawn_anew_in_its_cell(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(IN_A_NOTEBOOK)])
    with execute.kernel(tmp_path) as manager:
        execute.execute(notebook, manager)
    (shown,) = notebook.cells[0].outputs  # no warning that ipywidgets is not installed
    assert shown["output_type"] == "display_data"
    assert re.search(r"plane.*100/100.*50/s *$", re.sub(r"<[^>]*>|\s+", " ", shown["data"]["text/html"]))
    assert "range" not in shown["data"]["text/html"]
