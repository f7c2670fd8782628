"""Kept choices: where they lie, what comes back, and that nothing in the folder can end or mislead a job."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_search import Machine, by_batch

from landscape.core.plan import Engine
from landscape.evaluation.tuning.choices import LARGEST_FILE, MOST_FILES, KeptChoices, TunedChoice, TuningRecord

KEY = "ab" * 32
CHOICE = TunedChoice(Engine.parse("eager+maxima"), 64, 0.01, "2026-11-21T10:00:00+00:00", True)
RECORD = TuningRecord(
    0.02, {4.0: CHOICE, 1.0: TunedChoice(Engine.parse("eager"), 256, 0.02, "2026-11-20T10:00:00+00:00")}
)


def write(kept, record):
    for budget, choice in record.choices.items():
        kept.write(KEY, record.seconds_per_point, budget, choice)


def test_what_is_written_is_read(tmp_path):
    kept = KeptChoices(tmp_path / "deep" / "engines")
    assert kept.read(KEY) is None
    write(kept, RECORD)
    assert kept.read(KEY) == RECORD
    assert kept.read("cd" * 32) is None
    assert stat.S_IMODE((tmp_path / "deep" / "engines").stat().st_mode) == 0o700
    assert {each.name for each in (tmp_path / "deep" / "engines").iterdir()} == {".lock", f"{KEY}.json"}


def test_a_choice_holds_for_its_budget_and_one_that_left_nothing_untried_for_every_budget():
    first = RECORD.choices[1.0]
    assert RECORD.choice_for(1.0) is first  # what was chosen stays so, though a better one is known by now
    assert RECORD.choice_for(4.0) is RECORD.choice_for(16.0) is CHOICE
    cut_short = TuningRecord(0.02, {1.0: first})
    assert cut_short.choice_for(4.0) is None
    later = TunedChoice(Engine.parse("vmap:8"), 64, 0.01, "2026-11-22T10:00:00+00:00", True)
    assert RECORD.with_choice(60.0, later).choice_for(16.0) == CHOICE  # the first of them, for ever
    assert RECORD.with_choice(4.0, later).choice_for(4.0) == CHOICE
    assert RECORD.with_choice(4.0, later, dropped=CHOICE).choice_for(4.0) == later


@pytest.mark.parametrize(
    "environment, place",
    [
        ({"LANDSCAPE_CACHE": "/a/b"}, "/a/b/engines"),
        ({"LANDSCAPE_CACHE": ""}, None),
        ({"XDG_CACHE_HOME": "/x"}, "/x/landscape/engines"),
        ({"XDG_CACHE_HOME": "relative"}, "{home}/.cache/landscape/engines"),
        ({}, "{home}/.cache/landscape/engines"),
    ],
)
def test_where_they_lie(environment, place):
    found = KeptChoices.of_user(environment).folder
    assert found == (place and Path(place.format(home=Path.home())))


def test_a_relative_folder_is_refused_with_a_line(caplog):
    write(KeptChoices.of_user({"LANDSCAPE_CACHE": "cache"}), RECORD)
    assert not Path("cache").exists()
    assert caplog.messages == [
        "LANDSCAPE_CACHE: must be an absolute folder, not 'cache'; no choice of an engine is kept"
    ]


def test_without_a_folder_nothing_is_kept():
    nowhere = KeptChoices.of_user({"LANDSCAPE_CACHE": ""})
    write(nowhere, RECORD)
    assert nowhere.read(KEY) is None


def _changed(**changes):
    choice = {**vars(CHOICE), "engine": str(CHOICE.engine), **changes}
    return json.dumps({"seconds_per_point": 1, "choices": {"4": choice}})


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "null", "\0\0", "{", "[" * 20_000, " " * (LARGEST_FILE + 1),
        '{"seconds_per_point": NaN, "choices": {}}', '{"seconds_per_point": true, "choices": {}}',
        '{"seconds_per_point": 1, "choices": {"soon": {}}}', '{"seconds_per_point": 1, "choices": {"4": []}}',
        _changed(engine="eager\x1b[31m"), _changed(engine=7), _changed(batch_size=0), _changed(batch_size=True),
        _changed(batch_size=1 << 50), _changed(since="\x1b[31mnow"), _changed(since="2026" * 20),
        _changed(complete="yes"), _changed(seconds_per_point=-1), _changed(more=1),
    ],
)  # fmt: skip
def test_what_is_no_record_is_passed_over_with_one_line(tmp_path, content, caplog):
    caplog.set_level(logging.INFO, "landscape")
    (tmp_path / f"{KEY}.json").write_text(content)
    kept = KeptChoices(tmp_path)
    assert kept.read(KEY) is None
    (line,) = caplog.messages
    assert line.startswith("engine: the kept choice ")
    assert line.endswith("is too large" if len(content) > LARGEST_FILE else "holds no record of a choice")
    write(kept, RECORD)
    assert kept.read(KEY) == RECORD


def test_two_that_search_at_once_end_with_the_same_choice(tmp_path):
    """One finds batches of 64 the fastest, the other batches of 1024; nobody writes before both have searched."""
    both = threading.Barrier(2, timeout=100)

    class Searcher(Machine):
        def keep(self, key, *choice):
            both.wait()
            return KeptChoices(tmp_path).write(KEY, *choice)

    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(lambda best: Searcher(by_batch(best)).search().plan.batch_size, (64, 1024))]
    (choice,) = KeptChoices(tmp_path).read(KEY).choices.values()
    assert found == [choice.batch_size] * 2


def test_what_is_kept_stays_and_what_was_dropped_goes(tmp_path):
    kept = KeptChoices(tmp_path)
    write(kept, RECORD)
    later = TunedChoice(Engine.parse("eager"), 8, 0.1, "2026-11-22T10:00:00+00:00")
    assert kept.write(KEY, 0.5, 4.0, later) == kept.read(KEY) == RECORD
    replaced = kept.write(KEY, 0.5, 4.0, later, dropped=CHOICE)
    assert replaced == kept.read(KEY)
    assert (replaced.choices[4.0], replaced.seconds_per_point) == (later, 0.02)


def test_a_place_that_cannot_be_read_or_written_is_passed_over(tmp_path, caplog):
    caplog.set_level(logging.INFO, "landscape")
    (tmp_path / "file").touch()
    kept = KeptChoices(tmp_path / "file" / "engines")
    write(kept, RECORD)
    assert kept.read(KEY) is None
    assert "the choice is not kept" in caplog.messages[0]
    os.mkfifo(tmp_path / f"{KEY}.json")
    assert KeptChoices(tmp_path).read(KEY) is None  # nor is anything waited for


def test_the_oldest_go_and_nothing_else(tmp_path):
    kept = KeptChoices(tmp_path)
    (tmp_path / "notes.txt").write_text("the user's")
    for k in range(MOST_FILES + 3):
        kept.write(f"{k:064x}", 0.1)
        os.utime(tmp_path / f"{k:064x}.json", (k, k))
    write(kept, RECORD)
    assert kept.read(KEY) == RECORD
    assert kept.read(f"{MOST_FILES + 2:064x}") is not None
    assert kept.read(f"{0:064x}") is None
    assert len(list(tmp_path.glob("*.json"))) == MOST_FILES
    assert (tmp_path / "notes.txt").exists()
