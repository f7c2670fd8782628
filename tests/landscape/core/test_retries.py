"""When a task is tried again, and which errors end the job at once."""

from __future__ import annotations

import pytest

from cluster.driver.schedule import Policy
from landscape.core.errors import JobError, NotRetried
from landscape.core.progress import RetryRule
from landscape.evaluation.feed import SamplesChanged
from landscape.problem.supervised import OtherObservables


def test_a_task_is_given_up_after_three_exceptions_or_three_deaths():
    rule = RetryRule()
    assert [rule.after_exception(count) for count in (1, 2, 3, 4)] == ["retry", "retry", "quarantine", "quarantine"]
    assert [rule.after_death(count) for count in (0, 1, 2, 3)] == ["retry", "retry", "retry", "quarantine"]


def test_a_cluster_follows_the_rule_of_a_serial_run_unless_its_policy_says_otherwise():
    assert Policy().retry_rule == RetryRule()
    assert Policy(attempts=1, kills=7).retry_rule == RetryRule(attempts=1, kills=7)


@pytest.mark.parametrize("error", [SamplesChanged(), OtherObservables("a")])
def test_what_every_attempt_would_meet_is_not_retried(error):
    assert isinstance(error, NotRetried)
    assert isinstance(error, JobError)
