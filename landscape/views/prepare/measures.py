"""The tables of `measures.json` as words, and the course of a measure over the snapshots of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from landscape.views.prepare.scale import number
from landscape.views.prepare.tables import SAYING, LayerTable, bound_text, layer_table
from landscape.views.prepare.words import finite, mapping

COLUMNS = ("measure", "value", "SE over samples", "95 % interval", "note")
# What a curve of training shows, each of its own size.
CURVES = ("loss", "rise 0.25", "radius", "sam 1 step", "lambda max", "trace")
TITLES = {
    "lambda max": "λmax of the Hessian",
    "lambda min": "λmin of the Hessian",
    "trace": "trace of the Hessian",
    "radius": "flatness radius",
    "1/sigma^2": "1/σ² of the noise that the error bears",
    "re-initialised": "back at the first snapshot",
}
PREFIXES = {
    "rise": "rise at {}",
    "keskar": "Keskar's sharpness, ε = {}",
    "average": "average case, noise {}",
    "adaptive average": "average case, noise {} of each weight",
    "low-pass": "low-pass filter, σ = {}",
}
PENALTIES = {"sam": "worst case in ‖ε‖ ≤ {rho} (SAM), {steps}", "asam": "worst case in ‖ε/|θ|‖ ≤ {rho} (ASAM), {steps}"}

TextRow = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class MeasuredWeights:
    """The table of one set of weights.

    Attributes:
        label: such as `epoch 3`.
        rows: measure, value, standard error over the samples, interval, note; texts.
        layers: what was measured of single layers; None where nothing was.
    """

    label: str
    rows: tuple[TextRow, ...]
    layers: LayerTable | None


@dataclass(frozen=True)
class MeasureCurve:
    """One measure over the snapshots of a run.

    Attributes:
        places: epochs or steps.
        errors: half of a 95 % interval at each place; None where none is known.
        bounds: the places at which only bounds are known, and `above` and `below` there; None for none.
    """

    title: str
    unit: str
    places: tuple[int, ...]
    values: tuple[float, ...]
    errors: tuple[float | None, ...]
    bounds: tuple[tuple[int, float | None, float | None], ...] = ()


def measure_tables(measures: Mapping[str, Any]) -> list[MeasuredWeights]:
    """The table of each set of weights in `measures.json`; none where the file holds something else."""
    rho = mapping(mapping(measures.get("settings")).get("rho"))
    return [
        MeasuredWeights(
            label,
            tuple(_texts(name, row, rho) for name, row in _rows(entry)),
            layer_table(mapping(entry.get("layers")), title_of),
        )
        for label, entry in _entries(measures)
    ]


def measure_curves(measures: Mapping[str, Any], names: Sequence[str] = CURVES) -> list[MeasureCurve]:
    """The measures that at least two snapshots have, over these."""
    rho = mapping(mapping(measures.get("settings")).get("rho"))
    snapshots = [entry for _, entry in _entries(measures) if isinstance(entry.get("number"), int)]
    found = []
    for name in names:
        rows = [(entry["number"], mapping(mapping(entry.get("rows")).get(name))) for entry in snapshots]
        known = [(place, value, row) for place, row in rows if (value := finite(row.get("value"))) is not None]
        bounds = [(place, finite(row.get("above")), finite(row.get("below"))) for place, row in rows if bound_text(row)]
        if len(known) + len(bounds) > 1:
            places, values = tuple(place for place, _, _ in known), tuple(value for _, value, _ in known)
            unit = str(snapshots[0].get("unit") or "snapshot")
            found.append(
                MeasureCurve(
                    title_of(name, rho), unit, places, values, tuple(_half(row) for *_, row in known), tuple(bounds)
                )
            )  # fmt: skip
    return found


def measure_numbers(measures: Mapping[str, Any]) -> Mapping[str, Any]:
    """The numbers by which runs are compared in tables: those of the last weights; other documents as they are.

    Where only bounds are known they stand as a text, such as '< 0.05'.
    """
    entries = list(_entries(measures))
    if not entries:
        return measures
    rho = mapping(mapping(measures.get("settings")).get("rho"))
    rows = _rows(entries[-1][1])
    values = {title_of(name, rho): bound_text(row) or finite(row.get("value")) for name, row in rows}
    other = {name: value for name, value in measures.items() if name not in ("schema", "settings", "origins")}
    return {"of": entries[-1][0]} | {name: value for name, value in values.items() if value is not None} | other


def title_of(name: str, rho: Mapping[str, Any] | None = None) -> str:
    """What tables call a measure.

    >>> title_of("rise 0.25"), title_of("sam 1 step", {"sam": 0.05})
    ('rise at 0.25', 'worst case in ‖ε‖ ≤ 0.05 (SAM), 1 step')
    """
    word, _, rest = name.partition(" ")
    if word in PENALTIES and rest:
        size = finite(mapping(rho).get(word))
        return PENALTIES[word].format(rho="ρ" if size is None else number(size), steps=rest)
    start, _, size_text = name.rpartition(" ")
    return TITLES.get(name) or (PREFIXES[start].format(size_text) if start in PREFIXES else name)


def lines_of(measures: Mapping[str, Any]) -> list[str]:
    """The tables as lines of plain text."""
    lines = []
    for table in measure_tables(measures):
        texts = [COLUMNS[:4], *(row[:4] for row in table.rows)]
        lines += [table.label, *_aligned(texts, [row[4] for row in table.rows])]
        if table.layers is not None:
            rows = table.layers.rows
            lines += ["layers", *_aligned([table.layers.heads, *rows], [""] * len(rows)), f"  {SAYING}"]
    return lines


def comparison_lines(comparison: Mapping[str, Any]) -> list[str]:
    """What `landscape compare` has found, as lines of plain text."""
    rows: list[tuple[str, ...]] = [("measure", "first", "second", "difference", "95 % interval")]
    notes = []
    for name, row in mapping(comparison.get("rows")).items():
        numbers = {key: finite(row.get(key)) for key in ("first", "second", "difference", "low", "high")}
        bounds = {side: bound_text(mapping(each)) for side, each in mapping(row.get("bounds")).items()}
        texts = [bounds.get(key, "–") if numbers[key] is None else number(numbers[key] or 0.0) for key in numbers]
        interval = "" if numbers["low"] is None else f"[{texts[3]}, {texts[4]}]"
        rows.append((title_of(name, mapping(comparison.get("rho"))), *texts[:3], interval))
        notes.append(f"{row['verdict']} ({row['how']})")
    sides = [f"{side}: {', '.join(comparison[side])}" for side in ("first", "second")]
    lacking = [_lacking(each, mapping(comparison.get("rho"))) for each in comparison.get("lacking", ())]
    return [*sides, *_aligned(rows, notes), *lacking, str(comparison["says"])]


def _lacking(found: Mapping[str, Any], rho: Mapping[str, Any]) -> str:
    titles = "; ".join(title_of(name, rho) for name in found["rows"])
    return f"not compared, as {found['of']} has none: {titles}; measure them by {found['command']}"


def table_csv(measures: Mapping[str, Any]) -> list[list[str]]:
    """The rows of a table for other software: numbers in full, the header first."""
    names = ("value", "stderr", "low", "high", "draws", "note", "above", "below")
    lines = [["origin", "number", "layer", "measure", *names]]
    for label, entry in _entries(measures):
        layers = [(layer, mapping(rows)) for layer, rows in mapping(entry.get("layers")).items()]
        for layer, rows in [("", mapping(entry.get("rows"))), *layers]:
            for name, row in rows.items():
                known = [mapping(row).get(key) for key in names]
                place = [label, entry.get("number"), layer, name]
                lines.append(["" if each is None else str(each) for each in [*place, *known]])
    return lines


def _entries(measures: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((str(label), mapping(entry)) for label, entry in mapping(measures.get("origins")).items())


def _rows(entry: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(str(name), mapping(row)) for name, row in mapping(entry.get("rows")).items()]


def _texts(name: str, row: Mapping[str, Any], rho: Mapping[str, Any]) -> TextRow:
    value, stderr, low, high = (finite(row.get(key)) for key in ("value", "stderr", "low", "high"))
    interval = "" if low is None or high is None else f"[{number(low)}, {number(high)}]"
    error = "" if stderr is None else number(stderr, 2)
    shown = bound_text(row) or ("–" if value is None else number(value))
    return title_of(name, rho), shown, error, interval, str(row.get("note") or "")


def _half(row: Mapping[str, Any]) -> float | None:
    low, high, stderr = (finite(row.get(key)) for key in ("low", "high", "stderr"))
    if low is not None and high is not None:
        return (high - low) / 2
    return None if stderr is None else 2 * stderr


def _aligned(rows: Sequence[Sequence[str]], notes: Sequence[str]) -> list[str]:
    columns = range(1, len(rows[0]))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    texts = ["  " + "  ".join([row[0].ljust(widths[0]), *(row[k].rjust(widths[k]) for k in columns)]) for row in rows]
    return [f"{text}  {note}".rstrip() for text, note in zip(texts, ["", *notes], strict=True)]
