"""The report of a landscape that was checked: the verdict and each check, below its figure."""

from __future__ import annotations

import dataclasses
from types import ModuleType

from one_run import render_report

from landscape.surface.record_entries import Check, Checks
from landscape.views.prepare.tables import landscape_rows
from landscape.views.report_sections import checks_section


def found(points: int) -> Checks:
    results = (
        Check(number="1", name="centre", state="holds", text="the centre is <your> model"),
        Check(number="6", name="resolution", state="reservation", text="off by 6 %", remedy="size: 81 gives 0.4 %"),
        Check(number="13", name="lowest", state="information", text="not the lowest"),
    )
    return Checks(version="0.1.0", points=points, evaluations=94, seconds=41.0, results=results)


def test_the_report_shows_what_the_checks_found(make: ModuleType):
    surface = make.line()
    assert checks_section(surface) == ""
    checked = make.with_record(surface, checks=found(int(surface.status.size)))
    section = checks_section(checked)
    verdict = "nothing speaks against it, with 1 reservation (2 checks, 94 evaluations, 41 s)"
    assert f"<summary>Can this picture be trusted? {verdict}</summary>" in section
    assert '<li class="holds"><b>✓</b>the centre is &lt;your&gt; model</li>' in section
    assert "<b>!</b>off by 6 %<br><i>size: 81 gives 0.4 %</i>" in section
    assert ("can it be trusted", verdict) in landscape_rows(checked)
    assert section in render_report([checked])


def test_checks_of_fewer_points_say_so(make: ModuleType):
    surface = make.line()
    checked = make.with_record(surface, checks=found(3))
    assert f"; of 3 of the {surface.status.size} points of now</summary>" in checks_section(checked)


def test_a_check_that_fails_is_the_verdict():
    checks = found(3)
    failed = dataclasses.replace(checks.results[0], state="fails")
    twice = dataclasses.replace(checks, results=(failed, failed, *checks.results[1:]), seconds=0.5)
    assert dataclasses.replace(checks, results=(failed,)).verdict.startswith("no: 1 check does not hold (1 check,")
    assert twice.verdict == "no: 2 checks do not hold, with 1 reservation (3 checks, 94 evaluations, 0.5 s)"
    assert dataclasses.replace(checks, results=()).verdict.startswith("not judged: ")


def test_values_that_hold_are_no_verdict_where_the_network_was_not_evaluated(make: ModuleType):
    checks = found(3)
    centre = dataclasses.replace(checks.results[0], state="unjudged", text="centre: no module 'mine'")
    unjudged = dataclasses.replace(checks, results=(centre, *checks.results[1:]), evaluations=0)
    assert unjudged.not_judged
    assert unjudged.verdict.startswith("not judged: its network could not be evaluated, with 1 reservation (1 check, 0")
    section = checks_section(make.with_record(make.line(), checks=unjudged))
    assert '<details class="checks" open><summary>Can this picture be trusted? not judged: ' in section
    fails = dataclasses.replace(checks.results[1], state="fails")
    assert not dataclasses.replace(unjudged, results=(centre, fails)).not_judged, "a fault is an answer"
