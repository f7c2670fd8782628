"""The help of commands: paragraphs that fill their lines."""

from __future__ import annotations

from rich.console import Console

from cluster.commands.app import app, reflowed


def test_the_help_of_a_command_breaks_no_line_where_its_source_does(capsys):
    app(["connect", "--help"], console=Console(width=600))
    lines = capsys.readouterr().out.splitlines()
    paragraph = next(line for line in lines if line.startswith("The curve is trained on"))
    assert paragraph.rstrip().endswith("goes on from there.")
    (table,) = (line for line in lines if "--table" in line)
    assert "of each axis of each tensor." in table


def test_paragraphs_lists_and_indented_lines_stay_apart():
    assert reflowed("One\n--two of\nit.\n\nThree\n- four\n  five\n") == "One --two of it.\n\nThree\n- four\n  five\n"
