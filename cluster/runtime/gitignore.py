"""Which files `.gitignore` and `.rayignore` exclude, by git's rules of matching."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

FILES = (".gitignore", ".rayignore")


@dataclass(frozen=True)
class Rule:
    """One pattern of an ignore file.

    Attributes:
        folder: the ignore file's folder, relative to the job's folder; '' for the job's folder itself.
        source: the ignore file's name.
    """

    folder: str
    pattern: re.Pattern[str]
    negated: bool
    only_folders: bool
    source: str

    def matches(self, name: str, is_folder: bool) -> bool:
        """Whether the pattern matches a name, which is relative to the job's folder."""
        if self.only_folders and not is_folder:
            return False
        below = f"{self.folder}/" if self.folder else ""
        return name.startswith(below) and self.pattern.fullmatch(name[len(below) :]) is not None


def read_rules(text: str, folder: str, source: str) -> list[Rule]:
    """The patterns of an ignore file, in their order."""
    return [rule for line in text.splitlines() if (rule := _rule(line, folder, source)) is not None]


def ignored_by(rules: Iterable[Rule], name: str, is_folder: bool) -> str:
    """The ignore file whose pattern excludes `name`, '' where none does; the last pattern that matches decides."""
    excluded_by = ""
    for rule in rules:
        if rule.matches(name, is_folder):
            excluded_by = "" if rule.negated else rule.source
    return excluded_by


def _rule(line: str, folder: str, source: str) -> Rule | None:
    text = re.sub(r"(?<!\\)[ \t]+$", "", line)
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[1:] if negated else text
    only_folders = text.endswith("/")
    text = text.rstrip("/")
    if not text:
        return None
    anywhere = "" if "/" in text else "(?:.*/)?"
    try:
        pattern = re.compile(anywhere + _expression(text.removeprefix("/")), re.DOTALL)
    except re.error:
        return None  # git takes a bracket without an end for a pattern that matches nothing
    return Rule(folder, pattern, negated, only_folders, source)


def _expression(glob: str) -> str:
    """A git glob as a regular expression: `*` and `?` stay within a name, `**` spans folders."""
    expression, at = "", 0
    while at < len(glob):
        rest = glob[at:]
        if rest.startswith("**/") and (at == 0 or glob[at - 1] == "/"):
            expression, at = f"{expression}(?:.*/)?", at + 3
        elif rest == "**" and (at == 0 or glob[at - 1] == "/"):
            expression, at = f"{expression}.+", at + 2
        elif bracket := re.match(r"\[([!^]?)(\]?[^\]]*)\]", rest):
            within = bracket[2].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
            expression, at = f"{expression}(?!/)[{'^' if bracket[1] else ''}{within}]", at + len(bracket[0])
        elif rest[0] == "\\" and len(rest) > 1:
            expression, at = expression + re.escape(rest[1]), at + 2
        else:
            word = {"*": "[^/]*", "?": "[^/]", "[": "(?!)"}.get(rest[0], re.escape(rest[0]))
            expression, at = expression + word, at + 1
    return expression
