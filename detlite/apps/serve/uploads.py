"""Bodies of requests while they arrive."""

import asyncio
from collections import Counter
from collections.abc import Coroutine

from .limits import Refusal


class Uploads:
    """Limits the number of bodies that arrive at the same time.

    A new upload over the limit ends the oldest upload of the client with the most uploads. So a
    client that keeps many uploads open without sending anything cannot keep others out.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._clients: dict[asyncio.Task[bytes], str] = {}  # oldest first

    async def receive(self, client: str, body: Coroutine[None, None, bytes]) -> bytes:
        """Return the body that a client sends; Refusal if a newer upload ended this one."""
        if len(self._clients) >= self._limit:
            ((busiest, _),) = Counter(self._clients.values()).most_common(1)
            oldest = next(task for task, name in self._clients.items() if name == busiest)
            del self._clients[oldest]
            oldest.cancel()
        task = asyncio.ensure_future(body)
        self._clients[task] = client
        try:
            return await task
        except asyncio.CancelledError:
            if task in self._clients:  # the server stops
                raise
            problem = f"more than {self._limit} images are arriving"
            raise Refusal(503, problem) from None
        finally:
            self._clients.pop(task, None)
            task.cancel()
