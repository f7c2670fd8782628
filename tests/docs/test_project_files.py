"""The files for contributors name what is there: targets, tools, versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import landscape

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PAGES = [path for pattern in ("*.md", "docs/**/*.md", ".github/**/*.md") for path in ROOT.glob(pattern)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_within_sentences_exist(page: Path) -> None:
    named = re.findall(r"`make ([a-z][\w -]*)`", page.read_text())
    assert {target for names in named for target in names.split()} <= TARGETS


def test_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    help_text = makefile.partition("\nhelp:\n")[2].partition("\n\n")[0]
    commands = re.findall(r'"  make ([a-z][a-z -]*?)  ', help_text)
    assert {name for line in commands for name in line.split()} == TARGETS - {"help", "suite", "compiled"}


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == landscape.__version__
    assert citation["license"] == "Apache-2.0"


def test_hooks_call_the_ruff_of_the_environment() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"].split()[:2] for hook in repository["hooks"]] == [
        [".venv/bin/ruff", "check"],
        [".venv/bin/ruff", "format"],
    ]


def test_the_workflow_runs_what_is_there() -> None:
    """Its commands are `.ci/run` and targets of the Makefile; its Pythons are those that the package names."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert "bash .ci/run" in commands
    ours = [command for command in commands if "apt-get" not in command]
    made = [command.split()[1] for command in ours if command != "bash .ci/run"]
    assert all(command.startswith("make ") for command in ours if command != "bash .ci/run")
    assert {"docs", "wheel", "image", "test-quick"} <= set(made) <= TARGETS
    pythons = jobs["pythons"]["strategy"]["matrix"]["python"]
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert pythons[0] == "3.11"
    assert {f"Programming Language :: Python :: {python}" for python in pythons} <= set(named)
    assert {step["uses"].partition("@")[0] for job in jobs.values() for step in job["steps"] if "uses" in step} == {
        "actions/checkout", "actions/setup-python", "actions/upload-artifact",
    }  # fmt: skip


def test_ci_runs_the_suite_and_the_faults() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line.removeprefix("exec ") for line in lines if "make " in line and not line.startswith("#")] == [
        "make test",
        "make test-faults",
    ]
