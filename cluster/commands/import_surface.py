"""`landscape import-surface`: surfaces of other software as landscapes of a run."""

from __future__ import annotations

from cluster.runtime.logs import write_remark
from landscape.core.errors import JobError, flat


def import_surface(*files: str, run: str, name: str | None = None) -> None:
    """Make surfaces that other software computed landscapes of a run, which views, exports and the page take.

    Read are HDF5 files of Li et al.'s loss-landscape (.h5), NPZ files with loss and its coordinates (alpha, beta or
    x, y), Landscaper's NPZ files, CSV files with a row per point, and what `landscape export --to csv,npz` writes.
    Where one file cannot be read none is imported. No job goes on with such a landscape.

    Parameters
    ----------
    files
        The files: .h5, .hdf5, .npz or .csv.
    run
        The run folder or URL to put them in; it is made if need be.
    name
        The name of the landscape, for one file; default: made of the file's name.
    """
    from landscape.store.importing import import_surfaces

    if not files:
        raise JobError("files: must name one file or more")
    names = import_surfaces(files, run, name)
    for file, landscape in zip(files, names, strict=True):
        write_remark(f"{flat(file, 300)} -> {landscape}", "imported", landscape=landscape)
    write_remark(f"next: landscape export {flat(run, 300)} --to html, or landscape view {flat(run, 300)}")
