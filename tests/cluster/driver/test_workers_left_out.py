"""Workers that compute other bits than a landscape holds add nothing to it."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from cluster.driver import driver
from landscape import open_run, read_job
from landscape.compute.serial import run as run_serially
from landscape.core.errors import JobError

# A plain attribute that is not the same in every process: the callback of one of them draws another.
DIFFERENT = """

class Scaled(Plane):
    def __init__(self):
        super().__init__()
        self.scale = 2.0 if {when} else 1.0


def observe(model, batch):
    if len(batch) > 2:
        note("points.log", "one more")
        company(2, after=20)  # the first is alone when it measures
    loss = (batch - model.scale * model.x[0]) ** 2 + torch.sin(3 * model.y[0]) * batch
    return {{"loss": loss}}


def problem():
    return Problem(Scaled(), torch.linspace(-1, 1, 24), observe)
"""


def with_difference(write_job, when: str, **fields):
    file = write_job(**fields)
    callback = file.parent / "my_problem.py"
    callback.write_text(callback.read_text() + DIFFERENT.format(when=when))
    return file


@pytest.mark.faults
def test_a_worker_whose_network_differs_is_left_out_and_named(write_job, tmp_path, local_ray, caplog):
    """Whose word is first is kept; the result is of one network, and no patchwork of both."""
    worker = "'default_worker' in ' '.join(sys.orig_argv) and once('one-of-them')"
    file = with_difference(write_job, worker, landscapes=[landscape([21, 15])])
    with caplog.at_level(logging.WARNING, logger="landscape"):
        found = driver.run(read_job(file), workers=2)["plane"]
    assert (found.status == 1).all()
    (line,) = [each.getMessage() for each in caplog.records if "is left out" in each.getMessage()]
    assert "its processor, " in line
    assert "computes other values for landscape 'plane' than this run holds" in line
    surfaces = []
    for name, when in (("plain", "False"), ("scaled", "True")):
        other = with_difference(write_job, when, folder=tmp_path / name, landscapes=[landscape([21, 15])])
        surfaces.append(run_serially(read_job(other))["plane"].loss)
    assert any(np.allclose(found.loss, each, rtol=1e-6) for each in surfaces)
    assert not np.allclose(surfaces[0], surfaces[1])


def landscape(size: list[int]) -> dict:
    axes = [{"kind": "file", "path": f"d{k}.safetensors"} for k in (1, 2)]
    return {"name": "plane", "directions": axes, "size": size, "range": [[-1, 1], [0, 3]]}


@pytest.mark.faults  # serially in tests/landscape/compute/test_reproducibility.py
def test_code_that_changed_is_refused_when_every_worker_has_it(write_job, tmp_path, local_ray):
    file = write_job("""
        def trouble(x, y):
            if x == 1.0 and y == 3.0 and not (HERE / "healed").exists():
                raise ValueError("not yet")
    """)
    found = run_serially(read_job(file))["plane"]
    assert (found.status == 3).any()
    before = found.loss.copy()
    callback = tmp_path / "my_problem.py"
    callback.write_text(callback.read_text().replace("torch.sin(3 *", "torch.sin(2 *"))
    (tmp_path / "healed").touch()
    by = "on this processor, .*, by other code or with other versions"
    with pytest.raises(JobError, match=f"landscape 'plane' was computed {by}"):
        driver.run(read_job(file), workers=1)
    np.testing.assert_array_equal(open_run(tmp_path / "run")["plane"].loss, before)
    callback.write_text(callback.read_text().replace("torch.sin(2 *", "torch.sin(3 *"))
    assert (run_serially(read_job(file))["plane"].status == 1).all()
    # Neither does it begin another landscape of the same run, which holds nothing yet that it could contradict.
    callback.write_text(callback.read_text().replace("loss = (batch", "loss = 2 * (batch"))
    file.write_text(file.read_text().replace("name: plane", "name: other"))
    with pytest.raises(JobError, match=r"landscape 'other' would be of another network .* as landscape 'plane'"):
        driver.run(read_job(file), workers=1)
    assert not (open_run(tmp_path / "run")["other"].status == 1).any()


@pytest.mark.slow
def test_a_point_that_kills_whoever_reproduces_it_costs_its_own_tile_alone(write_job, tmp_path, local_ray):
    """The point nearest to the origin that is off it: no worker survives it, and the rest is computed all the same."""
    file = write_job("""
        def trouble(x, y):
            if x == -0.25 and y == 0.5:
                os.kill(os.getpid(), signal.SIGKILL)
    """)
    found = driver.run(read_job(file), workers=2)["plane"]
    assert (found.status == 3).sum() == 6
    assert (found.status == 1).sum() == 63 - 6
    assert found.status[1, 3] == 3
    assert np.isnan(found.origin_loss)
