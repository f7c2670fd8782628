"""What the page's scripts are answered: the list, a run, figures, and a sentence where something is wrong."""

from __future__ import annotations

import pytest
import yaml
from opened_page import opened
from page_client import asking

from landscape.analysis.checks.table import keep_checks
from landscape.core.http import Guard
from landscape.page.server import make_app
from landscape.store.status import open_place
from landscape.surface.record_entries import Check, Checks


def test_the_list_names_the_run_by_an_identifier(client, net, finished):
    answer = client.json("/api/runs")
    assert answer["places"] == [{"name": str(finished), "path": str(finished), "problem": ""}]
    assert [(row["id"], row["name"]) for row in answer["runs"]] == [(net, "net")]


def test_a_run_tells_its_landscapes(client, net):
    answer = client.json(f"/api/run?run={net}")
    assert (answer["name"], answer["alive"], answer["unreadable"], answer["problems"]) == ("net", False, {}, [])
    assert ["network", "Linear"] in answer["info"]
    assert answer["info"][-1] == ["final loss", "0.3333"]
    assert yaml.safe_load(answer["landscapes"][0]["job"])["landscapes"][0]["name"] == "minimum"
    assert answer["history"] == {"unit": "step", "units": ["step", "epoch"], "columns": ["loss"]}
    minimum, path, line, cube = answer["landscapes"]
    assert (minimum["state"], minimum["done"], minimum["points"], minimum["missing"]) == ("complete", 20, 20, 0)
    assert [(axis["name"], axis["size"], axis["low"]) for axis in minimum["axes"]] == [
        ("alpha", 5, -1),
        ("beta", 4, -1),
    ]
    assert [axis["origin_inside"] for axis in minimum["axes"]] == [True, True]
    assert path["points"] == 25 + 2 * 3
    assert (path["path"]["unit"], path["path"]["numbers"]) == ("epoch", [1, 2, 3])
    assert (line["kinds"], len(cube["kinds"])) == (["curve", "barcode"], 3)
    assert ["resolution", "5 × 4 points"] in minimum["rows"]["landscape"]
    assert minimum["rows"]["topology"][-1] == ["to read it", "a minimum of this slice is not a minimum of the network"]


def test_what_checks_found_is_told_line_by_line(runs):
    found = Checks(
        points=20,
        evaluations=94,
        results=(
            Check(number="5", name="sampling", state="holds", text="little noise"),
            Check(number="6", name="resolution", state="fails", text="off by <40 %>", remedy="size: 81 gives 9 %"),
        ),
    )
    keep_checks(runs / "net", "minimum", found)
    with opened(runs) as (client, ids):
        minimum, path, *_ = client.json(f"/api/run?run={ids['net']}")["landscapes"]
    assert path["checks"] is None
    assert minimum["checks"]["opened"]
    assert minimum["checks"]["summary"] == f"Can this picture be trusted? {found.verdict}"
    marks = [(line["number"], line["mark"], line["said"], line["remedy"]) for line in minimum["checks"]["lines"]]
    assert marks == [("5", "✓", "holds", ""), ("6", "✗", "does not hold", "size: 81 gives 9 %")]


@pytest.mark.parametrize(
    "name, kind", [("minimum", "contour"), ("minimum", "surface"), ("line", ""), ("cube", "volume")]
)
def test_a_figure_is_plotlys_json(client, net, name, kind):
    answer = client.json(f"/api/figure?run={net}&landscape={name}&kind={kind}&log=1")
    assert answer["log"]
    assert answer["figure"]["data"]
    assert "template" not in answer["figure"]["layout"]
    assert answer["title"] == f"{name}: loss"
    assert answer["low"] <= answer["high"]
    assert answer["index"] is None


@pytest.mark.parametrize(
    "question, sentence",
    [
        ("", "run: must name a run"),
        ("run={net}", "landscape: must name a landscape"),
        ("run={net}&landscape=minimum&kind=pie", "kind: unknown 'pie'"),
        ("run={net}&landscape=line&kind=contour", "does not fit"),
        ("run={net}&landscape=minimum&observable=acuracy", "did you mean 'accuracy'"),
        ("run={net}&landscape=minimum&levels=0", "levels: must be a whole number from 1 to 500, not '0'"),
        ("run={net}&landscape=minimum&levels=1e3", "levels: must be"),
        ("run={net}&landscape=minimum&zmin=nan", "zmin: must be a finite number"),
        ("run={net}&landscape=minimum&zmax=1e999", "zmax: must be a finite number"),
        ("run={net}&landscape=minimum&zmin=2&zmax=1", "zm"),
        ("run={net}&landscape=minimum&log=2", "log: unknown '2'"),
        ("run={net}&landscape=minimum&log=0&log=1", "log: must be given once"),
        ("run={net}&landscape=minimum&scale=grey", "scale: unknown 'grey'"),
        ("run={net}&landscape=minimum&max=1", "max: must be"),
        ("run={net}&landscape=minimum&colour=red", "'colour' is no parameter here"),
        ("run=" + 9000 * "x", "run"),
        ("run={net}&landscape=" + 20_000 * "x", "address"),
    ],
)
def test_a_wrong_question_is_answered_by_a_sentence(client, net, question, sentence):
    reply = client.get(f"/api/figure?{question.format(net=net)}")
    assert reply.status in (400, 404)
    assert sentence in reply.error
    assert len(reply.error) < 500


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc", "..%2f..", ".", "net", "%00"])
def test_no_path_is_reached_by_an_address(client, net, path):
    assert client.get(f"/api/run?run={path}").status == 404
    assert client.get(f"/api/figure?run={net}&landscape={path}").status == 404
    assert client.get(f"/static/{path}").status == 404


def test_files_are_sent_with_a_tag_and_packed(client):
    reply = client.get("/static/plotly.js", accept_encoding="gzip")
    assert (reply.status, reply.headers["content-encoding"]) == (200, "gzip")
    assert len(reply.body) < 1_600_000
    again = client.get("/static/plotly.js", if_none_match=reply.headers["etag"])
    assert (again.status, again.body) == (304, b"")


def test_the_page_works_below_the_prefix_of_a_proxy(finished):
    guard = Guard("t")
    with asking(make_app([open_place(str(finished))], guard), f"{guard.cookie}=t", "/user/me/proxy/8765") as client:
        assert client.get("/").status == 200
        assert len(client.json("/api/runs")["runs"]) == 1
        reply = client.get("/?token=t", cookie="")
        assert (reply.status, reply.headers["location"]) == (303, "./")
