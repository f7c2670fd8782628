"""`landscape import`, `import-surface` and `import-mindspore`: what other programs left becomes part of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from cluster.runtime.logs import write_remark
from cluster.runtime.options import Flag, MaybeNumber, Words, ranges_in
from landscape.core.errors import JobError, flat, quoted

if TYPE_CHECKING:
    from landscape.model.snapshots import Trajectory

MOST_LISTED = 40  # snapshots


def import_(
    checkpoints: list[str],
    *,
    run: str,
    unit: Literal["epoch", "step"] | None = None,
    order: Literal["auto", "given"] = "auto",
    overwrite: Flag = False,
) -> None:
    """Make a trajectory of existing checkpoints: safetensors, or torch.load(weights_only=True) files.

    Their order and their numbers are those in their names (ckpt_0.pt, ckpt_60.pt, …), or of the folders that they lie
    in, else the step or epoch inside the files.

    Parameters
    ----------
    checkpoints
        The files.
    run
        The run folder or URL to put them in.
    unit
        What their numbers count; default: what the names or files call them, else steps.
    order
        auto, or given: numbered 1, 2, 3, … in the order given, whatever the names say.
    overwrite
        Replace the trajectory that the run holds.
    """
    from landscape.model.checkpoint_import import import_checkpoints

    trajectory = import_checkpoints(checkpoints, run, unit, order=order, overwrite=overwrite)
    _tell_snapshots(trajectory)
    count = len(trajectory.snapshots)
    last = f"; {trajectory.unit} {trajectory.numbers[-1]} is the end" if count > 1 else ""
    write_remark(f"{count} snapshot{'s' * (count > 1)} in {run}{last}; next: a job with `trajectory: all`")


def import_surface(
    *files: str,
    run: str,
    name: str | None = None,
    range: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    made_by: Literal["random_line", "random_plane", "linear_interpolation", "planar_interpolation", "landscaper"]
    | None = None,
    distance: MaybeNumber = None,
) -> None:
    """Make surfaces that other software computed landscapes of a run, which views, exports and the page take.

    Read are HDF5 files of Li et al.'s loss-landscape (.h5), NPZ files with loss and its coordinates (alpha, beta or
    x, y), Landscaper's NPZ files, arrays of loss-landscapes (.npy, .npz), those of scripts with PyHessian (lams and
    loss_list), CSV files with a row per point, and what `landscape export --to csv,npz` writes.
    Where one file cannot be read none is imported. No job goes on with such a landscape.

    Parameters
    ----------
    files
        The files: .h5, .hdf5, .npz, .npy or .csv.
    run
        The run folder or URL to put them in; it is made if need be.
    name
        The name of the landscape, for one file; default: made of the file's name.
    range
        The ends of the axes of arrays without coordinates, LOW,HIGH for all or LOW,HIGH,LOW,HIGH for each.
    made_by
        The function of loss-landscapes that returned the array; or landscaper, to put the n points of an axis where it
        evaluated them, (n-1)/n times as far out as its files report.
    distance
        The argument of random_line or random_plane; default: theirs, 0.1 and 1.
    """
    from landscape.store.import_arrays import ArrayPlaces
    from landscape.store.importing import import_surfaces

    if not files:
        raise JobError("files: must name one file or more")
    places = ArrayPlaces(() if range is None else ranges_in(range), made_by, distance)
    names = import_surfaces(files, run, name, places)
    for file, landscape in zip(files, names, strict=True):
        write_remark(f"{flat(file, 300)} -> {landscape}", "imported", landscape=landscape)
    write_remark(f"next: landscape export {flat(run, 300)} --to html, or landscape view {flat(run, 300)}")


def import_mindspore(
    summary_dir: Path,
    *,
    run: str,
    problem: str | None = None,
    network: Words = None,
    checkpoints: Words = None,
    overwrite: Flag = False,
) -> None:
    """Make a run of a summary folder of MindSpore: its landscapes, checkpoints, loss curve and description.

    Read are the event files and ckpt_dir that SummaryCollector and SummaryLandscape wrote, and checkpoints of
    ModelCheckpoint; MindSpore is not needed. Values and coordinates are kept to the bit. The same command again adds
    what has come since. With --problem, a job file with nothing but `run: RUN` computes the same planes anew.

    Parameters
    ----------
    summary_dir
        The folder.
    run
        The run folder or URL to put it in; it is made if need be.
    problem
        The callback of the network, module:function: the weights get its names, and must fit it.
    network
        An option that the callback reads by network_options, such as conv_bias=false; may be repeated.
    checkpoints
        A file of ModelCheckpoint, or a folder of them, that lies elsewhere; may be repeated.
    overwrite
        Replace the trajectory that the run holds.
    """
    from landscape.store.import_mindspore import import_mindspore as import_folder

    made = import_folder(
        summary_dir, run, problem, network=_network_options(network), checkpoints=checkpoints or (), overwrite=overwrite
    )
    _tell_snapshots(made.trajectory)
    for landscape in made:
        write_remark(f"landscape {landscape}", "imported", landscape=landscape)
    anew = f"; a job file of the line `run: {flat(run, 300)}` computes the same planes anew" if problem else ""
    write_remark(f"next: landscape view {flat(run, 300)}{anew}")


def _network_options(words: Sequence[str] | None) -> Mapping[str, Any] | None:
    """The options in words such as `conv_bias=false`; a value is read as JSON, or else as text."""
    options: dict[str, Any] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name.isidentifier() or not equals:
            raise JobError(f"network: must be NAME=VALUE, such as conv_bias=false, not {quoted(word)}")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options or None


def _tell_snapshots(trajectory: Trajectory) -> None:
    lines = [f"{snapshot.source} -> {trajectory.unit} {snapshot.number}" for snapshot in trajectory.snapshots]
    half = MOST_LISTED // 2
    cut = [*lines[:half], f"… {len(lines) - MOST_LISTED} more …", *lines[-half:]]
    for line in lines if len(lines) <= MOST_LISTED else cut:
        write_remark(line, "imported")
