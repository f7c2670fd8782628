"""The files of a comparison: pictures of the difference, of the loss per bit width, of the steps; or tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from landscape.analysis.quantised import Comparison
from landscape.analysis.quantised_report import tables_of
from landscape.analysis.quantised_steps import CHANGES, PATCH_CHANGES
from landscape.views.data_files import write_columns
from landscape.views.draw.comparison import compare
from landscape.views.draw.quantisation import draw_bits, draw_patch, draw_steps, draw_terraces
from landscape.views.export_files import whole_file
from landscape.views.exporting import DRAWN_FORMATS as DRAWN
from landscape.views.exporting import check_formats, write_drawn
from landscape.views.prepare.comparison import item_labels
from landscape.views.prepare.quantisation import prepare_bits, prepare_patch, prepare_steps

TABLE = "csv"
FORMATS = (*DRAWN, TABLE)


def pictures_of(found: Comparison) -> dict[str, Any]:
    """The figures by the names of their files."""
    sides = (found.first, found.second)
    labels = item_labels([(side.run, side.name) for side in sides])
    pairs = [(label, side.surface) for label, side in zip(labels, sides, strict=True)]
    figures: dict[str, Any] = {"difference": compare(pairs, "difference")}
    if found.bits and found.quantise is not None:
        how = str(found.quantise).replace(f"{found.quantise.bits} bit", "so many bit").replace("bits", "bit")
        figures["bits"] = draw_bits(
            prepare_bits(
                [each.bits for each in found.bits], [each.values["loss"] for each in found.bits],
                [each.stderr for each in found.bits], found.plain["loss"], how.replace("so many bit", "so many bits"),
                found.first.surface.record.num_samples,
            )
        )  # fmt: skip
    if found.steps is not None and found.quantise is not None:
        line = found.steps
        what = str(found.quantise)
        figures["steps"] = draw_steps(prepare_steps(line.axis, line.at, line.plain, line.rounded, CHANGES, what))
    if found.patch is not None and found.quantise is not None:
        patch = found.patch
        prepared = prepare_patch(
            patch.axes, patch.at, (patch.plain, patch.rounded), patch.origin, PATCH_CHANGES, str(found.quantise),
            patch.precision,
        )  # fmt: skip
        figures |= {"patch": draw_patch(prepared), "patch-surface": draw_terraces(prepared)}
    return figures


def write_pictures(found: Comparison, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write the figures into a folder, and the values as tables where `csv` is among the formats; the paths.

    Raises:
        JobError: an unknown format.
        LandscapeError: the folder cannot be written, or there is no browser to draw pictures with.
    """
    check_formats(formats, FORMATS)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, columns in tables_of(found).items() if TABLE in formats else ():
        written.append(folder / f"{name}.{TABLE}")
        with whole_file(written[-1]) as temporary:
            write_columns(temporary, columns)
    drawn = [format for format in formats if format != TABLE]
    return [*written, *(write_drawn(pictures_of(found), folder, drawn) if drawn else [])]
