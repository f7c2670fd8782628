"""The commands that take a job file: `landscape run`, `pack`, `plan` and `bench`; and `demo`, with its own job."""

from __future__ import annotations

import json as json_module
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cluster.commands.output import (
    ANYONE,
    Json,
    WorkerOptions,
    Workers,
    read_bound_job,
    read_job_file,
    show,
)
from cluster.runtime.console import command_progress, divert_stdout, put
from cluster.runtime.logs import bind, write_remark
from cluster.runtime.options import Flag, ManyWhole, MaybeNumber, MaybeWhole, Whole, Words, check_workers, given_options
from landscape.core.errors import DONE, PARTIAL, JobError, LandscapeError, printable, quoted
from landscape.core.files import temporary_folder
from landscape.core.text import bytes_text

if TYPE_CHECKING:
    from landscape.bench.options import BenchOptions
    from landscape.core.progress import Progress
    from landscape.job.job import Job


@dataclass(frozen=True)
class JobFields:
    """Fields of the job file that the options of `landscape run` replace."""

    run: str | None = None
    """The run folder or URL."""
    num_samples: MaybeWhole = None
    """Samples that every value is the mean of."""
    seed: MaybeWhole = None
    """Decides which samples are taken."""
    batch_size: MaybeWhole = None
    """Samples per forward pass."""
    precision: str | None = None
    """{precisions}."""
    batch_norm: str | None = None
    """{batch_norms}: what normalisation layers do."""
    device: str | None = None
    """auto, cpu or cuda."""
    threads: MaybeWhole = None
    """CPU threads of each worker."""
    num_gpus: MaybeNumber = None
    """GPUs of each worker: a share from 0 to 1, or a whole number."""
    max_workers: MaybeWhole = None
    """At most so many workers; a larger --workers is refused. Default: LANDSCAPE_MAX_WORKERS."""
    worker_resources: Words = None
    """NAME=AMOUNT of a custom resource of the Ray cluster that each worker needs; may be repeated."""
    device_ids: ManyWhole = None
    """Which GPUs of this machine a local Ray may use."""


AS_WRITTEN = JobFields()


def run(
    job: Path,
    *,
    who: Workers = ANYONE,
    fields: Annotated[JobFields, Parameter(name="*")] = AS_WRITTEN,
    accept_origin: Flag = False,
) -> int:
    """Compute a job, or go on with it where it stopped.

    Parameters
    ----------
    job
        The YAML job file. The options below replace its fields.
    accept_origin
        Go on, with a warning that the landscape keeps, where your model has another loss by its own forward pass.
    """
    changed = read_bound_job(job, **given_options(fields))
    who.check()
    return who.compute(changed, accept_origin=accept_origin)


def pack(
    job: str,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    with_results: Flag = False,
    num_samples: int | None = None,
    precision: str | None = None,
    json: Json = False,
) -> int:
    """Write a job and its problem, or a run with its values, as one file that needs none of the code that made it.

    Parameters
    ----------
    job
        The YAML job file; with --with-results a run folder or URL.
    out
        The file to write; it ends in .landscape.
    with_results
        Pack the run: view, export and serve take the file as they take the run, and compute none of its values anew.
    num_samples
        Samples that every value is the mean of; these travel.
    precision
        {precisions}.
    """
    if with_results:
        if num_samples is not None or precision is not None:
            raise JobError(
                "with-results: goes with a run, whose samples and precision are recorded; leave the others out"
            )
        return _pack_results(job, out, json)
    if Path(job).is_dir():
        raise JobError(f"job: must be a job file, not the folder {quoted(job)}; for a run give --with-results")
    from landscape.compute.pack import pack as write_packed

    packed = write_packed(read_bound_job(Path(job), num_samples=num_samples, precision=precision), out)
    data = {
        "file": str(packed.path),
        "bytes": packed.size,
        "tensor_bytes": packed.tensor_bytes,
        "difference": packed.compared.difference,
    }
    values = "equal to the bit" if packed.compared.equal else f"equal to {packed.compared.difference:.1g}"
    text = f"{packed.path}: {bytes_text(packed.size)}; its values are {values}; landscape run {packed.path}"
    show(data, json, text)
    return 0


def _pack_results(run: str, out: Path, json: bool) -> int:
    """Pack a run with its values; tells which landscapes have no problem in the file."""
    from landscape.compute.pack_run import pack_run

    with divert_stdout(), command_progress():
        packed = pack_run(run, out)
    for name, reason in packed.left_out.items():
        write_remark(f"the file holds no problem of {name}, only its stored values: {reason}")
    data = {"file": str(packed.path), "bytes": packed.size, "landscapes": list(packed.landscapes)}
    count = len(packed.landscapes)
    text = (
        f"{packed.path}: {bytes_text(packed.size)}; {count} landscape{'s' if count > 1 else ''}, exact points of "
        f"{count - len(packed.left_out)}; landscape view {packed.path}"
    )
    show({**data, "left_out": dict(packed.left_out)}, json, text)
    return 0


def plan(job: Path, *, run: str | None = None, workers: MaybeWhole = None, json: Json = False) -> None:
    """Check everything and show points, tiles, bytes and the estimated time; writes nothing.

    Parameters
    ----------
    job
        The YAML job file.
    run
        The run folder or URL instead of the file's.
    workers
        How many workers to estimate for.
    """
    from landscape.compute.planning import plan as plan_of

    with divert_stdout():
        planned = plan_of(read_bound_job(job, run=run), check_workers(workers))
    show(planned.document, json, str(planned))


# ----------------------------------------------------------------------------------------------------
# The demo: train on real digits, compute the landscapes on a local Ray, check them and draw them.

NUM_SAMPLES = 512


def demo(*, out: str = "runs/demo", workers: Whole = 2) -> int:
    """Train LeNet-5 on real handwritten digits, compute its landscapes on a local Ray, check them, write a report.

    Parameters
    ----------
    out
        The run folder on this machine, which report and pictures are written to as well; the same command goes on
        where an earlier one stopped.
    workers
        How many actors evaluate.
    """
    if not out or "://" in out:
        raise JobError(
            f"out: must be a folder of this machine, which report and pictures are written to, not {quoted(out)}; "
            "give one"
        )
    check_workers(workers)
    return run_demo(Path(out), workers)


def run_demo(out: Path, workers: int) -> int:
    """Train, compute, check and draw on this machine; called again, each step resumes where it stopped.

    Args:
        out: the run folder, which report and pictures are written to as well.
        workers: how many actors evaluate.

    Returns:
        The exit code: 0, or 4 if points are missing or given up.
    """
    from cluster.commands.analysis import texts_of_checks
    from cluster.runtime.session import refuse_without_ray
    from landscape.analysis.questions import check
    from landscape.compute.recorded_job import collected_landscapes
    from landscape.core.text import seconds_text
    from landscape.job.job import Job
    from landscape.recipes.digits import train

    refuse_without_ray(or_serial=False)
    start = time.monotonic()
    bind(run=str(out.absolute()))
    write_remark("1/4 training LeNet-5 on handwritten digits, the collector attached")
    with divert_stdout():
        trained = train(str(out), report=_report_epoch)
    write_remark(f"    accuracy on held-out digits: {trained.accuracy:.1%}")
    write_remark(f"2/4 computing its landscapes on a local Ray with {workers} workers")
    job = Job(
        run=str(out.absolute()), problem="landscape.recipes.digits:problem", num_samples=NUM_SAMPLES,
        # The landscapes of the collector, whose origin is the end of training. In a job without landscapes the origin
        # would be the callback's untrained network.
        landscapes=collected_landscapes(str(out.absolute())),
    )  # fmt: skip
    code = WorkerOptions(workers=workers).compute(job)
    write_remark("3/4 checking whether their pictures can be trusted")
    with divert_stdout():
        checks = check(job.run)
    write_remark("4/4 drawing")
    with divert_stdout():
        paths = _draw(out)
    for path in paths:
        put(str(path))
    put(printable(texts_of_checks(checks)))
    write_remark(f"done in {seconds_text(time.monotonic() - start)}; open {out / 'report.html'}")
    return code if code == PARTIAL else DONE


def _report_epoch(epoch: int, metrics: Mapping[str, float]) -> None:
    write_remark(f"    epoch {epoch}: {', '.join(f'{name} {value:.4g}' for name, value in metrics.items())}")


def _draw(out: Path) -> list[Path]:
    """Write the report, then a PNG per landscape and view if this machine has a Chromium; returns the paths."""
    from cluster.commands.exporting import export_run
    from landscape.store.results import open_run
    from landscape.views.figure_spec import FigureSpec
    from landscape.views.report import write_report

    write_report(open_run(str(out)), out / "report.html")
    paths = [out / "report.html"]
    try:
        for kind in ("contour", "topographic", "surface"):
            paths += export_run(str(out), [], ["png"], out / "pictures", FigureSpec(kind=kind, log=True))
    except LandscapeError as error:
        write_remark(f"    no PNG pictures: {error}")
    return paths


# ----------------------------------------------------------------------------------------------------
# The speed of a job's evaluation, beside that of a bare forward pass.


def bench(
    job: Path,
    *,
    precision: Words = None,
    engine: Words = None,
    rounds: Whole = 5,
    search: MaybeNumber = None,
    num_samples: MaybeWhole = None,
    batch_size: MaybeWhole = None,
    device: str | None = None,
    threads: MaybeWhole = None,
    quick: Flag = False,
    full: Flag = False,
    json: Flag = False,
) -> None:
    """Measure how fast a job is evaluated here, beside a bare forward pass; what Ray costs; how long a start takes.

    Parameters
    ----------
    job
        The YAML job file; its first landscape is measured, and nothing is written to its run.
    precision
        May be repeated; default: float32 and bfloat16, and tf32 on a GPU.
    engine
        Only this one beside plain eager; may be repeated. Default: all that suit the job.
    rounds
        How often everything is timed.
    search
        Seconds for choosing an engine; default: as a run of the job.
    num_samples
        Samples that every value is the mean of, instead of the file's.
    batch_size
        Samples per forward pass, instead of the file's.
    device
        auto, cpu or cuda, instead of the file's.
    threads
        CPU threads, instead of the file's.
    quick
        Leave out Ray and the start-up, and measure briefly.
    full
        Also evaluate the whole grid, in the job's precision.
    json
        Print one JSON document instead of text.
    """
    from landscape.bench.options import options_for

    options = options_for(precision or (), engine or (), rounds, search=search, quick=quick, full=full, report=_report)
    changed = read_job_file(job, num_samples=num_samples, batch_size=batch_size, device=device, threads=threads)
    if not quick and options.precisions and changed.precision not in options.precisions:
        own = changed.precision
        raise JobError(f"precision: Ray is measured in the job's own, {own}; name that too, or give --quick")
    with divert_stdout():
        measured = bench_job(changed, options, quick=quick)
    put(json_module.dumps(measured, indent=1, allow_nan=False) if json else bench_report(measured))


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------------------------------
# The cost of Ray, and the gain by a second worker: the same job and tiles serially, with one worker and with two.

TILES, TILE_SECONDS, ROUNDS = 16, 1.2, 3
MOST_TILES = 256  # if so many end before a second worker has come, none will come
MOST_POINTS = 4000  # of a tile, so that 16 tiles fit the longest axis that a job may have
TRAINED = ("trajectory", "run.json", "history.jsonl")  # files of a training that a landscape may need


def bench_job(job: Job, options: BenchOptions, *, quick: bool = False) -> dict[str, Any]:
    """Measure the job without Ray; unless quick, also the cost of Ray, and the time that a user waits."""
    from landscape.bench.measure import bench as measure

    measured = measure(job, options)
    if quick:
        return measured

    options.report("serial, one worker, two workers")
    measured["ray"] = over_serial(job, measured)
    options.report("start-up")
    return measured | {"startup": startup()}


class TooFewTiles(LandscapeError):
    """A run ended before all of its workers had tiles to compute."""


class Watch:
    """An observer that records when points were done, for a rate without the start and the end of the run."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._marks: list[tuple[float, int]] = []

    def __call__(self, progress: Progress) -> None:
        # Points are counted once all workers are there.
        new = not self._marks or progress.points_done > self._marks[-1][1]
        if progress.workers >= self._workers and new:
            self._marks.append((time.monotonic(), progress.points_done))

    @property
    def points(self) -> int:
        """The number of points done by the last record; 0 before all workers were there."""
        return self._marks[-1][1] if self._marks else 0

    def seconds_per_point(self) -> float:
        """Seconds per point between the first and the last tile during which all workers had work.

        Raises:
            TooFewTiles: there are fewer than two such tiles.
        """
        marks = self._marks[: len(self._marks) - (self._workers - 1)]
        if len(marks) < 2:
            raise TooFewTiles("bench: too few tiles for a rate; give the job more points, or --quick")
        (start, before), (end, after) = marks[0], marks[-1]
        return (end - start) / (after - before)


def over_serial(job: Job, measured: Mapping[str, Any], rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure seconds per point serially, with one worker and with two, by rounds; and the ratios of these.

    Raises:
        TooFewTiles: even with the most tiles, one worker had done all before the other one came.
    """
    # Imported here, since Ray takes seconds to import, and a quick measurement does not need it.
    from cluster.driver.driver import run as run_on_ray
    from cluster.runtime.session import ray_session
    from landscape.bench.yardsticks import quotient
    from landscape.compute.serial import run as run_serially

    precision = next(row for row in measured["precisions"] if row["precision"] == job.precision)
    engine, batch_size, seconds = _chosen(precision)
    tiles, times = TILES, list[dict[str, float]]()
    with temporary_folder() as folder, ray_session(job, None, 2):
        while len(times) < rounds:
            part, tile_points = stretch(job, engine, batch_size, seconds, tiles)
            place = Path(tempfile.mkdtemp(dir=folder))
            runs = {name: _run_folder(job, place / name) for name in ("serial", "one", "two")}
            watches = {"serial": Watch(1), "one": Watch(1), "two": Watch(2)}
            run_serially(part.replace(run=str(runs["serial"])), watches["serial"])
            run_on_ray(part.replace(run=str(runs["one"])), 1, None, watches["one"])
            run_on_ray(part.replace(run=str(runs["two"])), 2, None, watches["two"])
            try:
                times.append({name: watch.seconds_per_point() for name, watch in watches.items()})
            except TooFewTiles:
                # On a busy machine the first worker may have done all before the second one comes: again, with more.
                tiles *= 2
                if tiles > MOST_TILES:
                    raise
    return {
        "engine": engine, "batch_size": batch_size, "tile_points": tile_points, "rounds": times,
        "one_over_serial": quotient(times, "serial", "one"), "two_over_one": quotient(times, "one", "two"),
    }  # fmt: skip


def _chosen(precision: Mapping[str, Any]) -> tuple[str, int, float]:
    """The engine that a run would use, its batch size, and its seconds per point."""
    rows = [row for row in precision["engines"] if "failed" not in row]
    best = next((row for row in rows if row["chosen"]), rows[0])
    return best["engine"], best["batch_size"], best["seconds_per_point"]


def stretch(job: Job, engine: str, batch_size: int, seconds: float, tiles: int = TILES) -> tuple[Job, int]:
    """The job of its first landscape with few points, in tiles of about a second; and the points of such a tile."""
    from landscape.compute.prepare import prepare
    from landscape.core.validation import MAX_SIZE
    from landscape.job.landscape import Landscape

    recorded = prepare(job).landscapes[0].record.job
    assert recorded is not None, "a prepared landscape has a job"
    spec = recorded.landscapes[0]
    axes = len(spec["directions"])
    points = max(1, min(MOST_POINTS, math.ceil(TILE_SECONDS / seconds)))
    if axes == 1:
        size = [max(3, min(MAX_SIZE, points * tiles))]
    else:
        width = max(3, points)
        rows = max(3, math.ceil(tiles / math.ceil(width / points) / 3 ** (axes - 2)))
        size = [width, rows, *[3] * (axes - 2)]
    part = Landscape(**{**spec, "size": size})
    tile = (min(points, size[0]), *[1] * (axes - 1))
    changed = job.replace(landscapes=(part,), tile=tile, engine=engine, batch_size=batch_size)
    return changed, tile[0]


def _run_folder(job: Job, folder: Path) -> Path:
    """Make a run folder with links to the training files of the job's run."""
    folder.mkdir()
    for name in TRAINED:
        file = Path(job.run_path) / name
        if file.exists():
            (folder / name).symlink_to(file)
    return folder


def bench_report(measured: Mapping[str, Any]) -> str:
    """The whole measurement as lines."""
    from landscape.bench.__main__ import aligned, bench_text, ratio_text

    parts = [bench_text(measured)]
    if "ray" in measured:
        ray = measured["ray"]
        parts.append(
            f"Ray, one worker over serial: {ratio_text(ray['one_over_serial'])}; two workers over one: "
            f"{ratio_text(ray['two_over_one'])} ({len(ray['rounds'])} rounds, tiles of {ray['tile_points']} points, "
            f"{ray['engine']}, without start-up)"
        )
    if "startup" in measured:
        parts.append("\n".join(aligned(_startup_rows(measured["startup"]))))
    return "\n\n".join(parts)


def _startup_rows(seconds: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    resume = seconds["resume"]
    return [
        ("from the prompt to", "seconds"),
        ("first tile, landscape run", f"{seconds['ray']['first_tile']:.2f}"),
        ("first tile, landscape run --serial", f"{seconds['serial']['first_tile']:.2f}"),
        ("landscape --help", f"{seconds['help']:.2f}"),
        (f"resume of {resume['points']} finished points", f"{resume['ray']:.2f}"),
        (f"resume of {resume['points']} finished points, --serial", f"{resume['serial']:.2f}"),
    ]


# ----------------------------------------------------------------------------------------------------
# The time that a user waits: for the first committed tile, for the help, for a finished run.
#
# Real commands run in a temporary folder. The points of their problem cost almost nothing: the system is measured.

COMMAND = (sys.executable, "-m", "cluster")
NAME = "bench"
LONGEST = 300.0  # seconds; a command that takes longer counts as hung
LOOK_SECONDS = 0.01
FINISHED_SIZE = 256


def startup(finished_size: int = FINISHED_SIZE) -> dict[str, Any]:
    """Seconds to the first tile and to the end of a small job; of the help; and of a run that is already finished."""
    from landscape.core.devices import cores

    with temporary_folder() as folder:
        small = write_job(folder, "small", 16)
        # Many points at once, since only the time of the finished run is measured.
        finished = write_job(folder, "finished", finished_size, engine="vmap:64")
        seconds: dict[str, Any] = {"help": _time_command(["--help"])}
        seconds["serial"] = first_tile(["run", str(small), "--serial", "--run", str(folder / "a")], folder / "a")
        workers = f"--workers={cores()}"  # without this, so small a job starts no Ray
        seconds["ray"] = first_tile(["run", str(small), workers, "--run", str(folder / "b")], folder / "b")
        again = ["run", str(finished), "--serial"]
        seconds["computing"] = _time_command(again)
        seconds["resume"] = {
            "points": finished_size**2, "serial": _time_command(again), "ray": _time_command(again[:-1])
        }  # fmt: skip
        return seconds


def write_job(folder: Path, name: str, size: int, **fields: Any) -> Path:
    """Write a job file of the tiny problem, with its run beside it under the same name."""
    import yaml

    landscape = {"name": NAME, "size": size}
    job = {"run": name, "problem": "landscape.bench.problems:tiny", "num_samples": 16, "landscapes": [landscape]}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(job | fields))
    return folder / f"{name}.yaml"


def first_tile(words: Sequence[str], run: Path) -> dict[str, float]:
    """Run a command; the seconds until a tile's status, which is written last, is in the run; and until the end.

    Raises:
        LandscapeError: the command failed, or wrote no tile in time.
    """
    chunks = run / "landscapes.zarr" / NAME / "status" / "c"
    start = time.monotonic()
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    tile_seconds: float | None = None
    try:
        while process.poll() is None and tile_seconds is None:
            if time.monotonic() - start > LONGEST:
                raise LandscapeError(f"bench: `landscape {words[0]}` has written no tile in {LONGEST:g} s")
            if any(file.is_file() for file in chunks.rglob("*")):
                tile_seconds = time.monotonic() - start
            time.sleep(LOOK_SECONDS)
        _, stderr = process.communicate(timeout=LONGEST)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    _check(process.returncode, words, stderr)
    seconds = time.monotonic() - start
    return {"first_tile": seconds if tile_seconds is None else tile_seconds, "end": seconds}


def _time_command(words: Sequence[str]) -> float:
    start = time.monotonic()
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=LONGEST, check=False)
    _check(done.returncode, words, done.stderr)
    return time.monotonic() - start


def _check(code: int | None, words: Sequence[str], stderr: str) -> None:
    if code != 0:
        last = (stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise LandscapeError(f"bench: `landscape {words[0]}` ended with code {code}: {last[:200]}")
