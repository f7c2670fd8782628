"""What the reference is made of: the JSON schema of a job takes what `read_job` takes, the drawing shows the table."""

from __future__ import annotations

import ast
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from blocks import blocks_of

from landscape import Job, JobError

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs" / "_ext"))
JOB_FILES = [ROOT / "cluster/commands/templates/job.yaml", ROOT / "deploy/examples/job.yaml"]
WHOLE_JOBS = [
    block.code
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    for block in blocks_of(page)
    if block.language == "yaml" and "run:" in block.code
]
LEAST: dict[str, Any] = {"run": "runs/mine", "problem": "my_problem:problem"}
REFUSED = [
    {"sizes": 40},
    {"run": 3},
    {"num_samples": 0},
    {"seed": -1},
    {"seed": 1.5},
    {"precision": "float8"},
    {"workers": 1_000_000},
    {"num_gpus": -1},
    {"collect_landscape": {"intervals": [[1, 2]]}},
    {"tile": 0},
    *(
        {"landscapes": [{"name": "a", **fields}]}
        for fields in (
            {"siez": 40},
            {"size": 2},
            {"size": "forty"},
            {"range": [1]},
            {"trajectory": [1, 2]},
            {"trajectory": "some"},
            {"axes": 4, "trajectory": "all"},
            {"directions": [{"kind": "sideways"}]},
            {"directions": [{"kind": "random", "normalise": "filters"}]},
            {"directions": [{"kind": "towards"}]},
        )
    ),
    {"landscapes": [{"size": 41}]},
]
TAKEN = [
    {},
    {"tile": 4, "num_gpus": 0.5, "device_ids": [0, 1], "engine": "eager"},
    {"landscapes": [{"name": "a", "size": [5, 7], "range": [[-1, 1], [0, 1]]}]},
    {"landscapes": [{"name": "a", "trajectory": "all", "axes": 1, "origin": 3}]},
    {"collect_landscape": {"intervals": [[1, 2, 3]], "unit": "epoch", "create_landscape": {"train": False}}},
]


def errors_of(job: dict[str, Any]) -> list[str]:
    """What the schema has against a job."""
    jsonschema = pytest.importorskip("jsonschema")
    return [error.message for error in jsonschema.Draft202012Validator(Job.model_json_schema()).iter_errors(job)]


@pytest.mark.parametrize("text", [path.read_text() for path in JOB_FILES] + WHOLE_JOBS)
def test_the_schema_takes_the_jobs_that_are_shown(text):
    assert errors_of(yaml.safe_load(text)) == []


@pytest.mark.parametrize("fields", TAKEN, ids=str)
def test_the_schema_takes_what_a_job_takes(fields):
    Job(**LEAST | fields)
    assert errors_of(LEAST | fields) == []


@pytest.mark.parametrize("fields", REFUSED, ids=str)
def test_the_schema_refuses_what_a_job_refuses(fields):
    with pytest.raises(JobError):
        Job(**LEAST | fields)
    assert errors_of(LEAST | fields)


def test_every_field_of_a_job_is_described():
    schema = Job.model_json_schema()
    for name, part in {"Job": schema, **schema["$defs"]}.items():
        undescribed = {field for field, value in part["properties"].items() if not value.get("description")}
        assert undescribed <= {"kind"}, name


def test_the_reference_of_the_job_has_words_for_every_field():
    """The build of the documentation, which takes a minute, would end at one that it has none for."""
    from generated import job_fields

    assert "a mapping of `steps`, a whole number from 1" in job_fields()


def test_the_pages_of_the_reference_hold_what_is_generated_now():
    from generated import pages

    outdated = [path.name for path, text in pages().items() if path.read_text() != text]
    assert outdated == [], "write them anew: python docs/_ext/generated.py"


def test_every_option_says_what_it_does():
    from generated import command_line

    assert [line for line in command_line().splitlines() if re.match(r"\* `.*`:\s*$", line)] == []


def test_the_help_of_export_and_the_page_on_figures_list_every_format_kind_preset_and_colour_scale():
    from generated import command_line

    from landscape.views.exporting import FORMATS
    from landscape.views.figure_spec import COLOUR_TABLE, KIND_TABLE, PRESETS

    names = {*FORMATS, *KIND_TABLE, *PRESETS, *COLOUR_TABLE}
    section = command_line().partition("## landscape export")[2].partition("\n## ")[0]
    assert {*names, "report"} <= set(re.findall(r"[\w-]+", section))
    page = (ROOT / "docs/howto/figure.md").read_text(encoding="utf-8")
    assert names - {"html"} <= set(re.findall(r"[\w-]+", page)), "name it in docs/howto/figure.md"


def test_every_command_has_a_section():
    from generated import command_line

    from cluster.commands.app import app

    sections = {line.removeprefix("## landscape ") for line in command_line().splitlines() if line.startswith("## ")}
    assert sections == {name for name in app.resolved_commands() if not name.startswith("-")}


FOLDERS = ("*.md", "docs/**/*.md", "deploy/*.md", ".github/**/*.md")
PAGES = [page for folder in FOLDERS for page in ROOT.glob(folder) if page.name != "CHANGELOG.md"]  # tells of what was


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_project_that_a_page_names_exist(page):
    paths = re.findall(r"`((?:landscape|cluster|tests|docs|deploy)/[\w./-]*)`", page.read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert len(paths) > 40 or page.name != "architecture.md"


def places_of_changes():
    """The rows of "Where does it go": what is added, and the cells that say where."""
    table = (
        (ROOT / "docs" / "architecture.md").read_text().partition("\n## Where does it go\n")[2].partition("\n## ")[0]
    )
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| a")]
    return {row[0].strip(): "|".join(row[1:]) for row in rows}


def defined_in(file):
    """The names of a file's functions, classes, variables and fields, at any depth."""
    if file.suffix == ".js":
        return set(re.findall(r"\b(?:function|class|const|let) (\w+)", file.read_text()))
    nodes = list(ast.walk(ast.parse(file.read_text())))
    targets = [node.targets for node in nodes if isinstance(node, ast.Assign)]
    targets += [[node.target] for node in nodes if isinstance(node, ast.AnnAssign)]
    variables = {target.id for group in targets for target in group if isinstance(target, ast.Name)}
    return variables | {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@pytest.mark.parametrize("change", places_of_changes())
def test_a_change_goes_to_files_and_names_that_are_there(change):
    named = re.findall(r"`([^`]+)`", places_of_changes()[change])
    paths = [ROOT / name for name in named if "/" in name]
    assert [path for path in paths if not path.exists()] == []
    known = {"eval", "submit"}.union(*(defined_in(path) for path in paths if path.suffix in (".py", ".js")))
    known.update(file.name for path in paths if path.is_dir() for file in path.iterdir())
    assert [name for name in named if "/" not in name and name not in known] == []


def test_the_changes_that_are_asked_for_most_have_their_places():
    asked = {"an export format", "a colour scale", "a Slurm option", "a retry rule", "a batch-norm mode"}
    assert asked | {"a normalisation of directions"} <= set(places_of_changes())


def test_the_drawing_shows_every_room():
    import layers

    table = layers.layer_table(layers.TABLE.read_text())
    rooms = [name for line in table for names in layers.rooms_of(line).values() for name in names]
    drawing, described = layers.draw(table), layers.describe(table)
    assert all(f">{name}</text>" in drawing for name in rooms)
    assert described.count("\n") == len(rooms) + 1
    boxes = re.findall(r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)"', drawing)
    ends = sorted((int(y), float(x), float(x) + float(width)) for x, y, width in boxes)
    assert len(ends) == len(rooms)
    assert all(one[2] < other[1] for one, other in itertools.pairwise(ends) if one[0] == other[0]), "boxes overlap"


def test_the_drawing_and_the_rooms_in_the_repository_are_those_of_now():
    import layers

    outdated = [path.name for path, text in layers.files().items() if not path.exists() or path.read_text() != text]
    assert outdated == [], "write them anew: python docs/_ext/layers.py"


def test_every_variable_that_the_program_reads_is_listed():
    packages = ("landscape", "cluster", "notebooks/studies")
    sources = [path.read_text() for package in packages for path in (ROOT / package).rglob("*.py")]
    read = {name for text in sources for name in re.findall(r"\bLANDSCAPE_[A-Z0-9_]*[A-Z0-9]\b", text)}
    listed = set(re.findall(r"`(LANDSCAPE_\w+)`", (ROOT / "docs" / "reference" / "environment.md").read_text()))
    assert read == listed
