"""What studies found, as tables: in each notebook its own rows, in docs/studies.md those of all executed notebooks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from landscape.core.errors import LandscapeError, quoted
from studies.shown import Table

MIME = "application/vnd.landscape.findings+json"  # of a table of findings in a notebook's outputs
BEGIN, END = "<!-- findings: written by `make notebooks` -->", "<!-- end of the findings -->"
HEADS = ("claim", "found", "seeds", "data", "does it show")


@dataclass(frozen=True)
class Finding:
    """What a study found of one claim.

    Attributes:
        claim: in a sentence.
        found: the numbers, with their standard deviations over the seeds.
        seeds: how many trainings of each kind.
        data: on which images.
        shows: `yes`, `no`, or in a few words how far.
    """

    claim: str
    found: str
    seeds: int
    data: str
    shows: str

    def row(self) -> tuple[str, ...]:
        """The words of a line of the table."""
        return self.claim, self.found, str(self.seeds), self.data, self.shows


@dataclass(frozen=True)
class Findings:
    """The findings of a notebook: it shows them as a table, and keeps them for docs/studies.md."""

    found: tuple[Finding, ...]

    @classmethod
    def of(cls, *found: Finding) -> Findings:
        """These, in this order."""
        return cls(found)

    def table(self) -> Table:
        """A line for each."""
        return Table.of(HEADS, *(finding.row() for finding in self.found))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        table = self.table()
        return {MIME: [vars(finding) for finding in self.found], "text/html": table._repr_html_(),
                "text/plain": repr(table)}  # fmt: skip


def findings_of(notebook: Path) -> list[Finding]:
    """The findings that an executed notebook shows; empty where it has none."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    bundles = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return [Finding(**entry) for bundle in bundles for entry in bundle.get(MIME, [])]


def findings_table(notebooks: Sequence[Path]) -> str:
    """The table of docs/studies.md: the findings of all notebooks, each with the number of its own."""
    rows = [
        (finding.claim, finding.found, finding.seeds, finding.data, finding.shows, path.stem.partition("-")[0])
        for path in notebooks
        for finding in findings_of(path)
    ]
    return Table.of((*HEADS, "notebook"), *rows).markdown()


def write_into(page: Path, table: str) -> None:
    """Put a table between the marks of a page.

    Raises:
        LandscapeError: the marks are not there.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LandscapeError(f"{quoted(str(page))} must have the lines {BEGIN} and {END}; put the table between them")
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")
