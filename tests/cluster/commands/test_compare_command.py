"""`landscape compare` of two landscapes as a user gives it: the numbers, the pictures, and what is refused."""

from __future__ import annotations

import json

from landscape import open_run, run
from landscape.job.reading import read_job
from landscape.views.prepare.tables import landscape_rows
from landscape.views.report import write_report
from landscape.views.report_sections import compared_section

PROBLEM = """
import torch
from landscape import Problem

def problem():
    torch.manual_seed(0)
    inputs = torch.randn(64, 6)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    return Problem.supervised(model, (inputs, inputs[:, :3].argmax(1)), metrics=["accuracy"])
"""
JOB = """\
run: run
problem: compared_problem:problem
num_samples: 64
landscapes:
  - {name: float, size: 3, range: [-0.1, 0.1]}
  - {name: small, like: float, quantise: {bits: 4}}
"""


def test_two_landscapes_are_compared_by_their_names(call, tmp_path):
    (tmp_path / "compared_problem.py").write_text(PROBLEM)
    (tmp_path / "job.yaml").write_text(JOB)
    run(read_job(tmp_path / "job.yaml"))
    pair = (f"{tmp_path / 'run'}:float", f"{tmp_path / 'run'}:small")
    cheap = ("--bits", "2,8", "--points", 4, "--steps", 3, "--serial")
    code, out, err = call("compare", *pair, *cheap, "--patch", 2, "--out", tmp_path / "pictures", "--to", "html,csv")
    assert code == 0, err
    assert "patch: 2 × 2 points in float32, 10 evaluations of all 64 samples" in err
    assert "weights rounded to 4 bits per channel" in out
    assert "loss at the origin by bits:" in out
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "bits.csv", "bits.html", "difference.csv", "difference.html", "patch-surface.html", "patch.csv", "patch.html",
        "steps.csv", "steps.html",
    ]  # fmt: skip
    table = (tmp_path / "pictures" / "patch.csv").read_text().splitlines()
    assert table[0] == "alpha,beta,unrounded,rounded"
    assert len(table) == 5
    code, out, _ = call("compare", *pair, *cheap, "--json")
    found = json.loads(out)
    assert [each["bits"] for each in found["bits"]] == [2, 8]
    assert found["origin"]["stderr"] < found["origin"]["unpaired_stderr"]
    code, _, err = call("compare", *pair, "--bits", "2,8", "--points", 0, "--steps", 3, "--serial", "--keep")
    assert code == 0, err
    code, _, err = call("compare", *pair, "--bits", "none", "--points", 0, "--steps", 5, "--serial", "--keep")
    assert code == 0, err
    opened = open_run(tmp_path / "run")
    kept = opened["small"].record.compared
    # What was not asked for again has stayed.
    assert kept is not None
    assert [each.difference for each in kept.bits] == [each["difference"] for each in found["bits"]]
    assert kept.steps is not None
    assert len(kept.steps.at) == 5
    assert opened["float"].record.compared is None
    (row,) = (text for name, text in landscape_rows(opened["small"]) if name == "loss at the origin by bits")
    assert row.startswith(f"2: {found['bits'][0]['loss']:.4g}"[:8])
    assert "none: " in row
    page = write_report(opened, tmp_path / "report.html").read_text()
    assert page.count("<h3>Rounding</h3>") == 1
    assert compared_section(opened["small"]) in page
    assert "Rise of each loss over its own at the origin, on a short line: not rounded dashed, rounded solid" in page
    for words, message in (
        ((*pair, "--keep", "--steps", "1002"), "steps: must be at most 1001 with --keep, not 1002"),
        ((pair[0], pair[0], "--keep"), "keep: must be of landscapes one of which is quantised, and neither is"),
        ((tmp_path / "run", tmp_path / "run", "--keep"), "keep: goes with two landscapes"),
        ((*pair, "--bits", "0-4"), "bits: must be from 1 to 16"),
        ((*pair, "--steps", "-1"), "steps: must be at least 0, not -1"),
        ((*pair, "--steps", "1"), "steps: must be at least 2, between which the loss can jump, or 0 for none, not 1"),
        ((*pair, "--steps", "1000000000"), "steps: must be at most 10000, not 1000000000"),
        ((*pair, "--patch", "1"), "patch: must be at least 2, or 0 for none, not 1"),
        ((*pair, "--patch", "302"), "patch: must be at most 301, not 302"),
        ((*pair, "--to", "png"), "to: goes with --out"),
        ((*pair, "--out", tmp_path, "--to", "gif"), "to: unknown 'gif'"),
        ((tmp_path / "run", tmp_path / "run", "--bits", "2"), "bits: goes with two landscapes"),
    ):
        code, _, err = call("compare", *words)
        assert code == 2
        assert message in err
