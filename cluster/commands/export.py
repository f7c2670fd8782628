"""`landscape export`: pictures and data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cluster.commands.figure_options import FigureOptions

PLAIN = FigureOptions()


def export(
    run: str,
    name: str | None = None,
    *more: str,
    to: str = "html",
    out: Path | None = None,
    kind: str | None = None,
    observable: str = "loss",
    look: Annotated[FigureOptions, Parameter(name="*", group="How figures look")] = PLAIN,
) -> None:
    """Write pictures and data.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        One landscape; default: all whose number of axes fits --kind and the format. With --to report, this and what
        follows may be further runs: the page compares them.
    more
        Further landscapes of the run; or further runs.
    to
        Formats, separated by commas: html, png, svg, pdf, csv, npz, vtk, stl; report for the page of the whole run. csv
        writes the trajectory to a table of its own, NAME+path.csv, and measures of the run to run+measures.csv; status
        is 0 not computed, 1 ok, 2 not finite, 3 quarantined (given up after several tries).
    out
        Folder to write to; default: RUN/export, for a URL NAME-export here, for several runs comparison-export here.
    kind
        contour, topographic, surface, curve, volume, slices or barcode; default: what suits the landscape.
    observable
        What to draw: loss, accuracy, …
    """
    from cluster.commands.exporting import export_run, export_runs, runs_or_names

    formats = to.split(",")
    others, names = runs_or_names(run, [*([name] if name is not None else []), *more])
    if others:
        of_one = {"kind": kind, "observable": observable if observable != "loss" else None, "log": look.log}
        asked = {option: value for option, value in of_one.items() if value is not None} | look.of_figure()
        paths = export_runs([run, *others], formats, out, asked)
    else:
        paths = export_run(run, names, formats, out, kind, observable, look.log, **look.of_figure())
    for path in paths:
        print(path, flush=True)
