"""Notes of the services that run: who finds them, who may read them, and what becomes of those that are left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from landscape.core.http import ServedRun, Service, announce, services, services_of


@pytest.fixture(autouse=True)
def _own_notes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def make_service(run, pid=None, port=8800):
    served = ServedRun("lenet", 1, str(run), ("minimum",))
    return Service(f"http://127.0.0.1:{port}", "127.0.0.1:8801", "secret", pid or os.getpid(), (served,))


def test_a_service_is_found_by_its_run_while_it_is_there(tmp_path, monkeypatch):
    one, other = tmp_path / "one", tmp_path / "other"
    with announce(make_service(one)), announce(make_service(other, port=8900)):
        assert services_of(one) == [make_service(one)]
        monkeypatch.chdir(tmp_path)
        assert services_of("other") == [make_service(other, port=8900)]
        assert not services_of(tmp_path)
        one.mkdir()
        (tmp_path / "link").symlink_to(one)
        assert services_of("link") == [make_service(one)]
    assert services() == []


def test_a_note_is_for_its_owner_alone(tmp_path):
    with announce(make_service(tmp_path)):
        (note,) = (tmp_path / "state" / "landscape" / "services").iterdir()
        assert (note.stat().st_mode & 0o777, note.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert "secret" not in repr(make_service(tmp_path))


def test_notes_of_the_dead_are_removed_and_those_of_other_machines_are_not(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = tmp_path / "state" / "landscape" / "services"
    with announce(make_service(tmp_path, ended.pid)):
        assert services() == []
        assert not list(folder.iterdir())
        (folder / "1-1.json").write_text('{"url": 1}')
        assert services() == []
        nowhere = asdict(make_service(tmp_path))
        nowhere["runs"][0]["run"] = None
        (folder / "1-1.json").write_text(json.dumps(nowhere))
        assert services_of(tmp_path) == services() == []
    there = replace(make_service(tmp_path, ended.pid), host="another-machine")
    with announce(there):
        assert services() == []
        assert len(list(folder.glob(f"{ended.pid}-*.json"))) == 1


def test_a_service_without_a_home_runs_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError()))
    with announce(make_service(tmp_path)):
        assert services() == []
