"""The pictures of a comparison: the difference, the loss per bit width, and the steps near the origin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from landscape.comparison.comparing import Comparison
from landscape.comparison.steps import CHANGES
from landscape.views import compare
from landscape.views.exports.drawn import write_drawn
from landscape.views.figures.rounding import draw_bits, draw_steps
from landscape.views.prepared.comparison import item_labels
from landscape.views.prepared.rounding import prepare_bits, prepare_steps


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
    return figures


def write_pictures(found: Comparison, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write the figures into a folder; the paths of the files.

    Raises:
        JobError: an unknown format.
        LandscapeError: the folder cannot be written, or there is no browser to draw pictures with.
    """
    return write_drawn(pictures_of(found), folder, formats)
