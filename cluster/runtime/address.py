"""A cluster's address: whether a head answers there and asks for a token; and whether it answers a driver later on."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cluster.runtime.logs import event_fields
from landscape.core.errors import ClusterUnreachableError, JobError, quoted

CONNECT_SECONDS = 5.0
ASKED_AGAIN = 2  # times, since a jump of the clock can use up the time to answer
LISTENING = "0A"  # the state of a socket in /proc/net
SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
IN_A_RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"

log = logging.getLogger("landscape")

Answer = Literal["open", "token", "tls", "none"]


def check_address(address: str, allow_open: bool) -> Answer:
    """How the cluster answers a client without a token.

    Inside a Ray job the address is that of the cluster it runs on, and whoever submitted the job has decided.

    Raises:
        JobError: it is not host:port, or answers beyond loopback and asks for no token.
        ClusterUnreachableError: no cluster answers there, or it asks for a token that this process does not have.
    """
    if address.startswith("ray://"):
        raise JobError(
            "address: ray:// (Ray Client) cannot run a driver that streams results; "
            "give host:port of the head node from inside the cluster"
        )
    host, port = head_place(address)
    place = f"{host}:{port}"
    _refuse_unreachable(address, host.strip("[]"), port)
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return "tls"  # both sides show certificates, and the question below could not be asked
    answer = ask(place)
    for _ in range(ASKED_AGAIN):
        if answer == "none":
            answer = ask(place)
    if answer == "none":
        raise ClusterUnreachableError(unreachable(address, "what listens there is no Ray head"))
    if answer == "token" and (not has_token() or ask(place, token=token()) == "token"):
        raise wrong_token(f"the cluster at {quoted(address)}")
    if answer == "open" and not (allow_open or IN_A_RAY_JOB in os.environ):
        refuse_strangers(host, port, place)
    return answer


def refuse_strangers(host: str, port: int, place: str) -> None:
    """Refuse a cluster elsewhere that asks for no token; warn of one on this machine that other machines reach.

    Whoever reaches such a cluster can run code on it (CVE-2023-48022). As Ray's head listens on every interface
    whatever its options say, the user's own head, called by loopback, is worth a warning and no refusal.

    Raises:
        JobError: it is called by an address that is not loopback.
    """
    if not is_loopback(host):
        raise JobError(
            f"address: the cluster at {quoted(place)} runs code of anybody who reaches it; start it with "
            "RAY_AUTH_MODE=token, or say --allow-open where its network is closed"
        )
    if is_beyond(host, port):
        log.warning(
            "the cluster at %s listens beyond this machine and asks for no token, so that who reaches it can run code "
            "on it; start it with RAY_AUTH_MODE=token, or say --allow-open where its network is closed", quoted(place),
        )  # fmt: skip


def head_place(address: str) -> tuple[str, int]:
    """Host and port of the head that an address, or `auto`, stands for.

    Raises:
        JobError: it is not host:port.
        ClusterUnreachableError: `auto`, and no cluster is known here.
    """
    place = _cluster_here() if address == "auto" else address
    if place is None:
        raise ClusterUnreachableError(unreachable(address, "no Ray runs on this machine"))
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        raise JobError(f"address: must be host:port or auto, not {quoted(address)}")
    return host, int(port)


def wrong_token(who: str) -> ClusterUnreachableError:
    """The error where a cluster asks for a token: why none was sent, or that the one that was sent is refused."""
    missing = missing_token()
    complaint = f"no token was sent ({missing}), and {who} asks for a token" if missing else f"{who} refuses the token"
    if missing.startswith("RAY_AUTH_TOKEN_PATH="):
        remedy = "let RAY_AUTH_TOKEN_PATH name the file that holds the cluster's"
    else:
        remedy = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's"
    return ClusterUnreachableError(f"address: {complaint}; {remedy}")


def unreachable(address: str, cause: str) -> str:
    """The message of an address at which no cluster answers."""
    cause = " ".join(cause.split())[:200]
    return (
        f"address: no Ray cluster answers at {quoted(address)} ({cause}); "
        "start one with `ray start --head`, or leave the address out"
    )


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_beyond(host: str, port: int) -> bool:
    """Whether what answers at host:port answers other machines too.

    A head that listens on every interface answers on loopback as well, so the addresses that it is bound to decide,
    where /proc shows them. A port that is forwarded from loopback passes; its owner must guard the other end.
    """
    return not is_loopback(host) or not all(is_loopback(bound) for bound in bound_addresses(port))


def bound_addresses(port: int) -> list[str]:
    """The addresses at which this machine listens for TCP at a port, each once; none where there is no /proc."""
    addresses = [
        _address(content) for content, number, state in _sockets() if state == LISTENING and int(number, 16) == port
    ]
    return list(dict.fromkeys(addresses))  # Linux lists a socket twice where others appear while its table is read


def _sockets() -> Iterator[tuple[str, str, str]]:
    """The local address, the port and the state of each of this machine's TCP sockets, as Linux writes them."""
    for table in SOCKET_TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            content, _, number = local.partition(":")
            yield content, number, state


def _address(content: str) -> str:
    """The address of words of four bytes in the machine's order, as Linux writes them; a mapped IPv4 one as IPv4."""
    words = (bytes.fromhex(content[i : i + 8]) for i in range(0, len(content), 8))
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address)


def has_token() -> bool:
    """Whether this process would show a token: RAY_AUTH_MODE must say so, and there must be one."""
    return not missing_token()


def missing_token() -> str:
    """Why this process would show no token; '' where it would."""
    mode, named = os.environ.get("RAY_AUTH_MODE", ""), os.environ.get("RAY_AUTH_TOKEN_PATH")
    if mode.lower() != "token":
        return f"RAY_AUTH_MODE={quoted(mode)}" if mode else "RAY_AUTH_MODE is not set"
    if token():
        return ""
    if not named:
        return "neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH is set, and ~/.ray/auth_token holds none"
    try:
        Path(named).read_text()
    except FileNotFoundError:
        cause = "no such file"
    except (OSError, ValueError) as error:
        cause = (getattr(error, "strerror", None) or "not text").lower()
    else:
        cause = "it is empty"
    return f"RAY_AUTH_TOKEN_PATH={quoted(named)}: {cause}"


def token() -> str:
    """The token that Ray would show from here; '' where it finds none."""
    value = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    if value:
        return value
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    try:
        return (Path(named) if named else Path.home() / ".ray" / "auth_token").read_text().strip()
    except (OSError, ValueError):
        return ""


def _cluster_here() -> str | None:
    """What `auto` stands for: RAY_ADDRESS, else the cluster that this machine belongs to, as Ray itself finds it."""
    from ray._private import services

    try:
        address = services.get_ray_address_from_environment("auto", None)
    except ConnectionError:
        return None
    return None if address is None else str(address)


def _refuse_unreachable(address: str, host: str, port: int) -> None:
    """Refuse an address that takes no connection within seconds; Ray would wait for a minute."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterUnreachableError(unreachable(address, str(error))) from error


def ask(place: str, seconds: float = CONNECT_SECONDS, token: str = "") -> Answer:
    """Whether the head at host:port answers a client without a token: `open`, `token`, or `none` for no head.

    Where a token is given, the answer `token` means that it is wrong. Ray has no call for either: its own clients show
    the token that they have, and try a wrong one for half a minute. What is asked here is what every client asks first,
    the cluster's id, for which an empty message is valid.
    """
    import grpc

    def as_it_is(content: bytes) -> bytes:
        return content

    # A proxy for the web is no way to a cluster; Ray itself uses none either.
    with grpc.insecure_channel(place, options=[("grpc.enable_http_proxy", 0)]) as channel:
        question = channel.unary_unary(
            "/ray.rpc.NodeInfoGcsService/GetClusterId", request_serializer=as_it_is, response_deserializer=as_it_is
        )
        try:
            question(b"", timeout=seconds, metadata=[("authorization", f"Bearer {token}")] if token else None)
        except grpc.RpcError as error:
            return "token" if error.code() == grpc.StatusCode.UNAUTHENTICATED else "none"
    return "open"


# ----------------------------------------------------------------------------------------------------
# A head that falls silent while a driver is attached. Calls to Ray then block, and after a time Ray's core ends the
# process, so another thread says what is waited for.

LOOK_SECONDS = 3.0  # between two questions to the head
SILENT_SECONDS = 5.0  # without an answer, after which the user is told
PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"  # Ray's setting for how long it waits for its head
PATIENCE_SECONDS = 60.0  # its default


@dataclass
class HeadWatch:
    """Says when a head has fallen silent, until when it is waited for, and when it answers again.

    Args:
        place: its host:port.
        answers: asks it.
        clock: the time, in seconds since 1970.
    """

    place: str
    answers: Callable[[], bool]
    clock: Callable[[], float] = time.time
    _silent_since: float | None = None
    _is_told: bool = False

    def look(self) -> None:
        """Ask once, and say what has changed."""
        began = self.clock()
        if self.answers():
            if self._is_told and self._silent_since is not None:
                text = f"the cluster at {quoted(self.place)} answers again, after {began - self._silent_since:.0f} s"
                log.warning("%s", text, extra=event_fields("head-answers", cause=text))
            self._silent_since, self._is_told = None, False
            return
        if self._silent_since is None:
            self._silent_since = began
        if not self._is_told and self.clock() - self._silent_since >= SILENT_SECONDS:
            self._is_told = True
            text = (
                f"the cluster at {quoted(self.place)} has not answered since {_time_of_day(self._silent_since)}; it is "
                f"waited for until about {_time_of_day(self._silent_since + patience_seconds())}. Then this ends with "
                "code 5: what is done is kept, and the same command goes on"
            )
            log.warning("%s", text, extra=event_fields("head-silent", cause=text))


def patience_seconds() -> float:
    """How long Ray waits for its head before it ends the process that is attached to it."""
    try:
        return float(os.environ.get(PATIENCE, ""))
    except ValueError:
        return PATIENCE_SECONDS


def _time_of_day(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


@contextlib.contextmanager
def watch_head(address: str, certified: bool) -> Iterator[None]:
    """Within the block, a thread says when the head at an address falls silent, and when it answers again.

    Args:
        certified: whether it asks for certificates; then it is only tried whether it takes connections.
    """
    host, port = head_place(address)

    def answers() -> bool:
        if not certified:
            return ask(f"{host}:{port}") != "none"
        try:
            socket.create_connection((host.strip("[]"), port), CONNECT_SECONDS).close()
        except OSError:
            return False
        return True

    watch, is_over = HeadWatch(f"{host}:{port}", answers), threading.Event()

    def look_again_and_again() -> None:
        while not is_over.wait(LOOK_SECONDS):
            watch.look()

    threading.Thread(target=look_again_and_again, name="head watch", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
