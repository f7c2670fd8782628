"""`landscape view` as users start it: address, token, a port that is taken, signals, places that are not there."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from landscape.core.errors import JobError
from landscape.page.server import Address, listen

pytestmark = pytest.mark.long
COMMAND = [sys.executable, "-W", "ignore", "-m", "cluster", "view", "--no-open"]


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the address that it has printed; it is killed where the block leaves it running."""
    command = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert command.stdout is not None
        yield command, command.stdout.readline().strip()
    finally:
        if command.poll() is None:
            command.kill()
        command.communicate()


def browser() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.faults)])
def test_a_page_is_served_until_a_signal_ends_it(tmp_path: Path, number: signal.Signals):
    run = tmp_path / "a"
    run.mkdir()
    (run / "run.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(str(tmp_path), "--port", str(port)) as (command, address):
            own = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32})", address)
            assert own is not None, address
            assert int(own[1]) != port
            base = address.partition("?")[0]
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{base}api/runs", timeout=20)
            asking = browser()
            page = asking.open(address, timeout=20)
            assert page.url == base, "the token has left the address"
            assert b"<html" in page.read()
            assert b'"name":"a"' in asking.open(f"{base}api/runs", timeout=20).read()
            events = asking.open(f"{base}api/events", timeout=20)  # a stream that has no end of its own
            command.send_signal(number)
            _, errors = command.communicate(timeout=60)
            events.close()
            assert command.returncode == 130
            assert errors.splitlines() == [
                f"port {port} is taken, so the page is at port {own[1]}",
                "the page is closed; the same command opens it again",
            ]


def test_a_place_must_exist(tmp_path, call):
    view = partial(call, "view", "--no-open", cwd=tmp_path)
    code, _, err = view()
    assert code == 3
    assert "place 'runs' does not exist; name a run, a packed run, a folder of runs, or a URL" in err
    code, _, err = view("--port", "70000")
    assert code == 2
    assert "port: must be from 0 to 65535, not 70000" in err
    (tmp_path / "runs").mkdir()
    code, _, err = view("--host", "no.such.host.invalid")
    assert code == 2
    assert "host: 'no.such.host.invalid' is not known" in err


def test_a_server_on_all_addresses_is_called_by_the_name_of_the_machine():
    assert Address("0.0.0.0", 80, "t").url == f"http://{socket.gethostname()}:80/?token=t"
    assert Address("::1", 80, "t").url == "http://[::1]:80/?token=t"


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(JobError, match=r"host: cannot listen at '192\.0\.2\.1:80'"):
        listen("192.0.2.1", 80)


def test_parts_of_an_answer_are_sent_at_once():
    # asyncio sets TCP_NODELAY only on sockets whose protocol is named; without it each answer waits 40 ms for the other
    # side's acknowledgement of its first part.
    with listen("127.0.0.1", 0) as opened:
        assert opened.proto == socket.IPPROTO_TCP
