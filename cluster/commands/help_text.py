"""How the help of commands is laid out: a paragraph fills its lines, wherever the source breaks its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

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
            _reflow(described.description)
        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        """Print how the command is called."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        """Print what the command does."""
        from cyclopts.help import DefaultFormatter

        _reflow(description)
        DefaultFormatter().render_description(console, options, description)


def _reflow(described: Any) -> None:
    for text in _texts(described):
        text.plain = reflowed(text.plain)


def _texts(described: Any) -> Iterator[Any]:
    """The texts in what cyclopts prints, which are of rich."""
    for each in (described, getattr(described, "primary_renderable", None), *getattr(described, "renderables", ())):
        if isinstance(getattr(each, "plain", None), str):
            yield each
