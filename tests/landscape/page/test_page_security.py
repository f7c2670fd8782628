"""Who is answered: the token, the cookie that it becomes, the name of the server, the headers of every answer."""

from __future__ import annotations

import pytest

from landscape.core.http import Guard, host_name, own_names

TOKEN, WRONG = "the-token", "the-tokem"


def test_the_token_becomes_a_cookie_and_leaves_the_address(client):
    reply = client.get(f"/?token={TOKEN}", cookie="")
    assert (reply.status, reply.headers["location"]) == (303, "./")
    assert reply.headers["set-cookie"] == f"{client.cookie}; Path=/; HttpOnly; SameSite=Lax"
    assert client.get("/", cookie=f"other=1; {client.cookie}").status == 200


@pytest.mark.parametrize("address", ["/", "/?token=", f"/?token={WRONG}", f"/?token={TOKEN}&token={WRONG}"])
def test_who_has_no_token_gets_one_page_without_scripts(client, address):
    reply = client.get(address, cookie="")
    assert reply.status == 401
    assert b"token" in reply.body
    assert b"<script" not in reply.body
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("address", ["/api/runs", "/api/events", "/static/plotly.js", f"/api/runs?token={TOKEN}", "/x"])
@pytest.mark.parametrize("cookie", ["", "{}=x", "x{}=the-token", "{}=the-token-", "{}", "{}=\x01", "[]=1"])
def test_everything_else_asks_for_the_cookie(client, address, cookie):
    name = client.cookie.partition("=")[0]
    reply = client.get(address, cookie=cookie.format(name))
    assert reply.status == 401
    assert "landscape view" in reply.error


def test_a_wrong_token_is_refused_where_the_cookie_is_right(client):
    assert client.get(f"/?token={WRONG}").status == 401


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765", "[::1]:80", "localhost", "192.168.0.7", "a.localhost:1", "LOCALHOST."]
)
def test_addresses_and_localhost_are_known(client, host):
    assert client.get("/api/runs", host=host).status == 200


FOREIGN = [
    "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[::1].x", "a b", "", "x,localhost",
]  # fmt: skip


@pytest.mark.parametrize("host", FOREIGN)
def test_other_names_are_refused_before_the_token_is_looked_at(client, host):
    assert client.get(f"/?token={TOKEN}", host=host).status == 403


def test_own_names_and_those_of_the_user_are_known():
    names = own_names(["Proxy.Example"])
    assert Guard("t", names).knows_host("proxy.example:443")
    assert not Guard("t", own_names()).knows_host("proxy.example")


def test_a_host_without_a_name_has_none():
    assert [host_name(text) for text in (":80", "[::1", "a/b", "x@y")] == [None] * 4


@pytest.mark.parametrize("address", ["/", "/api/runs", "/api/run?run=x", "/static/index.html", "/nothing", "/?token=x"])
def test_every_answer_has_the_security_headers(client, address):
    headers = client.get(address).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] in ("no-store", "no-cache")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_written(client, method):
    assert client.get("/api/runs", method).status == 405


def test_two_servers_of_one_host_keep_their_cookies_apart():
    assert Guard("one").cookie != Guard("two").cookie
    assert "one" not in repr(Guard("one"))
