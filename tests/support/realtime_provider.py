"""A provider of realtime sessions whose every step is the test's: what it has got, and what it sends and when."""

import asyncio
from types import TracebackType
from typing import Any, Self

import attrs
import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from tests.support.gateway import channel

Event = dict[str, Any]
PRICES = {
    "input_usd_per_million": 1,
    "cached_input_usd_per_million": 0.5,
    "output_usd_per_million": 2,
    "audio_input_usd_per_million": 10,
    "cached_audio_input_usd_per_million": 5,
    "audio_output_usd_per_million": 20,
}
USAGE: Event = {
    "total_tokens": 150,
    "input_tokens": 100,
    "output_tokens": 50,
    "input_token_details": {
        "text_tokens": 60,
        "audio_tokens": 40,
        "cached_tokens": 30,
        "cached_tokens_details": {"text_tokens": 20, "audio_tokens": 10},
    },
    "output_token_details": {"text_tokens": 10, "audio_tokens": 40},
}
COST = 40 * 1_000 + 20 * 500 + 30 * 10_000 + 10 * 5_000 + 10 * 2_000 + 40 * 20_000
"""What ``USAGE`` costs at ``PRICES``, in nano-USD."""


@attrs.define(eq=False)
class ProviderSession:
    """One session at the provider. ``headers`` have lower-case names; ``transport`` takes parts of frames."""

    socket: web.WebSocketResponse
    path: str
    headers: dict[str, str]
    transport: asyncio.Transport
    _received: "asyncio.Queue[Event | bytes | int | None]" = attrs.Factory(asyncio.Queue)

    async def receive(self) -> Event | bytes | int | None:
        """The next event, the bytes of a binary frame, or the code with which the session was closed."""
        async with asyncio.timeout(10):
            return await self._received.get()

    async def expect(self, kind: str) -> Event:
        """The next event, which has this type."""
        event = await self.receive()
        assert isinstance(event, dict), event
        assert event["type"] == kind, event
        return event

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send_str(orjson.dumps({"event_id": "event_1", **fields, "type": kind}).decode())

    async def create(self, response_id: str = "resp_1") -> None:
        await self.send("response.created", response={"id": response_id, "status": "in_progress", "usage": None})

    async def finish(self, response_id: str = "resp_1", status: str = "completed", usage: Any = None) -> None:
        usage = USAGE if usage is None else usage or None
        await self.send("response.done", response={"id": response_id, "status": status, "usage": usage})

    async def run(self) -> None:
        async for message in self.socket:
            if message.type in {WSMsgType.PING, WSMsgType.PONG}:
                continue
            found = orjson.loads(message.data) if message.type is WSMsgType.TEXT else message.data
            self._received.put_nowait(found)
        self._received.put_nowait(self.socket.close_code)


class RealtimeProvider:
    """Takes sessions at ``/v1/realtime``; with ``refuses`` it answers handshakes with that status and error.

    ``deaf``: it answers no ping.
    """

    def __init__(self, *, refuses: int | None = None, deaf: bool = False) -> None:
        self._refuses = refuses
        self._deaf = deaf
        self._sessions: asyncio.Queue[ProviderSession] = asyncio.Queue()
        self._runner: web.AppRunner | None = None
        self.asked = 0
        self.base_url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v1/realtime", self._serve)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def channel(self, **more: Any) -> dict[str, Any]:
        """Its timers end no session: what a test does between two events may take long on a busy machine."""
        unhurried = {"first_byte_timeout_s": 20, "idle_timeout_s": 20, "total_timeout_s": 60}
        return channel(self.base_url, **unhurried | more)

    async def accept(self) -> ProviderSession:
        """The next session that has begun."""
        async with asyncio.timeout(10):
            return await self._sessions.get()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self._refuses is not None:
            error = {"message": "Not with this provider.", "type": "some_error", "param": None, "code": "some_code"}
            return web.json_response({"error": error}, status=self._refuses)
        socket = web.WebSocketResponse(protocols=("realtime",), max_msg_size=2**25, autoping=not self._deaf)
        await socket.prepare(request)
        transport = request.transport
        assert transport is not None
        headers = {name.lower(): value for name, value in request.headers.items()}
        session = ProviderSession(socket, request.path_qs, headers, transport)
        self._sessions.put_nowait(session)
        try:
            await session.run()
        finally:
            await socket.close(code=WSCloseCode.GOING_AWAY)
        return socket
