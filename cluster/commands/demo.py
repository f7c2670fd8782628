"""`landscape demo`: train on real digits, compute the landscapes on a local Ray, check and draw them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from cluster.runtime.console import divert_stdout, put
from cluster.runtime.logs import bind, write_remark
from cluster.runtime.options import Whole, check_workers
from landscape.core.errors import DONE, PARTIAL, JobError, LandscapeError, printable, quoted

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
    """Train, compute, check and draw on this machine; run again, each step resumes where it stopped.

    Args:
        out: the run folder, which report and pictures are written to as well.
        workers: how many actors evaluate.

    Returns:
        The exit code: 0, or 4 where something was given up.
    """
    from cluster.commands.analysis import check_all, texts_of
    from cluster.commands.output import WorkerOptions
    from landscape.compute.recorded_job import collected_landscapes
    from landscape.core.text import seconds_text
    from landscape.job.job import Job
    from landscape.recipes.digits import train

    start = time.monotonic()
    bind(run=str(out.absolute()))
    write_remark("1/4 training LeNet-5 on handwritten digits, the collector attached")
    with divert_stdout():
        trained = train(str(out), report=_report_epoch)
    write_remark(f"    accuracy on held-out digits: {trained.accuracy:.1%}")
    write_remark(f"2/4 computing its landscapes on a local Ray with {workers} workers")
    job = Job(
        run=str(out.absolute()), problem="landscape.recipes.digits:problem", num_samples=NUM_SAMPLES,
        # Those that the collector stands for are named here: their origin is the end of training, while that of a job
        # without landscapes would be the callback's untrained network.
        landscapes=collected_landscapes(str(out.absolute())),
    )  # fmt: skip
    code = WorkerOptions(workers=workers).compute(job)
    write_remark("3/4 checking whether their pictures can be trusted")
    found = check_all(job.run, [each.name for each in job.landscapes])
    write_remark("4/4 drawing")
    with divert_stdout():
        written = _draw(out)
    for path in written:
        put(str(path))
    put(printable(texts_of(found)))
    write_remark(f"done in {seconds_text(time.monotonic() - start)}; open {out / 'report.html'}")
    return code if code == PARTIAL else DONE


def _report_epoch(epoch: int, metrics: Mapping[str, float]) -> None:
    write_remark(f"    epoch {epoch}: {', '.join(f'{name} {value:.4g}' for name, value in metrics.items())}")


def _draw(out: Path) -> list[Path]:
    """Write the report, then a PNG per landscape and view where this machine has a Chromium; the paths."""
    from cluster.commands.export import export_run
    from landscape.store.results import open_run
    from landscape.views.figure_spec import FigureSpec
    from landscape.views.report import write_report

    write_report(open_run(str(out)), out / "report.html")
    written = [out / "report.html"]
    try:
        for kind in ("contour", "topographic", "surface"):
            written += export_run(str(out), [], ["png"], out / "pictures", FigureSpec(kind=kind, log=True))
    except LandscapeError as error:
        write_remark(f"    no PNG pictures: {error}")
    return written
