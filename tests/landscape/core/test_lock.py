"""Whether a driver lives is asked of the lock it holds; what lies in place of the lock's files is not followed."""

from __future__ import annotations

import json
import os
import resource
import socket

import pytest

from landscape.core.errors import LandscapeError
from landscape.core.folders import open_folder
from landscape.core.lock import (
    driver_alive,
    living_driver,
    living_measurement,
    measuring_lock,
    run_lock,
    training_alive,
    training_lock,
)


def card(run, pid: object, host: object) -> None:
    run.mkdir(exist_ok=True)
    (run / "driver.json").write_text(json.dumps({"pid": pid, "host": host, "started": 0}))


def test_a_reused_process_id_and_another_hosts_crash_are_no_driver(tmp_path):
    run = tmp_path / "run"
    with run_lock(str(run)):
        assert driver_alive(str(run))
    for host in (socket.gethostname(), "another-host"):
        card(run, os.getpid(), host)
        assert not driver_alive(str(run)), "nobody holds the lock"
    (run / "driver.json").unlink()
    with run_lock(str(run)):
        (run / "driver.json").unlink()
        assert driver_alive(str(run)), "the lock says so, not the card"


def test_a_lock_that_a_full_disk_takes_not_names_its_file(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*training.json'"), training_lock(str(tmp_path / "run")):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not training_alive(str(tmp_path / "run"))


def test_a_measurement_is_told_to_others_and_is_alone(tmp_path):
    run = str(tmp_path / "run")
    assert (living_measurement(run), living_driver(run)) == ("", "")
    with measuring_lock(run), run_lock(run):
        assert living_measurement(run) == living_driver(run) == f"process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(LandscapeError, match=f"measured by process {os.getpid()} on"), measuring_lock(run):
            pass
    assert (living_measurement(run), living_driver(run)) == ("", "")


def test_a_training_and_a_driver_of_landscapes_write_one_run_and_two_trainings_do_not(tmp_path):
    run = str(tmp_path / "run")
    assert not training_alive(run)
    with training_lock(run) as told, run_lock(run):
        assert (driver_alive(run), training_alive(run)) == (True, True)
        assert json.loads(told)["pid"] == os.getpid()
        assert (tmp_path / "run" / "training.json").read_bytes() == told
        with pytest.raises(LandscapeError, match=f"written by process {os.getpid()} on"), training_lock(run):
            pass
    assert (driver_alive(run), training_alive(run)) == (False, False)


def test_asking_needs_no_right_to_write_and_does_not_disturb(tmp_path):
    run = tmp_path / "run"
    with run_lock(str(run)):
        (run / "driver.lock").chmod(0o444)
        assert driver_alive(str(run))
    descriptor = os.open(run / "driver.lock", os.O_RDONLY)
    assert not driver_alive(str(run))
    with run_lock(str(run)):
        pass
    os.close(descriptor)


@pytest.mark.long
@pytest.mark.parametrize("text", ["", "[1]", "{", '{"pid": "1", "host": 3}', '{"pid": -1, "host": "x"}', "[" * 100_000])
def test_a_card_that_says_nothing_is_nobody(tmp_path, text):
    run = tmp_path / "run"
    run.mkdir()
    (run / "driver.json").write_text(text)
    assert not driver_alive(str(run))
    with run_lock(str(run)):
        (run / "driver.json").write_text(text)
        refused = pytest.raises(
            LandscapeError, match=r"is being written by (another driver|process -1 on x); wait for it"
        )
        with refused, run_lock(str(run)):
            pass


def test_where_no_lock_can_be_asked_the_card_tells(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "driver.lock").symlink_to("driver.lock")  # does not open
    for pid, host, alive in (
        (os.getpid(), socket.gethostname(), True), (2**22 + 1, socket.gethostname(), False), (10**30, "", False),
        (2**22 + 1, "another-host", True),
    ):  # fmt: skip
        card(run, pid, host or socket.gethostname())
        assert driver_alive(str(run)) == alive


def test_links_in_place_of_the_locks_files_are_not_written_through(tmp_path):
    run, mine = tmp_path / "run", tmp_path / "mine"
    run.mkdir()
    mine.write_text("mine")
    (run / "driver.json").symlink_to(mine)
    with run_lock(str(run)):
        assert not (run / "driver.json").is_symlink()
    (run / "driver.lock").unlink()
    (run / "driver.lock").symlink_to(mine)
    with (
        pytest.raises(LandscapeError, match=r"driver.lock' is a link, which is not followed; remove it"),
        run_lock(str(run)),
    ):
        pass
    assert mine.read_text() == "mine"


def test_a_whole_file_is_not_written_through_a_link_either(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "run.json").symlink_to(mine)
    open_folder(tmp_path).write("run.json", b"{}")
    assert mine.read_text() == "mine"
    assert (tmp_path / "run.json").read_bytes() == b"{}"
