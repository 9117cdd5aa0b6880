"""A provider of chat that says what a test wants said, at the pace it wants."""

import asyncio
from typing import Any, Self

import attrs
from aiohttp import web

from tests.support.scripted_upstream import DONE, delta, event

KEY = "provider-key"
PAUSE_S = 0.02
Json = dict[str, Any]


@attrs.define
class Provider:
    """A real HTTP server on a loopback port. ``async with`` it.

    The model ``broken`` fails with ``fault``; ``endless`` goes on and on, until its client has gone.

    Attributes:
        models: that it lists.
        says: word by word.
        usage: prompt and completion tokens of each answer.
        pictures: the items of an answer that should have some; none: it fails.
        pause: what every chat waits for, if anything.
        left: how many have gone in the middle of an answer.
        heard: the bodies of the chat requests.
        keys: that are taken; empty: any.
        listings: how often the models were asked for.
    """

    models: list[str] = attrs.Factory(lambda: ["m", "broken", "endless"])
    says: tuple[str, ...] = ("The ", "sea ", "is ", "calm.")
    fault: str = "The machine is on fire"
    usage: tuple[int, int] = (1200, 480)
    images: tuple[Json, ...] = ()
    left: int = 0
    heard: list[Json] = attrs.Factory(list)
    keys: tuple[str, ...] = ()
    listings: int = 0
    pause: asyncio.Event | None = None
    _runner: Any = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v1/models", self._list)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/images/generations", self._paint)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._runner.cleanup()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    def channel(self, name: str, **more: Any) -> Json:
        """As the admin API takes one, that leads here."""
        body = {"name": name, "provider": "custom", "base_url": self.base_url, "api_keys": [KEY], "sync": True}
        return {**body, "models": [], **more}

    async def _list(self, request: web.Request) -> web.Response:
        self.listings += 1
        if self.keys and request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.keys:
            return web.json_response({"error": {"message": "Incorrect API key provided", "code": None}}, status=401)
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def _paint(self, _request: web.Request) -> web.Response:
        return web.json_response({"created": 1, "data": list(self.images)}) if self.images else self._fail()

    def _fail(self) -> web.Response:
        return web.json_response({"error": {"message": self.fault, "type": "server_error", "code": None}}, status=500)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.heard.append(body)
        if self.pause is not None:
            await self.pause.wait()
        if body["model"] == "broken":
            return self._fail()
        if not body.get("stream"):
            return web.json_response(self._write("".join(self.says)))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for word in self.says:
                await response.write(event(delta(word)))
            while body["model"] == "endless":
                await response.write(event(delta("and on ")))
                await asyncio.sleep(PAUSE_S)
        except (ConnectionError, asyncio.CancelledError):
            self.left += 1
            raise
        await response.write(event(delta("", "stop")) + event(self._write_usage(choices=[])) + DONE)
        return response

    def _write(self, text: str) -> Json:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {**self._write_usage(choices=[choice]), "object": "chat.completion"}

    def _write_usage(self, **more: Any) -> Json:
        prompt, completion = self.usage
        tokens = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "usage": tokens,
            **more,
        }
