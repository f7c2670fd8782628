"""What the service refuses over HTTP, and how: a line of `refusals.jsonl` is a request and what it is answered.

`LANDSCAPE_GOLDEN=write pytest` writes the answers anew, to be read. A request has an address, which is below that of a
landscape where it begins with no slash; headers; a body in Latin-1, whose long parts are [text, times]; and the state
of the service where that is not ready. Its answer has a status, headers and a sentence.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "refusals.jsonl"
LANDSCAPE = "/v1/models/lenet/versions/latest/landscapes/plane"
CASES: list[dict[str, Any]] = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
ANSWER = ("status", "answered", "told")


def answer_to(asker: Any, case: dict[str, Any]) -> dict[str, Any]:
    method, address = case["request"].split(" ", 1)
    path = address if address.startswith("/") else f"{LANDSCAPE}/{address}"
    parts = case.get("body", "")
    body = "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts).encode("latin-1")
    asker.service.state = case.get("state", "ready")
    reply = asker.run(asker.send(method, path, body, case.get("headers", {})))
    headers = {name: value for name, value in reply.headers.items() if name not in ("content-length", "content-type")}
    told = reply.json.get("error", reply.json)
    if isinstance(told, str):
        told = re.sub("(must be JSON, and is not:).*", r"\1 …", told)  # whose rest each version of Python words its way
    return {"status": reply.status, **({"answered": headers} if headers else {}), "told": told}


@pytest.fixture(scope="module")
def answers(shared_asker: Any) -> dict[str, dict[str, Any]]:
    found = {case["name"]: answer_to(shared_asker, case) for case in CASES}
    if os.environ.get("LANDSCAPE_GOLDEN") == "write":
        asked = ({name: value for name, value in case.items() if name not in ANSWER} for case in CASES)
        rows = (json.dumps(case | found[case["name"]], ensure_ascii=False) for case in asked)
        GOLDEN.write_text("".join(f"{row}\n" for row in rows))
    return found


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_request_is_refused_as_it_always_was(answers, case):
    answer = answers[case["name"]]
    assert answer == {name: case[name] for name in ANSWER if name in case}
    assert isinstance(answer["told"], dict) or ("\n" not in answer["told"] and len(answer["told"]) < 400)
