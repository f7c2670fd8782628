"""The rows of the tables beside a figure: values, landscape, provenance, checks; and the tables of `measures.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from landscape.core.text import count_text, finite_or_none, number_text, percent_text, seconds_text
from landscape.core.validation import counted
from landscape.surface.derived import RISE
from landscape.surface.record_entries import MARKS, Checks, CheckState
from landscape.surface.record_parts import EngineChoice, Provenance, TrialRecord
from landscape.surface.surface import Axis, ProjectedPath, Surface
from landscape.views.prepare import words
from landscape.views.prepare.paths import network_losses, origin_index
from landscape.views.prepare.quantisation import compared_rows, connection_rows
from landscape.views.prepare.scale import is_evaluated
from landscape.views.prepare.uncertainty import evaluated_text, rise_over_origin, standard_error, where_evaluated
from landscape.views.prepare.words import barrier_rows, mapping

Row = tuple[str, str]


def observable_rows(surface: Surface, observable: str) -> list[Row]:
    """The lowest and the highest value of an observable, its value at the origin, and median standard errors."""
    values = np.asarray(surface[observable], np.float64)
    error = where_evaluated(surface, standard_error(surface, observable))
    known = np.isfinite(values)
    if not known.any():
        return [("values", "none is finite" if is_evaluated(surface).any() else "none computed yet")]
    low = np.unravel_index(int(np.argmin(np.where(known, values, np.inf))), values.shape)
    high = np.unravel_index(int(np.argmax(np.where(known, values, -np.inf))), values.shape)
    rise, rise_error = rise_over_origin(surface, observable)
    rises = (rise, where_evaluated(surface, rise_error))
    rows = [
        ("lowest", _value_at(surface, values, error, low) + _rise_at(rises, low)),
        ("highest", _value_at(surface, values, error, high) + _rise_at(rises, high)),
        ("at the origin", _at_origin(surface, observable, values, error)),
    ]
    if error is not None and np.isfinite(error).any():
        rows.append(
            ("standard error, median", number_text(float(np.nanmedian(np.where(np.isfinite(error), error, np.nan))), 3))
        )
    if rises[1] is not None and np.isfinite(rises[1]).any():
        known_errors = rises[1][np.isfinite(rises[1])]
        rows.append(("standard error of the rise, median", number_text(float(np.median(known_errors)), 3)))
    return rows


def _at_origin(surface: Surface, observable: str, values: np.ndarray, error: np.ndarray | None) -> str:
    """The value at the origin: the loss is evaluated there always, other observables if the grid has a point there."""
    if observable == "loss" and words.origin_text(surface):
        return words.origin_text(surface)
    if observable == RISE:
        return "0"  # by its definition
    origin = origin_index(surface)
    return "no grid point there" if origin is None else _value(values, error, origin)


def _rise_at(rises: tuple[np.ndarray | None, np.ndarray | None], index: tuple[Any, ...]) -> str:
    rise, error = rises
    if rise is None or error is None or not np.isfinite(rise[index]):
        return ""
    side = "above" if rise[index] >= 0 else "below"
    return f", {words.value_with_error(abs(float(rise[index])), float(error[index]))} {side} the origin"


def landscape_rows(surface: Surface) -> list[Row]:
    """Grid, samples, state, geometry and cost."""
    record = surface.record
    rows = [
        ("state", words.state_text(surface)),
        ("resolution", words.resolution(surface)),
        *([("evaluated", evaluated_text(surface))] if evaluated_text(surface) else []),
        ("samples", record.samples_in_words),
        ("precision", words.precision_text(surface)),
        *([("quantised", record.rounding_in_words)] if record.rounding_in_words else []),
        ("engine", _recorded(record.plan and record.plan.engine)),
        *([("batch norm", words.batch_norm_text(surface))] if words.batch_norm_text(surface) else []),
        ("origin", surface.record.origin_in_words or "not recorded"),
        *([("your model", words.own_model_text(surface))] if words.own_model_text(surface) else []),
        *(row for axis in surface.axes for row in axis_rows(axis)),
        *cosine_rows(record.cosine, [axis.name for axis in surface.axes]),
    ]
    rows += [*barrier_rows(surface), *network_rows(surface), *connection_rows(surface), *compared_rows(surface)]
    rows += [row for path in surface.paths for row in path_rows(surface, path)]
    rows += [("can it be trusted", record.checks.verdict)] if record.checks is not None else []
    seconds = record.progress.seconds
    rows += [("time", seconds_text(seconds, tenths=True))] if seconds is not None else []
    return rows


def path_rows(surface: Surface, path: ProjectedPath) -> list[Row]:
    """A path's distances from the plane, in weights and in losses; for another run, the share on the axes."""
    distance = np.asarray(path.distance, np.float64)
    rows = []
    if np.isfinite(distance).any():
        far = number_text(float(np.nanmax(distance)))
        rows.append((f"path{f' of {path.label}' if path.label else ''}, furthest off the plane", far))
    along = surface.along(path)
    if not np.isnan(along.losses + along.plane).all():
        k = along.furthest
        losses = (
            number_text(float(values[k])) if np.isfinite(values[k]) else "not finite"
            for values in (along.losses, along.plane)
        )
        name = f"path{f' of {path.label}' if path.label else ''}, own loss and the plane's where furthest apart"
        rows.append((name, f"{' and '.join(losses)} at {along.names[k]}"))
    record = path.runs[0] if path.label else None
    if record is not None:
        share, walk = percent_text(record.shown), percent_text(record.shown_of_walk)
        shown = f", {share} of its own variance on the axes" if share else ""
        shown += f" (a random walk in its place: {walk})" if share and walk else ""
        rows.insert(
            0, (f"path of {path.label}", f"{counted(path.unit, path.step.tolist())} of {record.run or 'a run'}{shown}")
        )
    return rows


def network_rows(surface: Surface) -> list[Row]:
    """A row with place and loss per network that the axes run through; empty for other landscapes."""
    known = [axis.record.networks for axis in surface.axes]
    places = [networks for networks in known if networks is not None]
    if not places or len(places) < len(known):
        return []
    return [
        (
            f"network {at[0].name}",
            (f"loss {number_text(loss)} at " if np.isfinite(loss) else "")
            + ", ".join(f"{axis.name} {number_text(edge.at, 4)}" for axis, edge in zip(surface.axes, at, strict=True)),
        )
        for *at, loss in zip(*places, network_losses(surface), strict=False)
    ]


def axis_rows(axis: Axis) -> list[Row]:
    """The label of an axis, its range, and its share of the path's variance."""
    low, high = number_text(float(axis.coordinates[0])), number_text(float(axis.coordinates[-1]))
    rows = [(axis.name, f"{axis.label}, from {low} to {high}")]
    norm = finite_or_none(axis.record.norm)
    rows += [(f"{axis.name}, norm of the direction", number_text(norm))] if norm is not None else []
    explained = percent_text(axis.record.explained_variance)
    walk = percent_text(axis.record.random_walk_variance)
    if explained:
        as_long = "a random walk as long"
        if words.walk_in_words(axis) != "random walk":
            as_long = f"{words.walk_in_words(axis)}, as long"
        rows.append((f"{axis.name}, variance explained", f"{explained} ({as_long}: {walk or 'not recorded'})"))
    return rows


def cosine_rows(cosine: Any, names: Sequence[str]) -> list[Row]:
    """The cosine between each pair of axes, from the matrix `cosine`; 0 is a right angle."""
    rows = []
    for i, one in enumerate(names):
        for j in range(i + 1, len(names)):
            try:
                value = finite_or_none(cosine[i][j])
            except (IndexError, TypeError, KeyError):
                value = None
            if value is not None:
                rows.append((f"cosine of {one} and {names[j]}", number_text(value, 3)))
    return rows


def provenance_rows(surface: Surface) -> list[Row]:
    """The provenance of the numbers: enough to compute them again."""
    record = surface.record
    rows: list[Row] = [("digest", _recorded(record.digest))]
    rows += [("seed", str(record.seed))] if record.seed is not None else []
    rows += _fact_rows(record.provenance)
    rows += engine_rows(record.provenance.engine)
    plan = {} if record.plan is None else record.plan.whole
    decides = set(plan) - (set() if words.batch_norm_text(surface) else {"batch_norm"})
    rows += [(f"plan: {key.replace('_', ' ')}", str(value)) for key, value in plan.items() if key in decides]
    versions = record.provenance.versions
    if versions:
        rows.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    rows += [("schema version", str(record.schema_version))] if record.schema_version is not None else []
    return rows


def _fact_rows(provenance: Provenance) -> list[Row]:
    """The facts of a provenance, including unknown ones of later versions."""
    facts = {
        "created": provenance.created,
        "host": provenance.host,
        "platform": provenance.platform,
        "model": provenance.model,
        "parameters": provenance.parameters,
        "batch_norm_layers": provenance.batch_norm_layers,
        **provenance.others,
    }
    return [(name.replace("_", " "), str(value)) for name, value in facts.items() if value is not None]


def _recorded(value: object) -> str:
    return "not recorded" if value is None else str(value)


BY = {"given": "as the job has it", "rule": "by rule, not searched for"}  # what chose an engine
BEFORE = {"search": "searched for another landscape of the job", "kept": "kept from an earlier job"}  # without trials


def engine_rows(choice: EngineChoice | None) -> list[Row]:
    """How the engine was chosen, and the engines that were tried."""
    if choice is None:
        return []
    tried = (
        f"the fastest of {len(choice.trials)} tried"
        if choice.trials
        else BEFORE.get(choice.by or "", "not searched for")
    )
    how = BY.get(choice.by or "", tried)
    if choice.since:
        how = f"kept from a choice of {choice.since[:10]}"
    seconds = finite_or_none(choice.seconds_per_point)
    how += f", {number_text(seconds, 3)} s a point when measured" if seconds is not None else ""
    return [("engine", how), *(("engine tried", _trial(trial)) for trial in choice.trials)]


def _trial(trial: TrialRecord) -> str:
    """One trial of an engine in words: 'eager+folded, batches of 256: 1 240 samples/s', or why it was not taken."""
    speed = finite_or_none(trial.samples_per_second)
    result = f"{count_text(round(speed))} samples/s" if speed is not None else "not timed"
    return f"{trial.engine}, batches of {trial.batch_size}: {trial.refused or result}"


def _value(values: np.ndarray, error: np.ndarray | None, index: tuple[Any, ...]) -> str:
    if not np.isfinite(values[index]):
        return "not known"
    return words.value_with_error(float(values[index]), float("nan") if error is None else float(error[index]))


def _value_at(surface: Surface, values: np.ndarray, error: np.ndarray | None, index: tuple[Any, ...]) -> str:
    places = zip(surface.axes, reversed(index), strict=True)
    where = ", ".join(f"{axis.name} {number_text(float(axis.coordinates[i]), 3)}" for axis, i in places)
    return f"{_value(values, error, index)} at {where}"


# ----------------------------------------------------------------------------------------------------
# The findings of a landscape's checks, for report and page.

SAID: dict[CheckState, str] = {
    "holds": "holds",
    "reservation": "a reservation",
    "fails": "does not hold",
    "unjudged": "not judged",
    "information": "information",
}


@dataclass(frozen=True)
class CheckLine:
    """One check; `said` is its state in words, for screen readers."""

    number: str
    state: CheckState
    mark: str
    said: str
    text: str
    remedy: str


@dataclass(frozen=True)
class CheckList:
    """The verdict, and a line per check; `opened` if there is something to read."""

    summary: str
    opened: bool
    lines: tuple[CheckLine, ...]


def prepare_checks(checks: Checks | None, points: int) -> CheckList | None:
    """The list of checks; None if the landscape was not checked.

    Args:
        points: how many points of the landscape are computed now, perhaps more than when it was checked.
    """
    if checks is None:
        return None
    since = (
        f"; of {count_text(checks.points)} of the {count_text(points)} points of now" if points != checks.points else ""
    )
    lines = tuple(
        CheckLine(line.number, line.state, MARKS[line.state].strip(), SAID[line.state], line.text, line.remedy)
        for line in checks.told
    )
    opened = bool(checks.of("fails", "reservation")) or checks.not_judged
    return CheckList(f"Can this picture be trusted? {checks.verdict}{since}", opened, lines)


# ----------------------------------------------------------------------------------------------------
# Measures of single layers: a row per layer, and bars of how far each raises the loss.

HEAD = "layer"
SAYING = "In brackets the 95 % interval over the lines of the layer; errors over the samples are in the CSV."


@dataclass(frozen=True)
class LayerBar:
    """The drawn measure of one layer, and the ends of its interval; None if they are not known."""

    layer: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LayerTable:
    """The layers of one set of weights, in the model's order.

    Attributes:
        heads: `layer`, then the measures.
        rows: texts, one per head.
        title: of the bars: the rise at the largest measured distance.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str
    bars: tuple[LayerBar, ...]


def layer_table(layers: Mapping[str, Any], title_of: Callable[[str], str]) -> LayerTable | None:
    """The table of `layers` in `measures.json`; None if none was measured."""
    known = {str(layer): mapping(rows) for layer, rows in layers.items() if mapping(rows)}
    names = list(dict.fromkeys(str(name) for rows in known.values() for name in rows))
    if not names:
        return None
    rows = tuple(
        (layer, *(_cell(mapping(statistics.get(name))) for name in names)) for layer, statistics in known.items()
    )
    drawn = [name for name in names if name.startswith("rise ")][-1:] or names[:1]
    bars = [_bar(layer, mapping(statistics.get(drawn[0]))) for layer, statistics in known.items()]
    heads = (HEAD, *map(title_of, names))
    return LayerTable(heads, rows, title_of(drawn[0]), tuple(bar for bar in bars if bar is not None))


def _cell(row: Mapping[str, Any]) -> str:
    value, low, high = (finite_or_none(row.get(name)) for name in ("value", "low", "high"))
    if value is None:
        return bound_text(row) or str(row.get("note") or "–")
    return number_text(value, 3) + (
        "" if low is None or high is None else f" [{number_text(low, 2)}, {number_text(high, 2)}]"
    )


def bound_text(row: Mapping[str, Any]) -> str:
    """The bounds of a measure without a value; empty if there are none.

    >>> bound_text({"value": None, "below": 0.05}), bound_text({"above": 0.25, "below": 0.5}), bound_text({"value": 1})
    ('< 0.05', '0.25 to 0.5', '')
    """
    above, below = finite_or_none(row.get("above")), finite_or_none(row.get("below"))
    if finite_or_none(row.get("value")) is not None or (above is None and below is None):
        return ""
    if above is not None and below is not None:
        return f"{number_text(above)} to {number_text(below)}"
    return f"< {number_text(below)}" if below is not None else f"> {number_text(above or 0.0)}"


def _bar(layer: str, row: Mapping[str, Any]) -> LayerBar | None:
    value, low, high = (finite_or_none(row.get(name)) for name in ("value", "low", "high"))
    return None if value is None else LayerBar(layer, value, low, high)


COLUMNS = ("measure", "value", "SE over samples", "95 % interval", "note")
# The measures that are drawn as curves over training, each on its own scale.
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
        layers: the measures of single layers; None if there are none.
    """

    label: str
    rows: tuple[TextRow, ...]
    layers: LayerTable | None


@dataclass(frozen=True)
class MeasureCurve:
    """One measure over the snapshots of a run.

    Attributes:
        places: epochs or steps.
        errors: half of a 95 % interval at each place; None if unknown.
        bounds: places with bounds only, and `above` and `below` there, each possibly None.
    """

    title: str
    unit: str
    places: tuple[int, ...]
    values: tuple[float, ...]
    errors: tuple[float | None, ...]
    bounds: tuple[tuple[int, float | None, float | None], ...] = ()


def measure_tables(measures: Mapping[str, Any]) -> list[MeasuredWeights]:
    """The table of each set of weights in `measures.json`; empty if the file holds something else."""
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
    """Curves over the snapshots of the measures that at least two snapshots have."""
    rho = mapping(mapping(measures.get("settings")).get("rho"))
    snapshots = [entry for _, entry in _entries(measures) if isinstance(entry.get("number"), int)]
    curves = []
    for name in names:
        rows = [(entry["number"], mapping(mapping(entry.get("rows")).get(name))) for entry in snapshots]
        known = [(place, value, row) for place, row in rows if (value := finite_or_none(row.get("value"))) is not None]
        bounds = [
            (place, finite_or_none(row.get("above")), finite_or_none(row.get("below")))
            for place, row in rows
            if bound_text(row)
        ]
        if len(known) + len(bounds) > 1:
            places, values = tuple(place for place, _, _ in known), tuple(value for _, value, _ in known)
            unit = str(snapshots[0].get("unit") or "snapshot")
            curves.append(
                MeasureCurve(
                    title_of(name, rho), unit, places, values, tuple(_half(row) for *_, row in known), tuple(bounds)
                )
            )  # fmt: skip
    return curves


def measure_numbers(measures: Mapping[str, Any]) -> Mapping[str, Any]:
    """The measures of the last weights, for comparing runs in tables; other documents unchanged.

    Measures with bounds only are texts, such as '< 0.05'.
    """
    entries = list(_entries(measures))
    if not entries:
        return measures
    rho = mapping(mapping(measures.get("settings")).get("rho"))
    rows = _rows(entries[-1][1])
    values = {title_of(name, rho): bound_text(row) or finite_or_none(row.get("value")) for name, row in rows}
    other = {name: value for name, value in measures.items() if name not in ("schema", "settings", "origins")}
    return {"of": entries[-1][0]} | {name: value for name, value in values.items() if value is not None} | other


def title_of(name: str, rho: Mapping[str, Any] | None = None) -> str:
    """The name of a measure in tables.

    >>> title_of("rise 0.25"), title_of("sam 1 step", {"sam": 0.05})
    ('rise at 0.25', 'worst case in ‖ε‖ ≤ 0.05 (SAM), 1 step')
    """
    word, _, rest = name.partition(" ")
    if word in PENALTIES and rest:
        size = finite_or_none(mapping(rho).get(word))
        return PENALTIES[word].format(rho="ρ" if size is None else number_text(size), steps=rest)
    start, _, size_text = name.rpartition(" ")
    return TITLES.get(name) or (PREFIXES[start].format(size_text) if start in PREFIXES else name)


def samples_measured(measures: Mapping[str, Any]) -> str:
    """The samples and the arithmetic of `measures.json` in words.

    >>> samples_measured({"settings": {"num_samples": 64, "seed": 0, "precision": "float32", "batch_norm": "eval"}})
    '64 samples of seed 0, float32, batch_norm eval'
    """
    settings = mapping(measures.get("settings"))
    count, seed, precision, mode = (settings.get(name) for name in ("num_samples", "seed", "precision", "batch_norm"))
    return f"{count} samples of seed {seed}, {precision}, batch_norm {mode}"


def overview_lines(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A row for each set of weights of several runs, by the label of the run, as lines of plain text."""
    head = ("run", "weights", *map(title_of, CURVES), "on")
    rows = []
    for label, measures in runs:
        for weights, entry in _entries(measures):
            of_entry = dict(_rows(entry))
            values = [_with_half(of_entry.get(name, {})) for name in CURVES]
            rows.append((label, weights, *values, samples_measured(measures)))
    return _aligned([head, *rows], [""] * len(rows))


def _with_half(row: Mapping[str, Any]) -> str:
    value, half = finite_or_none(row.get("value")), _half(row)
    if value is None:
        return bound_text(row) or "–"
    return number_text(value) + ("" if half is None else f" ± {number_text(half, 2)}")


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
    """The result of `landscape compare` as lines of plain text."""
    rows: list[tuple[str, ...]] = [("measure", "first", "second", "difference", "95 % interval")]
    notes = []
    for name, row in mapping(comparison.get("rows")).items():
        numbers = {key: finite_or_none(row.get(key)) for key in ("first", "second", "difference", "low", "high")}
        bounds = {side: bound_text(mapping(bound)) for side, bound in mapping(row.get("bounds")).items()}
        texts = [bounds.get(key, "–") if numbers[key] is None else number_text(numbers[key] or 0.0) for key in numbers]
        interval = "" if numbers["low"] is None else f"[{texts[3]}, {texts[4]}]"
        rows.append((title_of(name, mapping(comparison.get("rho"))), *texts[:3], interval))
        notes.append(f"{row['verdict']} ({row['how']})")
    sides = [f"{side}: {', '.join(comparison[side])}" for side in ("first", "second")]
    lacking = [_lacking(layer, mapping(comparison.get("rho"))) for layer in comparison.get("lacking", ())]
    return [*sides, *_aligned(rows, notes), *lacking, str(comparison["says"])]


def _lacking(found: Mapping[str, Any], rho: Mapping[str, Any]) -> str:
    titles = "; ".join(title_of(name, rho) for name in found["rows"])
    return f"not compared, as {found['of']} has none: {titles}; measure them by {found['command']}"


def table_csv(measures: Mapping[str, Any]) -> list[list[str]]:
    """The rows of a table for other software: numbers in full precision, the header first."""
    names = ("value", "stderr", "low", "high", "draws", "note", "above", "below")
    lines = [["origin", "number", "layer", "measure", *names]]
    for label, entry in _entries(measures):
        layers = [(layer, mapping(rows)) for layer, rows in mapping(entry.get("layers")).items()]
        for layer, rows in [("", mapping(entry.get("rows"))), *layers]:
            for name, row in rows.items():
                known = [mapping(row).get(key) for key in names]
                place = [label, entry.get("number"), layer, name]
                lines.append(["" if value is None else str(value) for value in [*place, *known]])
    return lines


def _entries(measures: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((str(label), mapping(entry)) for label, entry in mapping(measures.get("origins")).items())


def _rows(entry: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(str(name), mapping(row)) for name, row in mapping(entry.get("rows")).items()]


def _texts(name: str, row: Mapping[str, Any], rho: Mapping[str, Any]) -> TextRow:
    value, stderr, low, high = (finite_or_none(row.get(key)) for key in ("value", "stderr", "low", "high"))
    interval = "" if low is None or high is None else f"[{number_text(low)}, {number_text(high)}]"
    error = "" if stderr is None else number_text(stderr, 2)
    shown = bound_text(row) or ("–" if value is None else number_text(value))
    return title_of(name, rho), shown, error, interval, str(row.get("note") or "")


def _half(row: Mapping[str, Any]) -> float | None:
    low, high, stderr = (finite_or_none(row.get(key)) for key in ("low", "high", "stderr"))
    if low is not None and high is not None:
        return (high - low) / 2
    return None if stderr is None else 2 * stderr


def _aligned(rows: Sequence[Sequence[str]], notes: Sequence[str]) -> list[str]:
    columns = range(1, len(rows[0]))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    texts = ["  " + "  ".join([row[0].ljust(widths[0]), *(row[k].rjust(widths[k]) for k in columns)]) for row in rows]
    return [f"{text}  {note}".rstrip() for text, note in zip(texts, ["", *notes], strict=True)]
