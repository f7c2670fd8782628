"""`landscape export`: pictures and data."""

from __future__ import annotations

from pathlib import Path

from cluster.options import MaybeFlag


def export(
    run: str,
    name: str | None = None,
    *,
    to: str = "html",
    out: Path | None = None,
    kind: str | None = None,
    observable: str = "loss",
    log: MaybeFlag = None,
) -> None:
    """Write pictures and data.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        One landscape; default: all.
    to
        Formats, separated by commas: html, png, svg, csv, npz, vtk, stl; report for the page of the whole run. csv
        writes the trajectory to a table of its own, NAME+path.csv; status is 0 not computed, 1 ok, 2 not finite,
        3 quarantined (given up after several tries).
    out
        Folder to write to; default: RUN/export, for a URL NAME-export here.
    kind
        contour, topographic, surface, curve, volume or slices; default: what suits the landscape.
    observable
        What to draw: loss, accuracy, …
    log
        Logarithmic scale; default: where the values span more than two decades.
    """
    from cluster.exporting import export_run

    for path in export_run(run, name, to.split(","), out, kind, observable, log):
        print(path, flush=True)
