"""Guard: who may talk to the review server.

The server listens on 127.0.0.1, but every page of every browser on the machine can reach that. So a request counts only

- with the right Host, else a foreign name that resolves to 127.0.0.1 (DNS rebinding) would be as good as ours;
- with the token of this run as the first part of its path; no cookie is used, so there is none to ride on;
- from our own origin, if the browser says where it comes from, and a POST only as JSON, which forms cannot send;
- with a body of at most two megabytes that comes within twenty seconds.

Every answer forbids the browser to load or run anything from elsewhere.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BODY_BYTES = 2 << 20
_BODY_S = 20.0  # in which a body must have come
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]


class Guard:
    """Lets through what the page itself sends, and refuses everything else before it is read."""

    def __init__(self, app: App, *, token: str, hosts: tuple[str, ...]) -> None:
        self._app, self._token = app, token
        self._hosts = {host.lower() for host in hosts}
        self._origins = {f"http://{host}" for host in self._hosts}
        self.last_request: float | None = None  # when a page last asked for something, by time.monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then hand it on without the token."""
        if scope["type"] != "http":
            return  # no websockets
        refusal = self._judge(scope)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        self.last_request = time.monotonic()
        try:
            body = await asyncio.wait_for(_read_body(receive), _BODY_S)
        except TimeoutError:
            await _refuse(send, 408, "the request did not come to an end")
            return
        if body is None:
            await _refuse(send, 413, "the request is too large")
            return
        inner = dict(scope)
        inner["path"] = scope["path"][len(self._token) + 1 :]
        inner["raw_path"] = inner["path"].encode()

        async def receive_body() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
            await send(message)

        await self._app(inner, receive_body, send_guarded)

    def _judge(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason of a refusal, or None."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in headers and name in (b"host", b"origin", b"content-length"):
                return 400, "a header is given twice"
            headers[name] = value
        if headers.get(b"host", b"").decode("latin-1").lower() not in self._hosts:
            return 403, "wrong host"
        first = scope["path"].split("/", 2)[1:2]
        if not first or not secrets.compare_digest(first[0].encode(), self._token.encode()):
            return 403, (
                "this address is of an earlier starfc review, or incomplete; open the one that the running starfc"
                " review printed (nothing is lost)"
            )
        if b"origin" in headers and headers[b"origin"].decode("latin-1").lower() not in self._origins:
            return 403, "wrong origin"
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return 403, "wrong site"
        return self._judge_method(scope["method"], headers)

    @staticmethod
    def _judge_method(method: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        if method not in ("GET", "HEAD", "POST"):
            return 405, "wrong method"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 12 or int(length) > MOST_BODY_BYTES:
            return 413, "the request is too large"
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if method == "POST" and kind != b"application/json":
            return 415, "a request must be JSON"
        return None


async def _read_body(receive: Receive) -> bytes | None:
    """Read the body as far as is allowed; None if it is longer."""
    chunks, total = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunk = message.get("body", b"")
        total += len(chunk)
        if total > MOST_BODY_BYTES:
            return None
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close"), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})
