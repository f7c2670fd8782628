"""The functions that commands have in Python: the same words, the same results, a surface in place of run and name."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import landscape
from landscape import JobError, open_run, run
from landscape.analysis.inspection import plain_inspection
from landscape.analysis.quantised_report import document
from landscape.job.reading import read_job
from landscape.surface.record import plain

LANDSCAPES = [{"name": "plane", "size": 3}, {"name": "rounded", "like": "plane", "quantise": {"bits": 4}}]


@pytest.fixture
def place(write_job) -> Path:
    return Path(run(read_job(write_job(landscapes=LANDSCAPES)), progress=False).path)


def without_clock(values: dict) -> dict:
    return {key: value for key, value in values.items() if key not in ("when", "seconds", "verdict", "judged", "name")}


def test_check(place, call):
    _, out, _ = call("check", place, "--serial", "--json")
    said = {entry["name"]: without_clock(entry) for entry in json.loads(out)["landscapes"]}
    found = landscape.check(place)
    assert list(found) == ["plane", "rounded"]
    assert {name: json.loads(json.dumps(without_clock(plain(checks)))) for name, checks in found.items()} == said
    (name,) = landscape.check(open_run(place)["rounded"])
    assert name == "rounded"
    assert open_run(place)["rounded"].record.checks is not None


def test_measure(place, call):
    _, out, _ = call("measure", place, "--serial", "--json", "--landscape", "plane")
    assert landscape.measure(open_run(place)["plane"], progress=False).document() == json.loads(out)
    rows = landscape.measure(place, landscape="plane", progress=False).rows
    assert set(rows) == set(json.loads(out)["origins"]["problem"]["rows"])


def test_inspect(place, call):
    _, out, _ = call("inspect", place, "plane", "--at=0.5,-0.5", "--serial", "--json")
    found = landscape.inspect(open_run(place)["plane"], at=(0.5, -0.5))
    assert json.loads(json.dumps(plain_inspection(found))) == json.loads(out)


def test_compare(place, call):
    texts = [f"{place}:{name}" for name in ("plane", "rounded")]
    _, out, _ = call("compare", *texts, "--bits", "2,4", "--steps", "0", "--serial", "--json")
    surfaces = [open_run(place)[name] for name in ("plane", "rounded")]
    found = landscape.compare(*surfaces, bits="2,4", steps=0)
    assert json.loads(json.dumps(document(found))) == json.loads(out)
    with pytest.raises(JobError, match="steps: goes with two landscapes"):
        landscape.compare(str(place), str(place), steps=3)


@pytest.mark.parametrize("command", ["check", "measure", "compare", "inspect", "refine", "pack", "connect"])
def test_a_function_has_the_words_of_its_command(command):
    """What the command's main words are called, the function's arguments are called."""
    from cluster.commands.app import app

    words = {
        word.lstrip("-").replace("-", "_")
        for argument in app[command].assemble_argument_collection()
        for word in argument.names
    }
    given = set(inspect.signature(getattr(landscape, command)).parameters)
    own = {
        "check": {"run", "name", "deep"},
        "measure": {"run", "origins", "landscape", "samples", "seed", "layers", "all"},
        "compare": {"first", "second", "bits", "points", "steps", "patch"},
        "inspect": {"run", "name", "at", "gradients", "rules"},
        "refine": {"run", "name", "factor", "box"},
        "pack": {"job"},
        "connect": {"job", "first", "second", "name", "size", "match", "table", "bend", "points"},
    }[command]
    assert own <= given
    assert own <= words


@pytest.mark.parametrize("package", ["landscape", "cluster"])
@pytest.mark.parametrize("order", ["names first", "modules first"])
def test_no_public_function_is_lost_to_a_submodule_of_its_name(package, order):
    """Importing PACKAGE/plan.py would set the attribute `plan` of the package to the module."""
    code = f"""
import importlib, pkgutil, {package} as package
submodules = [entry.name for entry in pkgutil.iter_modules(package.__path__) if entry.name != "__main__"]
names = lambda: [getattr(package, name) for name in package.__all__]
modules = lambda: [importlib.import_module(f"{{package.__name__}}.{{name}}") for name in submodules]
if {order == "names first"}:
    names(), modules()
else:
    modules(), names()
import types
assert not set(submodules) & set(package.__all__)
assert not [name for name in package.__all__ if isinstance(getattr(package, name), types.ModuleType)]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
