"""Pictures that are painted whole for a caller who asked for a stream: a reply whose one piece is the whole stream."""

import asyncio
from collections.abc import Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.upstream.interface import PumpResult, Sink

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class BufferedStream:
    """A painting under way, as an ``upstream.port.Reply``.

    Args:
        work: gives the events and what was used. It goes on while nobody pumps, and ends with the reply.
    """

    __slots__ = ("_fault", "_spent", "_task", "usage")

    def __init__(self, work: Coroutine[Any, Any, tuple[bytes, Usage]]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)
        self._fault: ProviderError | None = None
        self._spent = False
        self.usage = NO_USAGE

    @property
    def task(self) -> "asyncio.Task[tuple[bytes, Usage]]":
        """The painting itself."""
        return self._task

    @property
    def status(self) -> int:
        """As of a good answer."""
        return 200

    @property
    def headers(self) -> Mapping[str, str]:
        """None."""
        return _NO_HEADERS

    async def read(self, limit: int) -> bytes:
        """Everything; see ``upstream.port.Reply``."""
        pieces: list[bytes] = []

        def keep(piece: bytes, _raw: bytes | None) -> bool:
            pieces.append(piece)
            return False

        await self.pump(keep)
        if sum(map(len, pieces)) > limit:
            raise ProviderBadResponse(f"The provider's answer is larger than {limit} bytes", phase="body")
        return b"".join(pieces)

    async def pump(self, sink: Sink) -> PumpResult:
        """Wait for the painting, and push it. Raises the fault it ended in, or what ``abort`` was given."""
        if self._spent:
            return PumpResult.ENDED
        await asyncio.wait({self._task})
        if self._fault is not None:
            raise self._fault
        events, self.usage = self._task.result()
        self._spent = True
        return PumpResult.PAUSED if sink(events, None) else PumpResult.ENDED

    def abort(self, fault: ProviderError) -> None:
        """End the painting with ``fault``."""
        if self._fault is None:
            self._fault = fault
        self._task.cancel()

    def finish(self) -> None:
        """Nothing is left to be done."""

    def close(self) -> None:
        """Done with it: a painting that nobody waits for is given up."""
        self._task.cancel()


class BufferedPassthrough:
    """The gate of a painting: all of it leaves at once; see ``dialects.gate.Gate``."""

    __slots__ = ("_reply", "ended", "events", "fault")
    noise = 0

    def __init__(self, reply: BufferedStream) -> None:
        self._reply = reply
        self.events = 0
        self.ended = False
        self.fault: ProviderError | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing more can leave."""
        return self.ended

    def feed(self, data: bytes) -> bytes:
        """Everything in, everything out."""
        self.events, self.ended = 1, True
        return data

    def finish(self) -> bytes:
        """Nothing is left to be written."""
        return b""

    def parse_usage(self) -> Usage:
        """What the painting used, once it is there."""
        return self._reply.usage
