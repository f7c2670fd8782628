"""`landscape bench` as it is given, and what it measures of Ray and of the start-up. No test asserts a speed."""

from __future__ import annotations

import json
import time

import pytest
from real_commands import command

from cluster.commands.run import (
    TooFewTiles,
    Watch,
    bench_report,
    first_tile,
    over_serial,
    startup,
    stretch,
    write_job,
)
from landscape.core.errors import LandscapeError
from landscape.core.progress import Progress
from landscape.job.reading import read_job
from landscape.store.landscape import LandscapeStore

ROW = {"engine": "eager", "batch_size": 16, "chosen": True, "seconds_per_point": 0.05}


@pytest.mark.faults
def test_quick_measures_a_job_without_ray_and_writes_nothing(tmp_path):
    job = write_job(tmp_path, "tiny", 5)
    words = ("--quick", "--rounds", 1, "--search", 0.5, "--precision", "float32", "--json", "--device", "cpu")
    done = command("bench", job, *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    [precision] = found["precisions"]
    assert precision["engines"][0]["engine"] == "eager"
    assert {"ray", "startup"}.isdisjoint(found)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["tiny.yaml"]
    assert "of bare" in bench_report(found)


@pytest.mark.long
@pytest.mark.parametrize(
    "words, told",
    [
        (["--quick", "--precision", "half"], "precision: must be one of"),
        (["--quick", "--engine", "warp"], "engine: must be"),
        (["--quick", "--rounds", "0"], "rounds: must be at least 1"),
        (["--precision", "bfloat16"], "precision: Ray is measured in the job's own, float32"),
    ],
)
def test_bad_words_are_refused_in_one_line_before_torch_is_imported(words, told, tmp_path):
    done = command("bench", write_job(tmp_path, "tiny", 5), *words, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 2
    imports = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    [line] = [line for line in done.stderr.splitlines() if line not in imports]
    assert line.startswith(told)
    modules = {each.rpartition("|")[2].strip() for each in imports}
    assert "landscape.bench" in modules
    assert "torch" not in modules


# -- rates -----------------------------------------------------------------------------------------------------


def _progress(points: int, workers: int) -> Progress:
    return Progress("a", 0, 0, points, 100, 0.0, 0.0, workers=workers)


def test_a_rate_leaves_out_the_start_and_the_tail(monkeypatch):
    seconds = iter([10.0, 12.0, 14.0, 99.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    watch = Watch(2)
    for points, workers in ((10, 1), (20, 2), (30, 2), (40, 2), (40, 2), (50, 2)):
        watch(_progress(points, workers))
    assert watch.seconds_per_point() == (14 - 10) / 20


def test_too_few_tiles_for_a_rate_are_refused():
    watch = Watch(1)
    watch(_progress(10, 1))
    with pytest.raises(LandscapeError, match="too few tiles"):
        watch.seconds_per_point()


@pytest.mark.parametrize("seconds, size, tile", [(0.1, (12, 16), (12, 1)), (5.0, (3, 6), (1, 1))])
def test_a_stretch_has_tiles_of_about_a_second(seconds, size, tile, tmp_path):
    job = read_job(write_job(tmp_path, "tiny", 40))
    part, points = stretch(job, "eager", 16, seconds)
    assert part.landscapes[0].size == size
    assert part.tile == tile
    assert points == tile[0]
    assert part.landscapes[0].directions == job.landscapes[0].directions


@pytest.mark.parametrize("name, size", [("tiny", (24, 64)), ("line", (1536,))])
def test_a_longer_stretch_has_more_tiles_of_the_same_size(name, size, tmp_path):
    job = read_job(write_job(tmp_path, "tiny", 40))
    if name == "line":
        landscape = job.landscapes[0]
        line = landscape.model_copy(update={"directions": landscape.directions[:1], "size": (40,)})
        job = job.replace(landscapes=(line,))
    part, points = stretch(job, "eager", 16, 0.05, 64)
    assert (part.landscapes[0].size, points) == (size, 24)


@pytest.mark.slow
def test_ray_is_held_against_serial_on_the_same_tiles_and_more_of_them_where_runs_are_over_too_soon(
    tmp_path, local_ray, monkeypatch
):
    job = read_job(write_job(tmp_path, "tiny", 40), device="cpu")
    points: list[int] = []
    rate = Watch.seconds_per_point

    def too_few_at_first(watch):
        points.append(watch.points)
        if len(points) == 1:
            raise TooFewTiles("bench: too few tiles for a rate")
        return rate(watch)

    monkeypatch.setattr(Watch, "seconds_per_point", too_few_at_first)
    found = over_serial(job, {"precisions": [{"precision": "float32", "engines": [ROW]}]}, rounds=1)
    assert points[1] == 2 * points[0] == 2 * 24 * 16
    [times] = found["rounds"]
    assert found["one_over_serial"]["median"] == pytest.approx(times["serial"] / times["one"])
    assert found["two_over_one"]["median"] == pytest.approx(times["one"] / times["two"])
    assert found["tile_points"] == 24


# -- start-up --------------------------------------------------------------------------------------------------


@pytest.mark.faults
def test_the_first_tile_is_seen_before_the_end(tmp_path):
    job = write_job(tmp_path, "small", 8)
    found = first_tile(["run", str(job), "--serial"], tmp_path / "small")
    assert 0 < found["first_tile"] <= found["end"]
    assert not LandscapeStore.open(str(tmp_path / "small"), "bench").examine().missing


@pytest.mark.long
def test_a_command_that_fails_is_told(tmp_path):
    with pytest.raises(LandscapeError, match="code 3"):
        first_tile(["run", str(tmp_path / "absent.yaml")], tmp_path / "run")


@pytest.mark.slow
def test_the_whole_start_up(monkeypatch, ray_folder):
    monkeypatch.setenv("RAY_TMPDIR", str(ray_folder))
    found = startup(finished_size=16)
    assert found["resume"]["points"] == 256
    assert 0 < found["ray"]["first_tile"] <= found["ray"]["end"]
