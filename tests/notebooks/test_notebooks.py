"""The notebooks: executed in small, in step with their sources, defining nothing, with pictures and without traces."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient.exceptions import CellExecutionError

import execute
from studies.findings import BEGIN, END, findings_table

ROOT = Path(__file__).parents[2]
SOURCES, EXECUTED = execute.sources(), execute.executed()
MOST_BYTES = 1_000_000
DATA = "scikit-learn's digits|Python's help"
TRACES = re.compile(r"/(?:tmp|home|root|work|Users)/|(?:https?://)?\b\d+\.\d+\.\d+\.\d+:\d+|\bpid \d+|site-packages")


def names(path: Path) -> str:
    return path.name


@pytest.fixture
def own_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelManager]:
    monkeypatch.setenv("LANDSCAPE_STUDY", "small")
    monkeypatch.delenv("LANDSCAPE_DATA", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with execute.kernel(tmp_path) as manager:
        yield manager


# One test for all of them: processes of the suite that took one each would start a kernel each, and importing torch
# takes longer than most of them.
@pytest.mark.faults
@pytest.mark.timeout(900)
def test_small_studies_are_executed(own_kernel):
    for source in SOURCES:
        notebook = execute.read_source(source)
        # Without the names of the notebook before; what these are made of is not looked through again.
        notebook.cells.insert(0, nbformat.v4.new_code_cell("import gc\ngc.freeze()\n%reset -f"))
        try:
            execute.execute(notebook, own_kernel)
        except CellExecutionError as error:
            pytest.fail(f"{source.name}: {error}", pytrace=False)
        shown = {
            kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})
        }
        assert "image/png" in shown, source.name
        said = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
        assert re.search(DATA, said), f"{source.name}: outputs say which data they are of"


def test_there_are_nine():
    assert [source.name[:2] for source in SOURCES] == [f"0{number}" for number in range(1, 10)]


@pytest.mark.parametrize("source", SOURCES, ids=names)
def test_a_notebook_defines_nothing(source):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    assert not [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, kinds)]


@pytest.mark.parametrize("executed", EXECUTED, ids=names)
def test_an_executed_notebook_is_in_step_with_its_source(executed):
    cells = [
        [(cell.cell_type, cell.source) for cell in notebook.cells]
        for notebook in (execute.read_source(executed.with_suffix(".py")), nbformat.read(executed, as_version=4))
    ]
    assert cells[0] == cells[1], f"`make notebooks` executes {executed.with_suffix('.py').name} anew"


@pytest.mark.parametrize("executed", EXECUTED, ids=names)
def test_an_executed_notebook_has_pictures_and_nothing_of_the_machine(executed):
    text = executed.read_text()
    assert len(text) < MOST_BYTES
    outputs = [output for cell in json.loads(text)["cells"] for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    words = json.dumps([{**output, "data": _without_pictures(output)} for output in outputs])
    assert not TRACES.findall(words)


def _without_pictures(output: dict) -> dict:
    return {kind: value for kind, value in output.get("data", {}).items() if not kind.startswith("image/")}


def test_the_page_of_studies_has_the_findings_of_the_executed_notebooks():
    table = (ROOT / "docs/studies.md").read_text().partition(BEGIN)[2].partition(END)[0]
    assert table.strip() == findings_table(EXECUTED)
