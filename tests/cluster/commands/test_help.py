"""The help of commands: paragraphs that fill their lines, and lists that come from the tables."""

from __future__ import annotations

from typing import get_args

from rich.console import Console

from cluster.commands.app import app
from cluster.commands.output import TABLE, TABLES, join_lines, with_tables
from landscape.core.plan import BatchNorm, Precision
from landscape.job.directions.base import Normalise
from landscape.views.exporting import FORMAT_TABLE
from landscape.views.figure_spec import COLOUR_TABLE, KIND_TABLE, PRESETS


def test_the_help_of_a_command_breaks_no_line_where_its_source_does(capsys):
    app(["connect", "--help"], console=Console(width=600))
    lines = capsys.readouterr().out.splitlines()
    paragraph = next(line for line in lines if line.startswith("The curve is trained on"))
    assert paragraph.rstrip().endswith("goes on from there.")
    (table,) = (line for line in lines if "--table" in line)
    assert "of each axis of each tensor." in table


def test_paragraphs_lists_and_indented_lines_stay_apart():
    assert join_lines("One\n--two of\nit.\n\nThree\n- four\n  five\n") == "One --two of it.\n\nThree\n- four\n  five\n"


def test_lists_in_help_and_template_are_those_of_the_tables(capsys, tmp_path):
    app(["export", "--help"], console=Console(width=600))
    text = capsys.readouterr().out
    assert all(name in text for name in (*FORMAT_TABLE, *KIND_TABLE, *PRESETS, *COLOUR_TABLE))
    assert not TABLE.search(text)
    app(["init", str(tmp_path)])
    template = (tmp_path / "job.yaml").read_text()
    for names in (get_args(Precision), get_args(BatchNorm), get_args(Normalise)):
        assert f"# {' | '.join(names)}" in template
    assert all(with_tables(f"{{{name}}}") for name in TABLES)
