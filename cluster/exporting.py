"""Which files `landscape export` writes, and under which names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from landscape.errors import JobError, nearest
from landscape.surface import open_run

FORMATS = ("html", "png", "svg", "csv", "npz", "vtk", "stl")
REPORT = "report"
PICTURES = ("html", "png", "svg")


def export_run(
    run: str, name: str | None, formats: Sequence[str], out: Path | None, kind: str | None, observable: str, log: bool
) -> Iterator[Path]:
    """Write each landscape (or the one named) in each format; yields the paths as they are written.

    Raises:
        NotFoundError: no such run or landscape.
        JobError: an unknown format, kind or observable.
    """
    from landscape.views import export, write_report

    wanted = [each.strip() for each in formats]
    for each in wanted:
        if each not in (*FORMATS, REPORT):
            raise JobError(f"to: unknown format {each!r}; {nearest(each, (*FORMATS, REPORT))}")
    opened = open_run(run)
    folder = out or Path(opened.path) / "export"
    folder.mkdir(parents=True, exist_ok=True)
    surfaces = [opened[name]] if name else list(opened.values())
    if REPORT in wanted:
        write_report(opened, folder / "report.html")
        yield folder / "report.html"
    for surface in surfaces:
        for each in wanted:
            if each == REPORT:
                continue
            tail = f"-{kind}" if kind and each in PICTURES else ""
            path = folder / f"{surface.name}{tail}.{each}"
            options = {"kind": kind, "log": log} if each in PICTURES else {}
            export(surface, each, path, observable=observable, **options)
            yield path
