"""What was measured, as a table for people and a record for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rounds import Row, ratios
from subjects import Lattice, Subject, reference


@dataclass(frozen=True)
class Agreement:
    """The largest difference of a contender's mean losses, over its points, from float64 and from this in float32."""

    from_float64: float
    from_ours: float
    compared: int
    points: int


def agreements(subject: Subject, rows: Sequence[Row]) -> dict[str, Agreement]:
    """Each row with values, compared at the points that it really visited."""
    found = [row for row in rows if row.surface is not None]
    points = sorted({point for row in found for point in row.surface.points})
    exact = dict(zip(points, reference(subject, points), strict=True))
    ours = next((row.losses_at for row in found if row.losses_at), None)
    mine = dict(zip(points, ours(points), strict=True)) if ours else {}
    return {row.name: _agreement(row, exact, mine) for row in found}


def _agreement(row: Row, exact: dict[Any, float], mine: dict[Any, float]) -> Agreement:
    values = dict(zip(row.surface.points, row.surface.losses, strict=True))
    spoilt = max(values, key=exact.__getitem__) if row.contender.noisy_maximum else None
    compared = [point for point in values if point != spoilt]
    gaps = [max(abs(values[at] - other.get(at, float("nan"))) for at in compared) for other in (exact, mine)]
    return Agreement(*gaps, len(compared), len(values))


def fastest_peers(rows: Sequence[Row]) -> dict[str, Row]:
    """The fastest of all, and the fastest of those that are used as documented."""
    peers = [row for row in rows if row.contender.kind == "peer" and row.seconds]
    documented = [row for row in peers if row.contender.documented]
    groups = {"fastest peer": peers, "fastest as documented": documented}
    return {label: min(group, key=lambda row: row.median) for label, group in groups.items() if group}


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    low, middle, high = (scale * each for each in (min(values), median(values), max(values)))
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def table(subject: Subject, lattice: Lattice, rows: Sequence[Row], agreed: dict[str, Agreement]) -> str:
    """Text, in Markdown, that reads well as it is."""
    ours = [row for row in rows if row.contender.kind == "ours" and row.seconds]
    columns = ["tool", "batch", "first s", "ms per point", *(f"÷ {row.name}" for row in ours)]
    heads = [*columns, "max Δ float64", "max Δ this", "remark"]
    lines = [_cells(row, ours, agreed.get(row.name)) for row in rows]
    widths = [max(len(line[k]) for line in [heads, *lines]) for k in range(len(heads))]
    rounds = max((len(row.seconds) for row in rows), default=0)
    text = [
        f"{subject.name}: {subject.source}; {len(subject.targets)} samples, {lattice.side} × {lattice.side} points a "
        f"round, {rounds} rounds, 1 thread; median (min–max)",
        "",
        *(_line(line, widths) for line in (heads, ["-" * width for width in widths], *lines)),
    ]
    text += ["", *(_verdict(label, best, row) for label, best in fastest_peers(rows).items() for row in ours)]
    return "\n".join(text)


def _verdict(label: str, best: Row, row: Row) -> str:
    wall, cpu = (spread(ratios(best, row, cpu=cpu), digits=2) for cpu in (False, True))
    return f"{label}, {best.name}, ÷ {row.name}: {wall}; by CPU time {cpu}"


def _cells(row: Row, ours: Sequence[Row], agreed: Agreement | None) -> list[str]:
    size = str(row.batch_size or "")
    if row.reason:
        return [row.name, size, "", "cannot run", *("" for _ in ours), "", "", row.reason]
    gaps = [f"{agreed.from_float64:.1e}", f"{agreed.from_ours:.1e}"] if agreed else ["", ""]
    if agreed and agreed.compared < agreed.points:
        gaps[0] += f" ({agreed.compared} of {agreed.points})"
    by_pair = [spread(ratios(row, each), digits=2) for each in ours]
    engine = row.notes.get("plan", {}).get("engine")
    remark = ", ".join(part for part in (row.contender.remark, f"engine {engine}" if engine else "") if part)
    first = "" if row.contender.tuned else f"{row.first_seconds:.1f}"  # the trials of batch sizes came before it
    return [row.name, size, first, spread(row.seconds, 1e3), *by_pair, *gaps, remark]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def record(subject: Subject, lattice: Lattice, rows: Sequence[Row], agreed: dict[str, Agreement]) -> dict[str, Any]:
    """The same for machines, with every single time."""
    ours = [row for row in rows if row.contender.kind == "ours" and row.seconds]
    return {
        "model": subject.name, "source": subject.source, "samples": len(subject.targets),
        "points_per_round": len(lattice.points), "step": lattice.step,
        "fastest": {label: best.name for label, best in fastest_peers(rows).items()},
        "rows": [
            {
                "name": row.name, "kind": row.contender.kind, "documented": row.contender.documented,
                "remark": row.contender.remark, "reason": row.reason,
                "batch_size": row.batch_size, "batch_size_trials": row.trials, **row.notes,
                "first_call_seconds": row.first_seconds,
                "seconds_per_point": row.seconds, "cpu_seconds_per_point": row.cpu_seconds,
                "ratio_by_round": {each.name: ratios(row, each) for each in ours if row.seconds},
                "agreement": vars(agreed[row.name]) if row.name in agreed else None,
            }
            for row in rows
        ],
    }  # fmt: skip
