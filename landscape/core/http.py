"""Who may ask: the token and the cookie that it becomes, the names under which the server answers, the headers.

The login nodes of clusters are shared, so a token is asked for on the loopback address too. The name in the `Host`
header is checked, since a foreign page could have its own name resolved to this machine (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

LONGEST_HEADER = 8192

# Plotly sets the styles of its drawings within the page, which 'unsafe-inline' allows; scripts are our files alone.
POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self' 'unsafe-inline'", "img-src 'self' data: blob:",
    "font-src 'self'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'",
))  # fmt: skip

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "SAMEORIGIN",
}


def new_token() -> str:
    """A random token, 192 bits in characters that an address may hold."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Guard:
    """Decides which requests are answered.

    Attributes:
        token: what the first request must bring, in its address.
        hosts: the names, in lower case, under which the server may be asked, beside addresses and `localhost`.
    """

    token: str = field(repr=False)
    hosts: frozenset[str] = frozenset()

    @property
    def cookie(self) -> str:
        """The name of the cookie; it depends on the token, so that two servers of one host do not share theirs."""
        return f"landscape-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    def cookie_header(self) -> str:
        """The header that has a browser keep the token; scripts of the page do not get to see it."""
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Lax"

    def is_token(self, given: str) -> bool:
        """Whether a text is the token; the comparison takes equally long wherever they differ."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def has_cookie(self, header: str) -> bool:
        """Whether a `Cookie` header brings the token."""
        if not header or len(header) > LONGEST_HEADER:
            return False
        cookies: SimpleCookie = SimpleCookie()
        try:
            # Another application on this host may have set cookies that Python's parser refuses: ours is taken alone.
            for part in header.split(";"):
                if part.strip().startswith(f"{self.cookie}="):
                    cookies.load(part.strip())
        except CookieError:
            return False
        return self.cookie in cookies and self.is_token(cookies[self.cookie].value)

    def knows_host(self, header: str) -> bool:
        """Whether a `Host` header names this server: by an address, as `localhost`, or by one of its names."""
        name = host_name(header)
        if name is None:
            return False
        return name == "localhost" or name.endswith(".localhost") or name in self.hosts or is_address(name)


def host_name(header: str) -> str | None:
    """The name or address in a `Host` header, in lower case and without the port; None where it is malformed.

    >>> host_name("Example.org:8080"), host_name("[::1]:80"), host_name("a b")
    ('example.org', '::1', None)
    """
    text = header.strip().lower()
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        well_formed = bool(bracket) and (not port or (port.startswith(":") and port[1:].isdecimal()))
        return name if well_formed and is_address(name) else None
    name, colon, port = text.partition(":")
    well_formed = bool(name) and (not colon or port.isdecimal()) and not set(name) & set(" /\\@?#,;\"'<>")
    return name.rstrip(".") if well_formed else None


def is_address(name: str) -> bool:
    """Whether a name is an address of IPv4 or IPv6."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def own_names(more: Iterable[str] = ()) -> frozenset[str]:
    """The names of this machine, whole and without its domain, and those that the user adds; all in lower case."""
    own = socket.gethostname().lower()
    return frozenset(name.lower().rstrip(".") for name in (own, own.partition(".")[0], *more) if name)


def header_value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """The value of a header, '' where it is absent; where it stands twice the values are joined, and match nothing."""
    values = [value.decode("latin-1") for key, value in headers if key.lower() == name]
    return "; ".join(values) if name == b"cookie" else ",".join(values)


def raw_headers(more: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI has them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in more.items()]
