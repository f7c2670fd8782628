"""The side store: what a kill leaves is whole, a torn end is dropped, and nothing is mixed with another landscape."""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import replace

import numpy as np
import pytest

from cluster.serving.landscapes import PointFile, PointFiles, lock_point_folder
from cluster.serving.requests import LandscapeInfo, ServedAxis
from landscape.core.errors import JobError

AXES = tuple(ServedAxis(name, np.linspace(-1, 1, 5)) for name in ("alpha", "beta"))
PLANE = LandscapeInfo(AXES, ("loss",), 40, "float32", "eager", "a" * 64)


def point(number):
    return struct.pack("<2d", number, -number)


def row(number):
    return struct.pack("<3d", number, number + 1, number + 2)


def opened(folder, info=PLANE):
    return PointFile(folder, "plane", info)


def filled(folder, count):
    kept = opened(folder)
    kept.commit([(point(number), row(number)) for number in range(count)])
    kept.close()
    return kept.path


def test_what_was_committed_is_there_again(tmp_path):
    kept = opened(tmp_path)
    assert kept.get(point(1)) is None
    kept.commit([(point(1), row(1)), (point(2), row(2)), (point(1), row(1))])
    kept.commit([(point(2), row(2)), (point(3), row(3))])
    assert kept.get(point(2)) == row(2)
    kept.close()
    size = kept.path.stat().st_size
    again = opened(tmp_path)
    assert [again.get(point(number)) for number in (1, 2, 3, 4)] == [row(1), row(2), row(3), None]
    assert (len(again), again.path.stat().st_size) == (3, size)
    again.close()


def test_whatever_a_kill_leaves_of_a_row_the_others_are_kept_and_it_is_written_again(tmp_path):
    whole = filled(tmp_path / "whole", 3).read_bytes()
    two = len(filled(tmp_path / "two", 2).read_bytes())
    for length in range(two, len(whole)):
        folder = tmp_path / str(length)
        path = filled(folder, 1)
        path.write_bytes(whole[:length])
        kept = opened(folder)
        assert (len(kept), path.stat().st_size) == (2, two)
        kept.commit([(point(9), row(9))])
        kept.close()
        again = opened(folder)
        assert [again.get(point(number)) for number in (0, 1, 2, 9)] == [row(0), row(1), None, row(9)]
        again.close()


def test_whatever_a_kill_leaves_of_the_header_it_is_begun_anew(tmp_path):
    header = filled(tmp_path / "none", 0).read_bytes()
    for length in range(0, len(header), 11):
        folder = tmp_path / str(length)
        filled(folder, 0).write_bytes(header[:length])
        kept = opened(folder)
        kept.commit([(point(1), row(1))])
        kept.close()
        assert len(opened(folder)) == 1


def test_a_row_with_a_wrong_bit_is_computed_again_and_the_rest_is_kept(tmp_path):
    path = filled(tmp_path, 4)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    kept = opened(tmp_path)
    assert [kept.get(point(number)) is None for number in range(4)].count(True) == 1
    assert kept.get(point(3)) == row(3)
    kept.close()


def test_a_row_that_is_tampered_with_while_the_service_runs_is_computed_again(tmp_path):
    kept = opened(tmp_path)
    kept.commit([(point(number), row(number)) for number in range(2)])
    content = bytearray(kept.path.read_bytes())
    content[-10] ^= 1
    kept.path.write_bytes(content)
    assert (kept.get(point(0)), kept.get(point(1))) == (row(0), None)
    kept.commit([(point(1), row(1))])
    assert kept.get(point(1)) == row(1)
    kept.close()


def test_versions_that_are_the_same_landscape_write_into_one_file_one_after_the_other(tmp_path):
    files = PointFiles()
    one, two = (files.points_of(tmp_path, "plane", PLANE) for _ in range(2))
    one.commit([(point(1), row(1))])
    two.commit([(point(2), row(2))])
    assert [kept.get(point(number)) for kept in (one, two) for number in (1, 2)] == [row(1), row(2)] * 2
    files.close()


def test_values_of_another_identity_are_in_another_file(tmp_path):
    filled(tmp_path, 2)
    other = opened(tmp_path, replace(PLANE, identity="b" * 64))
    assert len(other) == 0
    assert len(list(tmp_path.iterdir())) == 2
    other.close()


def test_a_file_that_is_something_else_is_refused(tmp_path):
    path = filled(tmp_path, 0)
    path.write_bytes(b"x" * 500)
    with pytest.raises(JobError, match="is damaged; move it away"):
        opened(tmp_path)


def test_a_full_disk_loses_nothing_that_was_kept(tmp_path, monkeypatch):
    path = filled(tmp_path, 2)
    kept, size, write = opened(tmp_path), path.stat().st_size, os.pwrite

    def half(file, content, place):
        return write(file, content[: len(content) // 2], place)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        kept.commit([(point(5), row(5))])
    monkeypatch.undo()
    assert (path.stat().st_size, kept.get(point(5))) == (size, None)
    kept.commit([(point(5), row(5))])
    assert kept.get(point(5)) == row(5)
    kept.close()


def test_one_service_keeps_values_of_a_run_at_a_time(tmp_path):
    with lock_point_folder(str(tmp_path)) as folder:
        assert folder == tmp_path / "served"
        with pytest.raises(JobError, match="another service keeps values"):
            lock_point_folder(str(tmp_path)).__enter__()
    with lock_point_folder(str(tmp_path)), pytest.raises(JobError, match="is a URL"):
        lock_point_folder("s3://bucket/run").__enter__()


def test_a_run_on_a_disk_that_is_mounted_read_only_keeps_nothing(tmp_path, monkeypatch):
    def refused(folder):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("cluster.serving.landscapes.make_folder", refused)
    with pytest.raises(JobError, match=r"keep: run .* cannot be written: Read-only file system; leave out --keep"):
        lock_point_folder(str(tmp_path)).__enter__()
