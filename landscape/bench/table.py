"""The measurements as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Sequence[str]


def bench_text(measured: Mapping[str, Any]) -> str:
    """One table over all precisions and engines, then what explains it."""
    machine = measured["machine"]
    head = [
        f"{measured['landscape']}: {measured['parameters']:,} parameters, {measured['num_samples']} samples a point, "
        f"on {machine['name'] or machine['device']} (torch {machine['torch']}), load {_loads(measured['load'])}",
        f"bare: {measured['bare']}, eager float32, the same batches, in the same run; "
        f"median of {measured['rounds']} rounds, lowest-highest",
    ]
    if measured.get("data"):
        head.append(measured["data"])
    rows: list[Row] = [("precision", "engine", "batch", "points/s", "samples/s", "of bare", "of its own", "off by")]
    for each in measured["precisions"]:
        rows += _bare_rows(each)
        rows += [_engine_row(each["precision"], engine) for engine in each["engines"]]
    notes = [line for each in measured["precisions"] for line in _notes(each)]
    return "\n".join([*head, "", *aligned(rows), "", *notes])


def _bare_rows(precision: Mapping[str, Any]) -> list[Row]:
    return [
        (precision["precision"], "bare forward", size, f"{each['points_per_second']:.4g}",
         f"{each['samples_per_second']:.4g}", "", "", "")
        for size, each in precision["bare"].items()
    ]  # fmt: skip


def _engine_row(precision: str, engine: Mapping[str, Any]) -> Row:
    name = engine["engine"] + (" *" if engine["chosen"] else "")
    if "failed" in engine:
        return (precision, name, str(engine["batch_size"]), "fails", "", "", "", engine["failed"])
    off = engine["agreement"]["loss"]["max_rel"]
    return (
        precision, name, str(engine["batch_size"]), f"{engine['points_per_second']:.4g}",
        f"{engine['samples_per_second']:.4g}", spread(engine["efficiency"]), spread(engine["efficiency_same_engine"]),
        "not finite" if off is None else f"{off:.1e}",
    )  # fmt: skip


def spread(ratio: Mapping[str, float]) -> str:
    """A ratio as `median (lowest-highest)`."""
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def _notes(measured: Mapping[str, Any]) -> list[str]:
    lines = [*map(_setting_line, measured["setting"]), *map(_memory_line, measured.get("memory", ()))]
    if "ceilings" in measured:
        lines += _ceiling_lines(measured["ceilings"])
    if "full" in measured:
        full = measured["full"]
        lines.append(
            f"whole grid, {full['engine']}: {full['points']} points in {full['seconds']:.1f} s, "
            f"{full['points_per_second']:.4g} points/s, {full['efficiency']:.2f} of bare"
        )
    return [f"{measured['precision']}: {line}" for line in lines]


def _setting_line(setting: Mapping[str, Any]) -> str:
    return (
        f"weights, {setting['engine']}: {setting['seconds'] * 1e3:.3g} ms a point, {spread(setting['over_bare'])} of "
        f"the bare forward; a whole point {spread(setting['point_over_bare'])} of it"
    )


def _memory_line(memory: Mapping[str, Any]) -> str:
    return (
        f"memory, {memory['engine']}: {memory['ratio']:.2f} of the {_megabytes(memory['bare_batch_bytes'])} of one "
        f"bare batch, above model and directions, {_megabytes(memory['kept_bytes'])} of it kept between points; "
        f"{memory['first_ratio']:.2f} at the first points ({memory['how']})"
    )


def _ceiling_lines(ceilings: Mapping[str, Any]) -> list[str]:
    lines = [
        f"ceilings here: {ceilings['flops_per_second'] / 1e9:.4g} GFLOP/s by a matrix product, "
        f"{ceilings['bytes_per_second'] / 1e9:.4g} GB/s by a copy"
    ]
    best = max(ceilings["forwards"].items(), key=lambda item: item[1]["share_of_bound"], default=None)
    shares = [("bare forward", ceilings["bare"])] + ([(f"forward by {best[0]}", best[1])] if best else [])
    for name, each in shares:
        lines.append(
            f"{name}: {each['share_of_flops']:.0%} of the FLOPs, {each['share_of_bandwidth']:.1%} of the bytes"
        )
    return lines


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.3g} MB"


def _loads(values: Sequence[float | None]) -> str:
    return " to ".join("?" if each is None else f"{each:g}" for each in values)


def aligned(rows: Sequence[Row]) -> list[str]:
    """Columns of equal width, two spaces between them."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
