"""Reference text that is generated from the program itself, so that it cannot differ from it.

It stands in the repository, where it is read without building the site. Run this file to write it anew:

    python docs/_ext/generated.py

In place of `<!-- documented: GROUP -->` the site shows the whole documentation of the names of that group.
"""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel
from sphinx.application import Sphinx

import landscape

ROOT = Path(__file__).parents[2]
WRITTEN = re.compile(r"(?<=<!-- written by docs/_ext/generated.py -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
DOCUMENTED = re.compile(r"^<!-- documented: (.+) -->$", re.MULTILINE)
# What belongs together on the page of the Python interface; every public name of `landscape` stands in one of these.
GROUPS = {
    "A model in memory": (
        "landscape.plane",
        "landscape.line",
        "landscape.volume",
        "landscape.between",
        "landscape.path",
        "landscape.sharpness",
        "cluster.plane",
    ),
    "Compute": (
        "landscape.run",
        "landscape.plan",
        "landscape.extend",
        "landscape.refine",
        "cluster.run",
        "landscape.Limits",
    ),
    "Describe": (
        "landscape.Problem",
        "landscape.without_weights",
        "landscape.Job",
        "landscape.Landscape",
        "landscape.RandomDirection",
        "landscape.TowardsDirection",
        "landscape.PlaneDirection",
        "landscape.FileDirection",
        "landscape.PcaDirection",
        "landscape.EigenDirection",
        "landscape.CollectLandscape",
        "landscape.read_job",
    ),
    "Ask": ("landscape.check", "landscape.measure", "landscape.compare", "landscape.inspect"),
    "Read": (
        "landscape.open_run",
        "landscape.Run",
        "landscape.Surface",
        "landscape.Axis",
        "landscape.ProjectedPath",
        "landscape.topology_of",
        "landscape.Topology",
    ),
    "Take other means over samples": (
        "landscape.subset",
        "landscape.by_class",
        "landscape.bootstrap",
        "landscape.Bootstrap",
    ),
    "Curvature": (
        "landscape.curvature.hessian_of",
        "landscape.curvature.HessianOperator",
        "landscape.curvature.lanczos",
        "landscape.curvature.Krylov",
        "landscape.curvature.Ritz",
        "landscape.curvature.trace",
        "landscape.curvature.filter_weighted_trace",
        "landscape.curvature.density",
        "landscape.curvature.Density",
        "landscape.curvature.sampled_curvature",
        "landscape.curvature.half_sample_bracket",
    ),
    "Connect": (
        "landscape.connect",
        "landscape.connectivity.train_bend",
        "landscape.connectivity.match_weights",
        "landscape.connectivity.BendTraining",
    ),
    "Train": (
        "landscape.Training",
        "landscape.recipes.training.fit",
        "landscape.recipes.training.Arrays",
        "landscape.recipes.settings.Settings",
        "landscape.THOR",
        "landscape.optim.Schedule",
        "landscape.optim.thor_learning_rate",
        "landscape.optim.thor_damping",
    ),
    "Draw": (
        "landscape.views.figure",
        "landscape.views.compare",
        "landscape.views.compare_figures",
        "landscape.views.caption",
        "landscape.views.plot",
        "landscape.views.plot_compare",
        "landscape.views.plot_path",
        "landscape.views.plot_hessian",
    ),
    "Collect": (
        "landscape.TrajectoryCollector",
        "landscape.LandscapeCallback",
        "landscape.import_checkpoints",
        "landscape.read_trajectory",
    ),
    "Tidy": (
        "landscape.pack",
        "landscape.list_runs",
        "landscape.remove_landscape",
        "landscape.remove_run",
        "landscape.rename_landscape",
        "landscape.compact_landscape",
        "landscape.import_surface",
        "landscape.import_mindspore",
    ),
    "Errors": ("landscape.LandscapeError", "landscape.JobError", "landscape.NotFoundError"),
    "What these give and take": (
        "landscape.analysis.inspection.Inspection",
        "landscape.analysis.measures.comparison.Comparison",
        "landscape.analysis.measures.document.Measures",
        "landscape.analysis.measures.document.MeasureRow",
        "landscape.analysis.quantised.QuantisedComparison",
        "landscape.compute.pack.PackResult",
        "landscape.compute.planning.JobPlan",
        "landscape.connectivity.Connection",
        "landscape.surface.record_entries.Checks",
        "landscape.training.distributed.Share",
        "landscape.store.import_arrays.ArrayPlaces",
        "landscape.model.snapshots.Trajectory",
        "landscape.model.snapshots.Snapshot",
        "landscape.surface.topology.Basin",
        "landscape.surface.topology.Extremum",
        "landscape.surface.topology.PersistencePair",
        "landscape.surface.barriers.Barrier",
        "landscape.surface.barriers.Barriers",
        "landscape.surface.barriers.PathColumns",
        "landscape.surface.surface.SampleLosses",
        "landscape.core.progress.Progress",
        "cluster.driver.schedule.Policy",
    ),
}
MOST_ARGUMENTS = 13  # in a line of a table
# Headings of the parts of a job, in the order of the page; a part without one comes last, under the name of its class.
PARTS = {
    "Job": "Fields of a job",
    "Landscape": "Landscape",
    "RandomDirection": "Random direction",
    "TowardsDirection": "Direction towards other weights",
    "PcaDirection": "Principal component",
    "EigenDirection": "Eigenvector of the Hessian",
    "PlaneDirection": "Axis of the plane through three networks",
    "FileDirection": "Direction from a file",
    "CollectLandscape": "Options of the collector",
    "CreateLandscape": "Landscapes of a collected run",
}
TYPES = {
    "string": "text",
    "boolean": "`true`, `false`",
    "number": "number",
    "integer": "a whole number",
    "object": "a mapping",
}
SCHEMA_FILE = "job.schema.json"
BAR = "\\|"  # within a table


def command_line() -> str:
    """A section per command of `landscape`, from the help that the command itself prints."""
    from cluster.commands.app import app
    from cluster.commands.output import with_tables

    # The usage lines name what runs, which is another program here; lines are wrapped at the terminal's width.
    with patch.object(sys, "argv", ["landscape"]), patch.dict(os.environ, COLUMNS="100"):
        text = app.generate_docs(output_format="markdown", heading_level=1, max_heading_level=3)
    text = with_tables(text).replace(" *[default: False]*", "")  # of what is on or off
    text = text.replace("```console", "```text")  # usage lines, which nobody can carry out as they are
    sections = text.split("\n## ")[2:]  # without the title and the table of contents: the site has its own
    return "\n".join(f"## {section}" for section in sections)


def python() -> str:
    """What `landscape` exports, and `cluster.run`, in groups: the parameters of each name, and its first sentence."""
    grouped = {name for names in GROUPS.values() for name in names}
    missing = {f"landscape.{name}" for name in landscape.__all__} - grouped
    assert not missing, f"place {missing} in GROUPS"
    return "\n\n".join(
        f"## {title}\n\n{_table(names)}\n\n<!-- documented: {title} -->" for title, names in GROUPS.items()
    )


def _table(names: tuple[str, ...]) -> str:
    rows = []
    for name in names:
        value = pkgutil.resolve_name(name)
        sentence = re.split(r"(?<=\.)\s+(?=[A-Z])|\n\n", inspect.cleandoc(value.__doc__ or ""), maxsplit=1)[0]
        rows.append(f"| `{name}{_parameters(value)}` | {' '.join(sentence.split()).replace('|', BAR)} |")
    return "\n".join(["| | |", "|---|---|", *rows])


def _parameters(value: Any) -> str:
    """The parameters of a function, without types and defaults; nothing of a class."""
    if isinstance(value, type):
        return ""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown, keywords = [], False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keywords:
            shown, keywords = [*shown, "*"], True
        shown.append(marks.get(parameter.kind, "") + parameter.name)
    more = [*shown[:MOST_ARGUMENTS], "…"] if len(shown) > MOST_ARGUMENTS + 5 else shown
    return f"({', '.join(more)})"


def _documented(group: str) -> str:
    """The documentation of the names of a group, for the site."""
    return "```{eval-rst}\n" + "\n\n".join(map(_entry, GROUPS[group])) + "\n```"


def _entry(name: str) -> str:
    """The autodoc directive of a name; the fields of a job's parts have a page of their own."""
    value = pkgutil.resolve_name(name)
    if not isinstance(value, type):
        # Options that come from a table are in the signature, and not in the source, which Sphinx reads by itself.
        shown = inspect.signature(value) if hasattr(value, "__signature__") else ""
        return f".. autofunction:: {name}{shown}"
    if issubclass(value, Exception):
        return f".. autoexception:: {name}\n   :show-inheritance:"
    if issubclass(value, BaseModel):
        return f".. autoclass:: {name}(**fields)"
    return f".. autoclass:: {name}\n   :members:"


def job_fields() -> str:
    """A table per part of a job, from the JSON schema that pydantic makes of it."""
    schema = landscape.Job.model_json_schema()
    parts = {"Job": schema, **schema["$defs"]}
    names = [name for name in PARTS if name in parts] + [name for name in parts if name not in PARTS]
    return "\n\n".join(f"## {_title(name)}\n\n{_part(parts[name])}" for name in names)


def _title(name: str) -> str:
    """`EigenDirection` as `Eigen direction`, where no heading is given."""
    return PARTS.get(name) or re.sub(r"(?<=.)([A-Z])", lambda letter: f" {letter[0].lower()}", name)


def _part(part: dict[str, Any]) -> str:
    head = "| field | takes | default | |\n|---|---|---|---|"
    rows = [_row(name, field, name in part.get("required", ())) for name, field in part["properties"].items()]
    return "\n".join([part["description"], "", head, *rows])


def _row(name: str, field: dict[str, Any], required: bool) -> str:
    default = "required" if required else _value(field.get("default"))
    return f"| `{name}` | {_takes(field)} | {default} | {' '.join(field.get('description', '').split())} |"


def _value(value: Any) -> str:
    """A default as it is written in a job file; nothing where leaving the field out means something else."""
    match value:
        case None | []:
            return ""
        case [int(single)]:
            return f"`{single}`"
    text = json.dumps(value).replace('"', "")
    return f"`{text}`"


def _takes(field: dict[str, Any]) -> str:
    """What a field may be, in words."""
    match field:
        case {"anyOf": [single, {"type": "array", "items": item}, *_]} if item == single:
            return f"{_takes(single)}, or a list with one per axis"
        case {"anyOf": choices} | {"oneOf": choices}:
            return ", or ".join(dict.fromkeys(_takes(each) for each in choices if each != {"type": "null"}))
        case {"const": value}:
            return f"`{value}`"
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"$ref": reference}:
            title = _title(reference.rpartition("/")[2])
            return f"[{title}](#{title.lower().replace(' ', '-')})"
        case {"type": "array", "items": items, "minItems": 2, "maxItems": 2}:
            return f"a pair of {_takes(items)}s"
        case {"type": "array", "prefixItems": [item, *others]} if all(other == item for other in others):
            return f"a list of {len(others) + 1}, each {_takes(item)}"
        case {"type": "array", "items": items}:
            return f"a list of: {_takes(items)}"
        case {"type": "integer", "minimum": low, "maximum": high} if high < 10**12:
            return f"a whole number from {low} to {high}"
        case {"type": "integer", "minimum": low}:
            return f"a whole number from {low}"
        case {"type": "number", "minimum": low, "maximum": high}:
            return f"a number from {low} to {high}"
        case {"type": "object", "properties": fields}:
            return "a mapping of " + " and ".join(f"`{name}`, {_takes(each)}" for name, each in fields.items())
        case {"type": name}:
            return TYPES[name]
    raise ValueError(f"the reference of the job has no words for {field}")


GENERATORS: dict[str, Callable[[], str]] = {"command-line": command_line, "job": job_fields, "python": python}


def pages() -> dict[Path, str]:
    """The pages of the reference as they should be, by their paths."""
    texts = {}
    for name, generate in GENERATORS.items():
        page = ROOT / "docs" / "reference" / f"{name}.md"
        generated = generate().strip()
        texts[page], places = WRITTEN.subn(lambda _, text=generated: text, page.read_text())
        assert places == 1, f"{page.relative_to(ROOT)} has no place for what is generated"
    return texts


def _read(_app: Sphinx, _page: str, source: list[str]) -> None:
    source[0] = DOCUMENTED.sub(lambda place: _documented(place[1]), source[0])


def _write_schema(app: Sphinx, error: Exception | None) -> None:
    """The JSON schema of a job, beside the pages."""
    if error is None:
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **landscape.Job.model_json_schema()}
        (Path(app.outdir) / SCHEMA_FILE).write_text(json.dumps(schema, indent=1))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _read)
    app.connect("build-finished", _write_schema)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
