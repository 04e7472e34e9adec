"""Calls an ASGI application without a port."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)


def call(app, path, *, method="GET", headers=(), body=b"", chunk=1 << 16, host="127.0.0.1:8000"):
    """Send one request; `path` may hold a query."""
    plain, _, query = path.partition("?")
    given = [(b"host", host.encode())] if host is not None else []
    given += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(plain), "raw_path": plain.encode(), "query_string": query.encode(), "headers": given,
        "server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 5000), "root_path": "",
    }  # fmt: skip
    pieces = [body[start : start + chunk] for start in range(0, len(body), chunk)] or [b""]
    sent = []

    async def receive():
        piece = pieces.pop(0) if pieces else b""
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))
