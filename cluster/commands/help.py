"""How the help of commands is laid out, and the lists in it that the code reads from tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from inspect import cleandoc
from typing import Any, get_args

# ----------------------------------------------------------------------------------------------------
# A help text, and the template of job files, name a table in braces, such as {formats}. Its names are filled in when
# the help is shown, as some tables import what draws.

TABLES = {
    "batch_norms": ("landscape.core.plan", "BatchNorm"),
    "curves": ("landscape.surface.barriers", "Curve"),
    "formats": ("landscape.views.exporting", "FORMAT_TABLE"),
    "kinds": ("landscape.views.figure_spec", "KIND_TABLE"),
    "normalisations": ("landscape.job.directions.base", "Normalise"),
    "precisions": ("landscape.core.plan", "Precision"),
    "recipes": ("landscape.recipes.table", "RECIPES"),
}
TABLE = re.compile(r"\{(" + "|".join(TABLES) + r")\}")


def any_of(names: Sequence[str]) -> str:
    """Names of which one is meant.

    >>> any_of(["html", "png", "csv"]), any_of(["html"])
    ('html, png or csv', 'html')
    """
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def with_tables(text: str, listed: Callable[[Sequence[str]], str] = any_of) -> str:
    """The text with the names of each table in place of the table's own.

    >>> with_tables("{precisions} or none; {kind: random}")
    'float32, tf32, bfloat16 or float64 or none; {kind: random}'
    """
    return TABLE.sub(lambda match: _names_in(match[1], listed), text)


def _names_in(name: str, listed: Callable[[Sequence[str]], str]) -> str:
    module, attribute = TABLES[name]
    table = getattr(import_module(module), attribute)
    return listed(list(table) if isinstance(table, dict) else get_args(table))


# ----------------------------------------------------------------------------------------------------
# A paragraph fills its lines, wherever the source breaks its own.

# A line that goes on from the one before: neither empty lines nor indented or listed ones do.
BREAK = re.compile(r"(?<=\S)[ \t]*\n(?=\S)(?![*-] )")


def reflowed(plain: str) -> str:
    r"""The text with each paragraph in one line.

    >>> reflowed("The plane, the line and the\ncurve.\n\nEach epoch.\n- one\n- two\n")
    'The plane, the line and the curve.\n\nEach epoch.\n- one\n- two\n'
    """
    return BREAK.sub(" ", plain)


class Paragraphs:
    """The formatter of cyclopts, which keeps line breaks, told texts that have none within a paragraph."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        """Print a panel of commands or parameters."""
        from cyclopts.help import DefaultFormatter

        for described in (panel, *panel.entries):
            _lay_out(described.description)
        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        """Print how the command is called."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        """Print what the command does."""
        from cyclopts.help import DefaultFormatter

        _lay_out(description)
        DefaultFormatter().render_description(console, options, description)


def _lay_out(described: Any) -> None:
    for text in _texts(described):
        text.plain = with_tables(reflowed(cleandoc(text.plain)))  # the texts of fields are still indented


def _texts(described: Any) -> Iterator[Any]:
    """The texts in what cyclopts prints, which are of rich."""
    for each in (described, getattr(described, "primary_renderable", None), *getattr(described, "renderables", ())):
        if isinstance(getattr(each, "plain", None), str):
            yield each
