"""Reference text that is generated from the program itself, so that it cannot differ from it.

A page asks for it with a line `<!-- generated: NAME -->`, which is replaced by Markdown when the page is read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from unittest.mock import patch

from sphinx.application import Sphinx

PLACE = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)


def command_line() -> str:
    """A section per command of `landscape`, from the help that the command itself prints."""
    from cluster.commands.app import app

    with patch.object(sys, "argv", ["landscape"]):  # the usage lines name what runs, which is Sphinx here
        text = app.generate_docs(output_format="markdown", heading_level=1, max_heading_level=3)
    text = text.replace(" *[default: False]*", "")  # of what is on or off
    sections = text.split("\n## ")[2:]  # without the title and the table of contents: the site has its own
    return "\n".join(f"## {section}" for section in sections)


GENERATORS: dict[str, Callable[[], str]] = {"command-line": command_line}


def fill(text: str) -> str:
    """The page with every `<!-- generated: NAME -->` replaced."""
    return PLACE.sub(lambda place: GENERATORS[place[1]](), text)


def _read(_app: Sphinx, _page: str, source: list[str]) -> None:
    source[0] = fill(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
