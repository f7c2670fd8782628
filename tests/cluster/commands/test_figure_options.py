"""The options of `landscape export` are those of `figure`: none is lost on the way, and none is given unasked."""

from __future__ import annotations

import inspect
from dataclasses import fields

from cluster.commands.export import FigureOptions
from landscape.views.draw.figure import figure


def test_no_option_that_was_not_given_reaches_the_figure():
    assert FigureOptions().of_figure() == {}
    assert FigureOptions(no_title=True).of_figure() == {"title": False}
    assert FigureOptions(colours="magma", zmin=0.0).of_figure() == {"zmin": 0.0, "colour_scale": "magma"}


def test_every_option_is_one_of_the_figure():
    values = {field.name: True if "lag" in str(field.type) else 1 for field in fields(FigureOptions)}
    given = FigureOptions(**values).of_figure()
    assert set(given) <= set(inspect.signature(figure).parameters)
    assert len(given) == len(values) - 2, "log goes by itself, and two options are about the title"
