"""The options of `landscape export` are those of `figure`: none is lost on the way, and none is given unasked."""

from __future__ import annotations

import inspect
from dataclasses import fields

from cluster.commands.exporting import FigureOptions
from landscape.views.draw.figure import figure


def test_no_option_that_was_not_given_reaches_the_figure():
    assert FigureOptions().as_arguments() == {}
    assert FigureOptions(no_title=True).as_arguments() == {"title": False}
    assert FigureOptions(colour_scale="magma", zmin=0.0, caption=False).as_arguments() == {
        "zmin": 0.0, "colour_scale": "magma", "caption": False,
    }  # fmt: skip


def test_every_option_is_one_of_the_figure():
    values = {field.name: field.name != "path" for field in fields(FigureOptions) if field.name != "no_title"}
    given = FigureOptions(**values).as_arguments()
    assert given == values
    assert set(given) <= set(inspect.signature(figure).parameters)
