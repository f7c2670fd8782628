"""Faults caused for real on a cluster of several nodes: the result is the undisturbed one, to the bit."""

from __future__ import annotations

import textwrap

import pytest
from faults import assert_undisturbed, disturbed

import cluster
import landscape
from landscape.surface.surface import OK


@pytest.mark.faults  # a killed worker is in test_driver
def test_a_node_is_lost_and_another_one_comes(make_job, ray_folder):
    job = make_job(
        """
        def trouble(x, y):
            held(40, "noticed")
        """,
        tile=[1],
    )
    progress = disturbed(
        job,
        """
        when(10, lambda: (kill_node(extra[0]), nodes.add_node(num_cpus=1)))
        cluster.run(job, address=nodes.address)
        """,
        ray_folder,
        cpus=1,
    )
    assert_undisturbed(job)
    assert "is lost" in str(progress["stderr"])  # its tiles were tried again, or a backup had them already
    assert progress["state"] == "complete"


@pytest.mark.slow  # a cluster of several nodes
def test_all_nodes_are_lost_and_one_comes_back(make_job, ray_folder):
    job = make_job(
        """
        def trouble(x, y):
            held(40, "dark")
        """,
        tile=[1],
    )
    disturbed(
        job,
        """
        def blackout():
            for node in extra:
                kill_node(node)
            (HERE / "dark").touch()
            time.sleep(3)
            nodes.add_node(num_cpus=1)
        when(10, blackout)
        cluster.run(job, address=nodes.address)
        """,
        ray_folder,
    )
    assert_undisturbed(job)


@pytest.mark.slow  # a cluster of several nodes
def test_workers_join_as_nodes_do_without_being_asked(make_job, ray_folder):
    job = make_job(
        """
        def trouble(x, y):
            held(15, "nothing", 0.2)
            company(4, after=15)
        """,
        tile=[1],
    )
    progress = disturbed(
        job,
        """
        when(1, lambda: nodes.add_node(num_cpus=2))
        cluster.run(job, address=nodes.address)
        """,
        ray_folder,
        nodes=1,
    )
    assert_undisturbed(job)
    assert progress["workers"] == 4


@pytest.mark.slow  # a cluster of several nodes
def test_a_draining_node_ends_its_tiles_and_gets_no_more(make_job, ray_folder):
    job = make_job(
        """
        def trouble(x, y):
            held(40, "drained")
            held(50, "left")
        """,
        tile=[1],
    )
    progress = disturbed(
        job,
        """
        import cluster.runtime.session
        real = cluster.runtime.session.draining_nodes
        drained = []
        import cluster.driver.pool
        def draining():
            if drained and committed() < 63:
                (HERE / "drained").touch()
                return {extra[0].node_id}
            return real()
        cluster.driver.pool.draining_nodes = draining
        when(10, lambda: drained.append(1))
        cluster.run(job, workers=3, address=nodes.address)
        """,
        ray_folder,
    )
    assert_undisturbed(job)
    assert progress["retries"] == 0  # nothing was lost: what was in flight there was finished
    assert "leaves with its node" in str(progress["stderr"])


@pytest.mark.faults  # in `make test` with simulated workers: tests/scale
def test_a_straggler_is_overtaken_by_a_backup(make_job, local_ray, caplog):
    job = make_job(
        """
        def trouble(x, y):
            if x > 0.6 and once("slow"):
                time.sleep(3600)
        """,
        tile=[1],
    )
    found = cluster.run(job, workers=2)["plane"]  # which would wait for the slow one, or take it for hung
    assert_undisturbed(job)
    assert found.attributes["progress"]["retries"] == 0
    assert "is lost" not in caplog.text


@pytest.mark.faults  # in `make test` with simulated workers: tests/scale
def test_a_worker_that_answers_nan_where_others_do_not_is_dismissed(make_job, local_ray, caplog):
    job = make_job(
        """
        def trouble(x, y):
            company(3, after=20)  # whoever is alone is believed, and on a busy machine the others come late
        """,
        tile=[1],
    )
    file = job.folder / "my_problem.py"
    sick = textwrap.dedent("""
        mine = f'sick-{os.getpid()}'
        if points_seen() > 20 and x > 0.6 and once('first'):
            note(mine, '')
        if (HERE / mine).exists():
            loss = loss * float('nan')
    """)
    sick = textwrap.indent(sick, "    ")
    file.write_text(file.read_text().replace('    return {"loss"', sick + '    return {"loss"'))
    cluster.run(job, workers=3)
    for left in job.folder.glob("sick-*"):
        left.unlink()
    assert_undisturbed(job)
    assert "two others agree" in caplog.text


@pytest.mark.slow
def test_answers_of_the_wrong_shape_cost_the_worker_not_the_tile(make_job, local_ray, caplog):
    job = make_job(tile=[1])
    file = job.folder / "my_problem.py"
    file.write_text(
        file.read_text()
        + textwrap.dedent("""
        import landscape.evaluation.evaluator as evaluation
        _arrays = evaluation.Evaluator.evaluate

        def lie(self, points, **options):
            values = _arrays(self, points, **options)
            if points.shape[1] and abs(points[0, 0] - 0.75) < 1e-9 and once("lied"):
                return evaluation.Values({k: v[:0] for k, v in values.mean.items()}, values.stderr, values.seconds)
            return values

        if sys.argv[0].endswith("default_worker.py"):
            evaluation.Evaluator.evaluate = lie
        """)
    )
    cluster.run(job, workers=2)
    assert (job.folder / "lied").exists()
    assert_undisturbed(job)
    assert "wrong shape" in caplog.text


def test_out_of_memory_halves_the_batch_of_the_whole_job_before_anything_is_kept(make_job):
    job = make_job(batch_size=20)
    file = job.folder / "my_problem.py"
    file.write_text(
        file.read_text().replace(
            "    loss = (", "    if len(batch) > 6: raise torch.OutOfMemoryError('too much')\n    loss = ("
        )
    )
    found = landscape.run(job)["plane"]
    assert found.attributes["plan"]["batch_size"] == 5
    assert (found.status == OK).all()


def test_out_of_memory_at_one_tile_is_recorded_and_does_not_stop_the_job(make_job):
    job = make_job(batch_size=20)
    file = job.folder / "my_problem.py"
    wild = "    if len(batch) > 10 and x == 1.0 and y == 3.0: raise torch.OutOfMemoryError('for now')\n    loss = ("
    file.write_text(file.read_text().replace("    loss = (", wild))
    found = landscape.run(job)["plane"]
    assert (found.status == OK).all()
    assert found.attributes["plan"]["batch_size"] == 20
    assert list(found.attributes["progress"]["reduced_batches"].values()) == [10]
