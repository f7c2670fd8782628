"""The schedule of tasks under any order of events, and the queue of those that no worker has had."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.driver.schedule import Policy, TaskQueue, TaskSchedule
from landscape.compute.tasks import Task, TaskList
from landscape.core.grid import coarse_to_fine_order

WORKERS = ("a", "b", "c", "d")


class Machine(RuleBasedStateMachine):
    """Workers that take, finish, answer oddly, fail, hang, leave and die at random; a clock that jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = list(range(9))
        self.policy = Policy(straggler_done=1, hang_seconds=50)
        self.schedule: TaskSchedule[int] = TaskSchedule(self.tasks, self.policy)
        self.flying: dict[str, list[int]] = {}
        self.now = 0.0
        self.commits = dict.fromkeys(self.tasks, 0)
        self.given_up: set[int] = set()
        self.exceptions = dict.fromkeys(self.tasks, 0)
        self.kills = dict.fromkeys(self.tasks, 0)
        self.disputed: set[int] = set()

    def busy(self) -> list[str]:
        return [worker for worker in self.flying if self.flying[worker]]

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 40.0, 1e6, -1e6]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(worker=st.sampled_from(WORKERS))
    def join(self, worker: str) -> None:
        self.flying.setdefault(worker, [])
        self.schedule.join(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def take(self, worker: str) -> None:
        self.flying.setdefault(worker, [])
        task = self.schedule.next_for(worker, self.now)
        if task is not None:
            self.taken(worker, task)

    @rule()
    def all_take(self) -> None:
        for worker, task in self.schedule.assign(self.now):
            self.taken(worker, task)
        if self.schedule.queue:
            for worker, tasks in self.flying.items():
                full = len(tasks) == self.policy.in_flight or (tasks and self.kills[tasks[0]])
                assert full or worker in self.schedule.leaving, f"{worker} waits while there is work"

    def taken(self, worker: str, task: int) -> None:
        assert worker not in self.schedule.leaving
        assert self.commits[task] == 0
        assert task not in self.given_up
        assert task not in self.flying[worker]
        assert len(self.flying[worker]) < self.policy.in_flight
        if self.kills[task] and task not in (t for w in self.flying for t in self.flying[w]):
            assert not self.flying[worker], "a task that killed runs alone"
        self.flying[worker].append(task)

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), odd=st.sampled_from(["", "", "", "nan", "other"]))
    def finish(self, data: st.DataObject, odd: str) -> None:
        worker = data.draw(st.sampled_from(self.busy()))
        task = self.flying[worker].pop(0)
        settled = self.commits[task] or task in self.given_up
        answer = self.schedule.judge_result(worker, task, self.now, fingerprint=odd, suspicious=bool(odd))
        assert (answer.verdict == "ignore") == bool(settled)
        if answer.verdict == "commit":
            self.commits[task] += 1
        if answer.verdict == "quarantine":
            self.given_up.add(task)
            self.disputed.add(task)
        for liar in answer.distrusted:
            assert liar != worker
            self.flying.pop(liar, None)
            self.note(self.schedule.take_back(liar, self.now, blame=False))

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.busy()))
        task = self.flying[worker].pop(0)
        self.exceptions[task] += 1
        fate = self.schedule.note_failure(worker, task, self.now)
        if fate == "quarantine":
            assert self.exceptions[task] >= self.policy.attempts
            self.given_up.add(task)

    @rule(worker=st.sampled_from(WORKERS))
    def die(self, worker: str) -> None:
        lost = self.flying.pop(worker, [])
        if lost:
            self.kills[lost[0]] += 1
        self.note(self.schedule.take_back(worker, self.now))

    @rule(worker=st.sampled_from(WORKERS))
    def lose_its_node(self, worker: str) -> None:
        """Nobody is charged; nor is a worker that leaves when it has nothing left."""
        self.flying.pop(worker, None)
        for _, fate in self.schedule.take_back(worker, self.now, blame=False):
            assert fate == "retry"

    @rule()
    def kill_the_hung(self) -> None:
        for worker in self.schedule.find_hung(self.now):
            assert self.flying[worker], "only a worker with a task can hang"
            self.die(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: str) -> None:
        if worker in self.flying:
            self.schedule.drain(worker)
            assert self.schedule.next_for(worker, self.now) is None

    def note(self, fates: list[tuple[int, str]]) -> None:
        for task, fate in fates:
            if fate == "quarantine":
                assert self.kills[task] >= self.policy.kills
                self.given_up.add(task)

    def pending(self) -> list[int]:
        """Every task that is neither done nor given up, once."""
        return [*self.schedule.queue, *self.schedule.returned, *self.schedule.holders]

    @invariant()
    def nothing_is_lost_and_nothing_committed_twice(self) -> None:
        assert all(count <= 1 for count in self.commits.values())
        committed = {task for task, count in self.commits.items() if count}
        assert len(committed) == self.schedule.done
        assert self.given_up == self.schedule.quarantined
        pending = self.pending()
        assert sorted([*pending, *committed, *self.given_up]) == self.tasks

    @invariant()
    def tasks_are_charged_with_what_they_did_and_no_more(self) -> None:
        for task in self.pending():
            assert self.schedule.attempts(task) == self.exceptions[task] + self.kills[task]
            assert self.exceptions[task] < self.policy.attempts or task in self.schedule.holders
            assert self.kills[task] < self.policy.kills or task in self.schedule.holders

    @invariant()
    def what_is_done_leaves_nothing_behind(self) -> None:
        settled = {task for task, count in self.commits.items() if count}
        assert not any(self.schedule.attempts(task) or self.schedule.is_disputed(task) for task in settled)
        assert not settled & (set(self.schedule.holders) | set(self.schedule.returned))

    @invariant()
    def it_knows_who_could_take_more(self) -> None:
        for share in range(self.policy.in_flight):
            workers = self.schedule.open_workers.with_load(share)
            expected = {
                worker
                for worker, tasks in self.flying.items()
                if len(tasks) == share and worker not in self.schedule.leaving
            }
            assert set(workers) == expected

    @invariant()
    def it_knows_what_is_in_flight(self) -> None:
        known = {worker: tasks for worker, tasks in self.schedule.in_flight.items() if tasks}
        assert known == {worker: tasks for worker, tasks in self.flying.items() if tasks}

    @invariant()
    def it_ends_when_all_is_settled(self) -> None:
        assert self.schedule.finished == (self.schedule.done + len(self.schedule.quarantined) == len(self.tasks))

    def teardown(self) -> None:
        """From wherever it is, healthy workers that agree bring it to an end."""
        for _ in range(60):
            for worker in ("new-1", "new-2", *self.flying):
                self.flying.setdefault(worker, [])
                while (task := self.schedule.next_for(worker, self.now)) is not None:
                    self.flying[worker].append(task)
            for worker in self.flying:
                while self.flying[worker]:
                    self.schedule.judge_result(worker, self.flying[worker].pop(0), self.now, fingerprint="good")
        assert self.schedule.finished


TestSchedule = pytest.mark.long(Machine.TestCase)


TestSchedule.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def take_all(schedule: TaskSchedule[str], worker: str, now: float = 0.0) -> list[str]:
    found = []
    while (task := schedule.next_for(worker, now)) is not None:
        found.append(task)
    return found


def test_tasks_go_out_in_their_order_two_at_a_time_and_lost_ones_first():
    schedule = TaskSchedule("abcdef")
    assert take_all(schedule, "w") == ["a", "b"]
    assert schedule.next_for("v", 0) == "c"
    assert schedule.take_back("w", 0) == [("a", "retry"), ("b", "retry")]
    assert take_all(schedule, "x") == ["a"]  # it killed, so nothing else goes with it at first
    assert take_all(schedule, "y") == ["b", "d"]


def test_tasks_that_are_added_later_go_out_after_those_that_wait():
    schedule: TaskSchedule[str] = TaskSchedule()
    assert schedule.finished
    schedule.enqueue("abc")
    assert take_all(schedule, "w") == ["a", "b"]
    schedule.enqueue("de")
    assert take_all(schedule, "v") == ["c", "d"]
    assert not schedule.finished


def test_all_get_a_first_task_before_any_gets_a_second():
    schedule = TaskSchedule("abcdefgh")
    for worker in "uvw":
        schedule.join(worker)
    assert list(schedule.assign(0)) == [("u", "a"), ("v", "b"), ("w", "c"), ("u", "d"), ("v", "e"), ("w", "f")]
    assert list(schedule.assign(0)) == []
    schedule.judge_result("v", "b", 1)
    schedule.join("x")
    assert list(schedule.assign(1)) == [("x", "g"), ("v", "h")]


def test_an_answer_of_a_worker_that_no_longer_has_the_task_does_not_count():
    schedule = TaskSchedule("ab", Policy(in_flight=1))
    schedule.next_for("u", 0)
    schedule.take_back("u", 0, blame=False)
    assert schedule.next_for("v", 0) == "a"
    assert schedule.judge_result("u", "a", 1).verdict == "ignore"
    assert schedule.note_failure("u", "a", 1) is None
    assert schedule.attempts("a") == 0
    assert schedule.judge_result("v", "a", 2).verdict == "commit"


def test_only_the_running_task_is_charged_with_a_death():
    schedule = TaskSchedule("ab")
    fates = []
    for worker in "uvw":
        schedule.next_for(worker, 0)
        schedule.next_for(worker, 0)
        fates += schedule.take_back(worker, 0)
    assert ("a", "quarantine") in fates
    assert schedule.next_for("x", 0) == "b"
    assert schedule.attempts("b") == 0


def test_an_exception_is_retried_by_another_worker_where_there_is_one():
    schedule = TaskSchedule("a")
    schedule.join("other")
    schedule.next_for("w", 0)
    assert schedule.note_failure("w", "a", 0) == "retry"
    assert schedule.next_for("w", 0) is None
    assert schedule.next_for("other", 0) == "a"
    assert schedule.note_failure("other", "a", 0) == "retry"
    assert schedule.next_for("w", 0) == "a"  # both have failed it: either may try
    assert schedule.note_failure("w", "a", 0) == "quarantine"


def run_for(schedule: TaskSchedule[str], worker: str, count: int, seconds: float, now: float) -> float:
    for _ in range(count):
        task = schedule.next_for(worker, now)
        assert task is not None
        now += seconds
        schedule.judge_result(worker, task, now)
    return now


def test_a_straggler_gets_one_backup_on_an_idle_worker_and_the_first_answer_wins():
    schedule = TaskSchedule([f"t{k}" for k in range(13)], Policy(in_flight=1))
    slow = schedule.next_for("slow", 0)
    now = run_for(schedule, "fast", 12, 1.0, 0.0)
    assert schedule.next_for("fast", now) == slow  # 12 s against a median of 1 s, and nothing else to do
    assert schedule.next_for("third", now) is None  # one backup, not two
    assert schedule.judge_result("fast", slow, now + 1).verdict == "commit"
    assert schedule.finished
    assert schedule.judge_result("slow", slow, now + 2).verdict == "ignore"


def test_what_is_queued_behind_a_straggler_is_backed_up_too():
    schedule = TaskSchedule([f"t{k}" for k in range(14)])
    running, queued = take_all(schedule, "slow")
    now = run_for(schedule, "fast", 12, 1.0, 0.0)
    assert take_all(schedule, "fast", now) == [running]
    schedule.judge_result("fast", running, now + 1)
    assert take_all(schedule, "fast", now + 1) == [queued]
    schedule.judge_result("fast", queued, now + 2)
    assert schedule.finished


def test_a_task_that_has_killed_a_worker_gets_no_backup():
    schedule = TaskSchedule([f"t{k}" for k in range(13)], Policy(in_flight=1))
    deadly = schedule.next_for("first", 0)
    schedule.take_back("first", 0)
    assert schedule.next_for("second", 0) == deadly
    now = run_for(schedule, "fast", 12, 1.0, 0.0)
    assert schedule.next_for("fast", now + 1000) is None, "its worker is silent, and may have died of it as well"


def test_no_backup_while_other_tasks_wait_or_the_median_is_unknown():
    schedule = TaskSchedule("abc", Policy(in_flight=1))
    schedule.next_for("slow", 0)
    schedule.next_for("w", 1000)
    assert schedule.next_for("v", 1000) == "c"
    assert schedule.next_for("u", 1000) is None


def test_a_worker_hangs_after_the_factor_and_the_minimum():
    schedule = TaskSchedule("abcd", Policy(in_flight=1, hang_factor=5, hang_seconds=20))
    now = run_for(schedule, "w", 2, 2.0, 0.0)
    schedule.next_for("w", now)
    assert schedule.find_hung(now + 19) == []
    assert schedule.find_hung(now + 21) == ["w"]


def test_tasks_are_compared_with_those_of_their_kind_alone():
    quick, slow = "abcdefghijkl", "XYZ"
    schedule = TaskSchedule(quick + slow, Policy(in_flight=1, hang_factor=5, hang_seconds=20), str.isupper)
    now = run_for(schedule, "w", 12, 1.0, 0.0)
    assert schedule.next_for("w", now) == "X"
    assert schedule.find_hung(now + 1000) == []
    schedule.judge_result("w", "X", now + 1000)
    assert schedule.next_for("w", now + 1000) == "Y"
    assert schedule.next_for("v", now + 1000) == "Z"
    assert schedule.next_for("u", now + 1100) is None  # three times the median of the quick ones is no measure
    assert schedule.find_hung(now + 1100) == []


def test_a_clock_that_leaps_or_goes_back_makes_no_worker_hang():
    schedule = TaskSchedule("abcd", Policy(in_flight=1, hang_factor=1, hang_seconds=60))
    now = run_for(schedule, "w", 1, 1.0, 0.0)
    schedule.next_for("w", now)
    assert schedule.find_hung(now + 1e9) == []  # the driver was suspended, the worker not to blame
    assert schedule.find_hung(now - 1e9) == []
    now -= 1e9
    for _ in range(7):
        now += 10
        found = schedule.find_hung(now)
    assert found == ["w"]  # a minute of ordinary time later it is


def test_suspicious_values_are_checked_by_another_worker_and_the_odd_one_out_is_distrusted():
    schedule = TaskSchedule("a", Policy(in_flight=1))
    for worker in "uvw":
        schedule.join(worker)
    schedule.next_for("u", 0)
    assert schedule.judge_result("u", "a", 1, fingerprint="nan", suspicious=True).verdict == "check"
    assert schedule.next_for("u", 1) is None  # not by itself
    schedule.next_for("v", 1)
    assert schedule.judge_result("v", "a", 2, fingerprint="fine").verdict == "check"
    schedule.next_for("w", 2)
    answer = schedule.judge_result("w", "a", 3, fingerprint="fine")
    assert answer.verdict == "commit"
    assert answer.distrusted == ("u",)


def test_a_worker_whose_suspicions_were_confirmed_twice_is_believed():
    schedule = TaskSchedule("abc", Policy(in_flight=1))
    schedule.join("v")
    for task in "ab":
        assert schedule.next_for("u", 0) == task
        assert schedule.judge_result("u", task, 0, fingerprint="nan", suspicious=True).verdict == "check"
        assert schedule.next_for("v", 0) == task
        assert schedule.judge_result("v", task, 0, fingerprint="nan", suspicious=True).verdict == "commit"
    schedule.next_for("u", 0)
    assert schedule.judge_result("u", "c", 0, fingerprint="nan", suspicious=True).verdict == "commit"


def test_a_lone_worker_is_believed():
    schedule = TaskSchedule("a")
    schedule.next_for("u", 0)
    assert schedule.judge_result("u", "a", 0, fingerprint="nan", suspicious=True).verdict == "commit"


def test_a_worker_left_alone_with_its_doubtful_answer_is_believed_in_the_end():
    schedule = TaskSchedule("a", Policy(in_flight=1))
    schedule.join("v")
    schedule.next_for("u", 0)
    assert schedule.judge_result("u", "a", 0, fingerprint="nan", suspicious=True).verdict == "check"
    schedule.take_back("v", 0)
    assert schedule.next_for("u", 0) == "a"
    assert schedule.judge_result("u", "a", 1, fingerprint="nan", suspicious=True).verdict == "commit"
    assert schedule.finished


def test_a_draining_worker_gets_nothing_more():
    schedule = TaskSchedule("abc")
    schedule.next_for("w", 0)
    schedule.drain("w")
    assert schedule.next_for("w", 0) is None
    assert not schedule.idle("w")
    schedule.judge_result("w", "a", 1)
    assert schedule.idle("w")


@given(st.lists(st.text(max_size=4), max_size=5), st.integers(0, 12))
def test_it_gives_what_its_parts_hold_in_their_order(parts, taken):
    expected = list("".join(parts))
    task_queue: TaskQueue[str] = TaskQueue(*parts)
    assert len(task_queue) == len(expected)
    found = [task_queue.popleft() for _ in range(min(taken, len(expected)))]
    assert found == expected[:taken]
    assert list(task_queue) == expected[taken:]
    assert len(task_queue) == len(expected[taken:])
    task_queue.clear()
    assert (len(task_queue), list(task_queue)) == (0, [])
    task_queue.extend("xy")
    assert (len(task_queue), list(task_queue), task_queue.popleft()) == (2, ["x", "y"], "x")


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_tasks_are_the_path_then_the_missing_tiles_coarse_to_fine(counts):
    missing = np.random.default_rng(sum(counts)).random(counts) < 0.7
    order = coarse_to_fine_order(missing)
    tasks = TaskList("plane", [(0, 8), (8, 11)], order, tuple(counts))
    tiles = [Task("plane", tile=tuple(map(int, np.unravel_index(number, counts)))) for number in order]
    assert list(tasks) == [Task("plane", path=(0, 8)), Task("plane", path=(8, 11)), *tiles]
    assert len(tasks) == 2 + missing.sum()
    assert tasks[-1] == list(tasks)[-1]
    assert tasks[1:3] == list(tasks)[1:3]
    with pytest.raises(IndexError):
        tasks[len(tasks)]


def test_a_million_tasks_cost_eight_megabytes():
    tasks = TaskList("plane", (), coarse_to_fine_order(np.ones((1000, 1000), np.bool_)), (1000, 1000))
    assert len(tasks) == 1_000_000
    assert 8_000_000 <= len(pickle.dumps(tasks)) < 8_001_000
    assert tasks[0] == Task("plane", tile=(0, 0))
    assert tasks[999_999] == Task("plane", tile=(999, 999))
