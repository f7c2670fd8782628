"""The schedule as a state machine: no task lost, none in two places, an end always."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.schedule import ATTEMPTS, KILLS, Schedule

WORKERS = ("a", "b", "c")


class Machine(RuleBasedStateMachine):
    """Workers that take, finish, fail and die at random, against a plain count of what happened to each task."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = list(range(7))
        self.schedule: Schedule[int] = Schedule(self.tasks)
        self.flying: dict[str, list[int]] = {worker: [] for worker in WORKERS}
        self.exceptions = dict.fromkeys(self.tasks, 0)
        self.kills = dict.fromkeys(self.tasks, 0)

    @rule(worker=st.sampled_from(WORKERS))
    def take(self, worker: str) -> None:
        task = self.schedule.next_for(worker)
        if task is None:
            return
        assert len(self.flying[worker]) < self.schedule.in_flight_limit
        self.flying[worker].append(task)

    @precondition(lambda self: any(self.flying.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w in WORKERS if self.flying[w]]))
        self.schedule.completed(worker, self.flying[worker].pop(0))

    @precondition(lambda self: any(self.flying.values()))
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w in WORKERS if self.flying[w]]))
        task = self.flying[worker].pop(0)
        self.exceptions[task] += 1
        verdict = self.schedule.failed(worker, task)
        assert (verdict == "quarantine") == (self.exceptions[task] >= ATTEMPTS)

    @rule(worker=st.sampled_from(WORKERS))
    def die(self, worker: str) -> None:
        lost, self.flying[worker] = self.flying[worker], []
        if lost:
            self.kills[lost[0]] += 1
        verdicts = dict(self.schedule.lost(worker))
        assert set(verdicts) == set(lost)
        for task in lost:
            assert (verdicts[task] == "quarantine") == (self.kills[task] >= KILLS and task == lost[0])

    @invariant()
    def every_task_is_in_one_place(self) -> None:
        flying = [task for tasks in self.schedule.in_flight.values() for task in tasks]
        places = [*self.schedule.queue, *flying, *self.schedule.done, *self.schedule.quarantined]
        assert sorted(places) == self.tasks
        assert sorted(flying) == sorted(task for tasks in self.flying.values() for task in tasks)

    @invariant()
    def it_ends_when_nothing_is_queued_or_flying(self) -> None:
        settled = len(self.schedule.done) + len(self.schedule.quarantined)
        assert self.schedule.finished == (settled == len(self.tasks))

    def teardown(self) -> None:
        """From wherever it is, healthy workers bring it to an end."""
        for _ in range(100):
            for worker in WORKERS:
                while (task := self.schedule.next_for(worker)) is not None:
                    self.flying[worker].append(task)
                for task in self.flying[worker]:
                    self.schedule.completed(worker, task)
                self.flying[worker] = []
        assert self.schedule.finished


TestSchedule = Machine.TestCase
TestSchedule.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_tasks_go_out_in_their_order_and_lost_ones_first():
    schedule = Schedule("abcdef")
    assert [schedule.next_for("w"), schedule.next_for("w"), schedule.next_for("w")] == ["a", "b", None]
    assert schedule.next_for("v") == "c"
    schedule.lost("w")
    assert [schedule.next_for("x")] == ["a"]


def test_only_the_running_task_is_charged_with_a_death():
    schedule = Schedule("ab")
    for worker in "uvw":
        schedule.next_for(worker)
        schedule.next_for(worker)
        schedule.lost(worker)
    assert schedule.quarantined == {"a"}
    assert schedule.next_for("x") == "b"
    assert schedule.attempts("b") == 0


def test_a_task_that_killed_runs_alone():
    schedule = Schedule("ab")
    schedule.next_for("u")
    schedule.lost("u")
    schedule.queue.rotate(1)  # b first
    assert schedule.next_for("v") == "b"
    assert schedule.next_for("v") is None  # a waits for a worker with nothing else in flight
    assert schedule.next_for("w") == "a"
