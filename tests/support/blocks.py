"""The blocks of code in a page of Markdown, with what comments of the page say about each.

A comment right before a block, which no reader sees, says what is special about it:

    <!-- file: NAME -->       the block is this file of the page's folder
    <!-- frameworks: NAMES -->  the block needs these; `make test-frameworks` carries it out, other tests check it
    <!-- not run: REASON -->  the block needs what a test does not have; it is checked as far as that goes

and `<!-- setup` begins Python lines, up to `-->`, that are carried out at their place and shown to nobody;
`<!-- setup of the tests` begins such lines that make the page short for the tests, and not for its pictures.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

# A fence may be indented, in a list; `(?P=fence)` ends what it began.
BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)^ *(?P=fence)$"
    r"|^<!-- (?P<key>file|not run|frameworks): (?P<value>[^\n]*?) -->$"
    r"|^<!-- setup(?P<of_tests> of the tests)?\n(?P<setup>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
SHOWN = ("text", "csv", "")  # what a program prints: nothing to carry out


@dataclass(frozen=True)
class Block:
    """One block of a page: `language` is python, sh, yaml or json; a setup is python."""

    page: Path
    line: int
    language: str
    code: str
    file: str = ""
    not_run: str = ""
    frameworks: str = ""
    hidden: bool = False
    of_tests: bool = False

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in order, without Sphinx's directives and without what a program prints."""
    text = page.read_text()
    blocks: list[Block] = []
    notes: dict[str, str] = {}
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["key"]:
            notes[match["key"]] = match["value"]
        elif match["setup"] is not None:
            blocks.append(Block(page, line, "python", match["setup"], hidden=True, of_tests=bool(match["of_tests"])))
        else:
            language = match["language"].strip()
            if not language.startswith("{") and language not in SHOWN:
                code = textwrap.dedent(match["code"])
                said = (notes.get(key, "") for key in ("file", "not run", "frameworks"))
                blocks.append(Block(page, line, language, code, *said))
            notes = {}
    return blocks


def shell_commands(code: str) -> list[str]:
    """The commands of a shell block, a line each, without its prompt, comments and `&&`."""
    joined = code.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def commands_in_prose(page: Path) -> list[str]:
    """What stands as `landscape ...` within the sentences of a page."""
    prose = BLOCK.sub("", page.read_text())
    return [" ".join(span.split()) for span in re.findall(r"`(landscape [a-z][^`]*)`", prose)]
