"""The body of a request: read as far as one may go; what is left of a long one ends the connection with the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.serving.refusals import TOO_LARGE, TOO_SLOW, Refusal
from cluster.serving.requests import BYTES_BESIDE, Limits

READ_ON = 4  # times the size that a body may have: most clients read no answer before they have sent it all


async def body_of(request: Request, limits: Limits, axes: int) -> bytes:
    """The whole body.

    Raises:
        Refusal: it is larger than a request for so many points may be, or does not come.
    """
    most, parts, size = limits.body(axes), list[bytes](), 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > READ_ON * most:
                    break
                if size <= most:
                    parts.append(part)
    except TimeoutError:
        raise Refusal(
            TOO_SLOW, f"body: must be whole within {limits.body_seconds:g} seconds; send fewer points at once"
        ) from None
    if size > most:
        raise Refusal(TOO_LARGE, f"body: must be at most {most} bytes; ask for fewer points at once")
    return b"".join(parts)


def ending_unread(app: ASGIApp) -> ASGIApp:
    """The application, which ends a connection with its answer where a long body was not read to its end.

    The server would read on for as long as the client sends, which may be for ever. What is left of a short body is
    read in no time, and the connection goes on.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        unread = scope["type"] == "http" and _is_long(scope["headers"])

        async def receiving() -> Message:
            nonlocal unread
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                unread = False
            return message

        async def sending(message: Message) -> None:
            if unread and message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message.get("headers", ()) if name != b"connection"]
                message["headers"] = [*kept, (b"connection", b"close")]
            await send(message)

        await app(scope, receiving, sending)

    return answer


def _is_long(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the body that the headers announce is long, or has no length."""
    named = dict(headers)
    length = named.get(b"content-length", b"0")
    return b"transfer-encoding" in named or not length.isdigit() or int(length) > BYTES_BESIDE
