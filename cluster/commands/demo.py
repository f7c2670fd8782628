"""`landscape demo`: train on real digits, compute the landscapes on a local Ray, write report and pictures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from cluster.commands.computing import compute
from cluster.process.console import seconds_text
from cluster.process.logs import bind, say
from cluster.process.streams import diverted, put
from landscape.errors import DONE, PARTIAL, LandscapeError
from landscape.preparation import collected_landscapes
from landscape.spec import Job

NUM_SAMPLES = 512


def run_demo(out: Path, workers: int) -> int:
    """The whole story on one machine; started again, each step goes on where it was or is skipped as done."""
    from landscape.recipes.digits import train

    start = time.monotonic()
    bind(run=str(out.absolute()))
    say("1/3 training LeNet-5 on 1,797 handwritten digits, the collector attached")
    with diverted():
        trained = train(str(out), report=_report_epoch)
    say(f"    accuracy on held-out digits: {trained.accuracy:.1%}")
    say(f"2/3 computing its landscapes on a local Ray with {workers} workers")
    job = Job(
        run=str(out.absolute()), problem="landscape.recipes.digits:problem", num_samples=NUM_SAMPLES,
        # Those that the collector stands for, named here: its end is meant, and not the callback's untrained network.
        landscapes=collected_landscapes(str(out.absolute())),
    )  # fmt: skip
    code = compute(job, workers=workers)
    say("3/3 drawing")
    with diverted():
        written = _draw(out)
    for path in written:
        put(str(path))
    say(f"done in {seconds_text(time.monotonic() - start)}; open {out / 'report.html'}")
    return code if code == PARTIAL else DONE


def _report_epoch(epoch: int, metrics: Mapping[str, float]) -> None:
    say(f"    epoch {epoch}: {', '.join(f'{name} {value:.4g}' for name, value in metrics.items())}")


def _draw(out: Path) -> list[Path]:
    """The report, then a PNG per landscape and view where this machine has a Chromium."""
    from cluster.commands.exporting import export_run
    from landscape.results import open_run
    from landscape.views import write_report

    write_report(open_run(str(out)), out / "report.html")
    written = [out / "report.html"]
    try:
        for kind in ("contour", "topographic", "surface"):
            written += export_run(str(out), None, ["png"], out / "pictures", kind, "loss", log=True)
    except LandscapeError as error:
        say(f"    no PNG pictures: {error}")
    return written
