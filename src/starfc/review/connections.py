"""Connections: how long the server listens to somebody who says nothing.

In: uvicorn's protocol. Out: the same, which hangs up where no whole request comes for a while, and on those who have
been silent longest where there are too many at once. Else a few hundred connections that are opened and never used, by
a broken program or on purpose, would keep the page itself out.
"""

from __future__ import annotations

import asyncio
from typing import Any

MOST_CONNECTIONS = 100  # a browser keeps six
MOST_REQUESTS = 400  # under way at the same time
_SILENCE_S = 10.0


def make_protocol() -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with little patience."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    return type("ImpatientProtocol", (_Impatience, AutoHTTPProtocol), {"known": {}})


class _Impatience(asyncio.Protocol):
    """What is put before uvicorn's protocol."""

    known: dict[_Impatience, None]  # all that are open, the longest silent first
    loop: asyncio.AbstractEventLoop  # these three are uvicorn's
    transport: asyncio.Transport
    cycle: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait; where there are too many, hang up on another."""
        super().connection_made(transport)
        self._answered: Any = None
        self._timer = self.loop.call_later(_SILENCE_S, self._check)
        self.known[self] = None
        if len(self.known) > MOST_CONNECTIONS:
            silent = next((other for other in self.known if other.is_silent() and other is not self), None)
            if silent is not None:
                silent.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self.known.pop(self, None)
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Go to the end of the line with a whole request."""
        super().data_received(data)
        if self in self.known and not self.is_silent():
            self.known[self] = self.known.pop(self)

    def is_silent(self) -> bool:
        """Tell whether no request is under way; half of a head is none."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def hang_up(self) -> None:
        """Close the connection at once."""
        self.known.pop(self, None)
        self.transport.abort()

    def _check(self) -> None:
        """Hang up if nothing was asked since the last time, or else look again later."""
        if self.is_silent() and self._answered is self.cycle:
            self.hang_up()
            return
        self._answered = self.cycle
        self._timer = self.loop.call_later(_SILENCE_S, self._check)
