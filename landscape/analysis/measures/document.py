"""`measures.json` of a run, and beside it the losses of single samples: reading, and atomic updates."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.folders import open_folder
from landscape.core.statistics import ConfidenceInterval
from landscape.core.text import finite_or_none
from landscape.model.run_files import MEASURES_FILE, MEASURES_FOLDER, read_measures, refusing_disk_errors
from landscape.model.run_files import write_measures as write_file
from landscape.views.prepare.tables import lines_of, samples_measured

# ----------------------------------------------------------------------------------------------------
# One row of a table of measures: a number with its errors, or the reason why there is none.

NUMBERS = ("value", "stderr", "low", "high", "above", "below")


@dataclass(frozen=True)
class MeasureRow:
    """A measure of one set of weights.

    Attributes:
        value: None if it could not be measured, or only bounds of it.
        stderr: its standard error over the samples, or None.
        low, high: the ends of its 95 % interval over directions, or over the probes of a trace; or None.
        draws: how many directions or probes the interval is from.
        note: why there is no value, or a remark on it.
        above, below: bounds of an unknown value: it is larger than `above`, and smaller than `below`.
    """

    value: float | None
    stderr: float | None = None
    low: float | None = None
    high: float | None = None
    draws: int | None = None
    note: str = ""
    above: float | None = None
    below: float | None = None

    @property
    def is_bound(self) -> bool:
        """Whether only bounds are known."""
        return self.value is None and (self.above, self.below) != (None, None)

    def document(self) -> dict[str, Any]:
        """Its form in measures.json, without None and empty values."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"value": self.value} | {name: value for name, value in known.items() if value not in (None, "")}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> MeasureRow:
        """The inverse; values of another type count as absent."""
        numbers = {name: finite_or_none(document.get(name)) for name in NUMBERS}
        draws = document.get("draws")
        return cls(**numbers, draws=draws if isinstance(draws, int) else None, note=str(document.get("note", "")))


def row_of(
    value: float, stderr: float | None = None, interval: ConfidenceInterval | None = None, draws: int | None = None,
    note: str = "", *, missing: str = "the loss is not finite there",
) -> MeasureRow:  # fmt: skip
    """The row of a number; if it is not finite, with the note `missing` instead."""
    if not math.isfinite(value):
        return MeasureRow(None, note="; ".join(filter(None, (missing, note))))
    low, high = (None, None) if interval is None else (finite_or_none(interval.low), finite_or_none(interval.high))
    return MeasureRow(value, finite_or_none(stderr), low, high, None if low is None else draws, note)


# ----------------------------------------------------------------------------------------------------

SCHEMA = 1
OURS = ("schema", "settings", "origins")  # other fields of the file are preserved


@dataclass(frozen=True)
class Entry:
    """The measures of one set of weights.

    Attributes:
        label: such as `epoch 3`.
        number: of the snapshot; None for other weights.
        weights: their digest.
        radii: of each line; None if only bounds are known.
        bounds: the bounds of each line's radius; the second one is None if unknown.
        sample_set: the digest of the samples in whatever order; empty for measures of earlier versions.
        means: the rises of each line, as [lines][distances].
        file: the file in the run with the losses of single samples; empty if there are none.
    """

    label: str
    weights: str
    rows: dict[str, MeasureRow]
    number: int | None = None
    unit: str = ""
    layers: dict[str, dict[str, MeasureRow]] = field(default_factory=dict)
    radii: list[float | None] = field(default_factory=list)
    means: list[list[float | None]] = field(default_factory=list)
    file: str = ""
    bounds: list[list[float | None]] | None = None
    sample_set: str = ""

    def document(self) -> dict[str, Any]:
        """As it stands in measures.json."""
        layers = {layer: {name: row.document() for name, row in rows.items()} for layer, rows in self.layers.items()}
        return {
            "weights": self.weights,
            **({} if self.number is None else {"number": self.number, "unit": self.unit}),
            "rows": {name: row.document() for name, row in self.rows.items()},
            **({"layers": layers} if layers else {}),
            "radii": self.radii,
            **({} if self.bounds is None else {"radius_bounds": self.bounds}),
            "rises": self.means,
            **({"samples": self.file} if self.file else {}),
            **({"sample_set": self.sample_set} if self.sample_set else {}),
        }

    @classmethod
    def parse(cls, label: str, document: Mapping[str, Any]) -> Entry:
        """The inverse.

        Raises:
            TypeError, ValueError, KeyError, AttributeError: the document is no entry.
        """
        layers = document.get("layers", {})
        return cls(
            label, str(document["weights"]), _rows(document["rows"]), document.get("number"),
            str(document.get("unit", "")), {layer: _rows(rows) for layer, rows in layers.items()},
            list(document.get("radii", [])), list(document.get("rises", [])), str(document.get("samples", "")),
            document.get("radius_bounds"), str(document.get("sample_set", "")),
        )  # fmt: skip


def _rows(document: Mapping[str, Any]) -> dict[str, MeasureRow]:
    return {name: MeasureRow.parse(row) for name, row in document.items()}


@dataclass(frozen=True)
class Measures:
    """All measures of a run, with the same settings.

    Attributes:
        settings: decide the numbers, together with the weights.
        entries: by their labels.
        other: other fields of the file.
    """

    settings: dict[str, Any]
    entries: dict[str, Entry]
    other: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, MeasureRow]:
        """The rows of the one set of weights that was measured, by their names.

        Raises:
            JobError: there are several sets; `entries` has the rows of each.
        """
        if len(self.entries) != 1:
            raise JobError(
                f"rows: must be asked of one set of weights, not {len(self.entries)}; ask entries[LABEL].rows"
            )
        return next(iter(self.entries.values())).rows

    def __str__(self) -> str:
        document = self.document()
        return "\n".join([samples_measured(document), *lines_of(document)])

    def document(self) -> dict[str, Any]:
        """As it stands in measures.json."""
        return {
            **self.other,
            "schema": SCHEMA,
            "settings": self.settings,
            "origins": {label: entry.document() for label, entry in self.entries.items()},
        }


def read(run: str) -> Measures | None:
    """The measures of a run; None if there are none.

    Raises:
        LandscapeError: the file is damaged, or of a later version.
    """
    found = read_measures(run)
    if "origins" not in found:
        return None
    other = {name: value for name, value in found.items() if name not in OURS}
    try:
        if found.get("schema") != SCHEMA:
            raise ValueError
        entries = {label: Entry.parse(label, document) for label, document in found["origins"].items()}
        return Measures(dict(found["settings"]), entries, other)
    except (TypeError, ValueError, KeyError, AttributeError):
        place = quoted(open_folder(run).place(MEASURES_FILE))
        raise LandscapeError(f"{place} is damaged, or of a later version; delete it, and measure again") from None


def add(run: str, settings: Mapping[str, Any], entry: Entry, samples: Mapping[str, NDArray[Any]]) -> bool:
    """Add an entry to the file, replacing one of the same label; the caller holds the lock of measurements.

    Earlier measures of the same weights that were not measured now are kept.

    The losses of samples are written first, in a file named by its content: after a kill at any moment, the files that
    measures.json names exist.

    Returns:
        Whether entries of other settings were removed.

    Raises:
        LandscapeError: the disk cannot be written.
    """
    known = read(run)
    kept = known.entries if known is not None and known.settings == settings else {}
    file = _keep(run, samples) if samples else ""
    entries = _order({**kept, entry.label: _join(kept.get(entry.label), entry, file)})
    other = known.other if known else {k: v for k, v in read_measures(run).items() if k not in OURS}
    write_file(run, Measures(dict(settings), entries, other).document())
    _sweep(run, {entry.file for entry in entries.values()})
    return bool(known and known.entries and not kept)


def _join(known: Entry | None, entry: Entry, file: str) -> Entry:
    if known is None or known.weights != entry.weights:
        return replace(entry, file=file)
    return replace(entry, file=file, rows=known.rows | entry.rows, layers=entry.layers or known.layers)


def _order(entries: dict[str, Entry]) -> dict[str, Entry]:
    """Snapshots by number, then other weights in the order of their addition."""
    numbered = sorted(
        (entry for entry in entries.values() if entry.number is not None), key=lambda entry: entry.number or 0
    )
    return {entry.label: entry for entry in [*numbered, *(entry for entry in entries.values() if entry.number is None)]}


def _keep(run: str, samples: Mapping[str, NDArray[Any]]) -> str:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **samples)
    data = buffer.getvalue()
    path = f"{MEASURES_FOLDER}/{hashlib.sha256(data).hexdigest()[:32]}.npz"
    folder = open_folder(run)
    with refusing_disk_errors(folder.place(path)):
        folder.write(path, data)
    return path


def _sweep(run: str, named: set[str]) -> None:
    """Remove losses that the file no longer names."""
    folder = open_folder(run)
    for name in folder.names(MEASURES_FOLDER):
        if f"{MEASURES_FOLDER}/{name}" not in named and name.endswith(".npz"):
            folder.delete(f"{MEASURES_FOLDER}/{name}")


def read_samples(run: str, entry: Entry) -> dict[str, NDArray[Any]]:
    """The losses of single samples of an entry; empty if it has none.

    Raises:
        LandscapeError: they are missing or damaged.
    """
    if not entry.file:
        return {}
    folder = open_folder(run)
    data = folder.read(entry.file) if entry.file.startswith(f"{MEASURES_FOLDER}/") else None
    try:
        if data is None or hashlib.sha256(data).hexdigest()[:32] not in entry.file:
            raise ValueError
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, zipfile.BadZipFile):
        raise LandscapeError(
            f"{quoted(folder.place(entry.file))} is missing or damaged; delete {MEASURES_FILE}, and measure again"
        ) from None
