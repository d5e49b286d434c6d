"""Limits of connections: their number, and the time until a request and for reading a response."""

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class LimitedConnection(H11Protocol):
    """An HTTP connection that is closed if it has no request for a while or its client is stuck.

    If there are too many, each new one ends the oldest one without a request. Open files would
    otherwise run out, and the server could accept nobody.

    Attributes:
        limit: maximum number of connections.
        seconds: a connection without progress is closed after once or twice this time.
    """

    limit: ClassVar[int] = 512
    seconds: ClassVar[float] = 60.0

    def connection_made(self, transport: Any) -> None:
        """Start the timer, and end another connection if there are too many."""
        super().connection_made(transport)
        self._opened = self.loop.time()
        self._timer = self.loop.call_later(self.seconds, self._end_if_stuck, None)
        if len(self.connections) > self.limit:
            alive: Iterator[Any] = (
                one for one in self.connections if not one.transport.is_closing()
            )
            min(alive, key=lambda one: (one._is_busy, one._opened)).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def _is_busy(self) -> bool:
        """True while the server works on a request, which has its own deadline."""
        return self.cycle is not None and not (
            self.cycle.response_complete or self.flow.write_paused
        )

    def _end_if_stuck(self, cycle: Any) -> None:
        """Close the connection if it is not busy and still at the request of the last call."""
        if self.cycle is cycle and not self._is_busy:
            self.transport.abort() if self.flow.write_paused else self.transport.close()
        else:
            self._timer = self.loop.call_later(self.seconds, self._end_if_stuck, self.cycle)


def limited_connection(limit: int, seconds: float) -> type[asyncio.Protocol]:
    """Return the class of connections with these limits."""
    return type("Connection", (LimitedConnection,), {"limit": limit, "seconds": seconds})
