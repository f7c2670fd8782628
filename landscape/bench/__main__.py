"""The measurement without a cluster; neither Ray nor `cluster` is needed.

python -m landscape.bench job.yaml
python -m landscape.bench --recipe resnet20 --samples 2048 --json bench.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from landscape.bench.measure import bench
from landscape.bench.options import options_for
from landscape.bench.problems import SYNTHETIC_MODELS, synthetic_job
from landscape.core.errors import JobError, LandscapeError
from landscape.core.files import temporary_folder
from landscape.core.plan import Precision
from landscape.job.job import Job
from landscape.job.reading import read_job

# ----------------------------------------------------------------------------------------------------
# The measurements as text for people.

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
        f"{engine['samples_per_second']:.4g}", ratio_text(engine["efficiency"]),
        ratio_text(engine["efficiency_same_engine"]),
        "not finite" if off is None else f"{off:.1e}",
    )  # fmt: skip


def ratio_text(ratio: Mapping[str, float]) -> str:
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
        f"weights, {setting['engine']}: {setting['seconds'] * 1e3:.3g} ms a point, {ratio_text(setting['over_bare'])} "
        f"of the bare forward; a whole point {ratio_text(setting['point_over_bare'])} of it"
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


# ----------------------------------------------------------------------------------------------------

SYNTHETIC = "weights are random and data synthetic: the speed is real, the landscape means nothing"


def parser() -> argparse.ArgumentParser:
    """The options of `python -m landscape.bench`."""
    options = argparse.ArgumentParser(
        prog="python -m landscape.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("job", nargs="?", type=Path, help="a YAML job file; its first landscape is measured")
    options.add_argument(
        "--recipe", choices=sorted(SYNTHETIC_MODELS), help="a model instead, random weights, synthetic data"
    )
    options.add_argument("--samples", type=int, help="samples a point")
    options.add_argument("--size", type=int, help="points per axis of the synthetic model's grid (default 40)")
    options.add_argument("--batch-size", type=int)
    options.add_argument("--device", choices=("auto", "cpu", "cuda"))
    options.add_argument("--threads", type=int)
    options.add_argument("--precision", action="append", choices=get_args(Precision), help="may be repeated")
    options.add_argument("--engine", action="append", help="this one beside plain eager; may be repeated")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--slice", type=float, default=0.3, help="seconds of each timing (default 0.3)")
    options.add_argument("--search", type=float, help="seconds for choosing an engine (default: as a run of the job)")
    options.add_argument("--full", action="store_true", help="also evaluate the whole grid, in the job's precision")
    options.add_argument("--no-memory", action="store_true")
    options.add_argument("--json", type=Path, metavar="FILE", help="also write one JSON document")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure as the command line says and print the table.

    Args:
        arguments: default: those of this process.

    Raises:
        SystemExit: 2 for bad usage or a bad job; else the exit code of what failed.
    """
    given = parser().parse_args(arguments)
    try:
        measured = measure_as_asked(given)
    except LandscapeError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(bench_text(measured), flush=True)
    if given.json:
        given.json.write_text(json.dumps(measured, indent=1, allow_nan=False) + "\n")


def measure_as_asked(given: argparse.Namespace) -> dict[str, Any]:
    """The measurements of a job file or of a synthetic model, as `bench` returns them.

    Raises:
        JobError: neither or both are given, or an option is wrong.
    """
    if (given.job is None) == (given.recipe is None):
        raise JobError("job: give either a job file or --recipe")
    options = options_for(
        given.precision or (), given.engine or (), given.rounds, search=given.search, full=given.full, report=_report
    )
    options = replace(options, slice_seconds=given.slice, memory=not given.no_memory)
    with temporary_folder() as folder:
        job = _job(given, str(folder))
        return bench(job, options) | ({"data": SYNTHETIC} if given.recipe else {})


def _job(given: argparse.Namespace, folder: str) -> Job:
    wanted = {"batch_size": given.batch_size, "device": given.device, "threads": given.threads}
    fields = {name: value for name, value in wanted.items() if value is not None}
    # What `--full` evaluates is in the job's own precision.
    if given.precision:
        fields["precision"] = given.precision[0]
    if given.job is not None:
        if given.size is not None:
            raise JobError("size: goes with --recipe; a job file has its own")
        return read_job(given.job, num_samples=given.samples, **fields)
    return synthetic_job(given.recipe, folder, given.samples, given.size or 40, **fields)


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
