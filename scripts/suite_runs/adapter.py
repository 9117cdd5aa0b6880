"""Stands between a suite and the gateway, and puts things that exist there in place of the suite's invented ones.

A suite asks for "file_id" with the key "My API Key". The gateway has its own keys, and every file, batch, upload, video
and response has an id of its own and an owner. The adapter adds the key and, before the request, makes the object that
it names. Unless it is to correct requests, it changes nothing else. It passes answers as they are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Self

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from scripts.suite_runs.corrections import correct_body, correct_form, correct_query
from scripts.suite_runs.local_server import serve

MakeObject = Callable[["Adapter"], Awaitable[str]]
_HOP = frozenset({"host", "content-length", "transfer-encoding", "connection", "keep-alive"})
"""Headers of a connection, which each side has its own of."""
_KEY_HEADERS = frozenset({"authorization", "x-api-key"})
_RUNNING = ("queued", "processing", "in_progress", "validating", "finalizing", "canceling")
_WAIT_S = 60
_MODEL = "gpt-6-astra"
_PART = b"Example data"
_MESSAGES = [{"role": "user", "content": "x"}]
_CHAT = {"method": "POST", "url": "/v1/chat/completions", "body": {"model": _MODEL, "messages": _MESSAGES}}
_MANY = 500
"""Requests of a batch that is still running when it is cancelled."""


async def make_file(adapter: "Adapter") -> str:
    """Make a file that a batch can read."""
    form = aiohttp.FormData({"purpose": "batch"})
    lines = (orjson.dumps({"custom_id": str(number)} | _CHAT) for number in range(adapter.batch_size))
    form.add_field("file", b"\n".join(lines), filename="lines.jsonl")
    return await adapter.create("/v1/files", data=form)


async def make_batch(adapter: "Adapter") -> str:
    """Make a batch of chat requests."""
    body = {"input_file_id": await make_file(adapter), "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return await adapter.create("/v1/batches", json=body)


async def make_upload(adapter: "Adapter") -> str:
    """Make an upload of as many bytes as a part of the suite has."""
    body = {"bytes": len(_PART), "filename": "filename", "mime_type": "mime_type", "purpose": "assistants"}
    return await adapter.create("/v1/uploads", json=body)


async def complete_upload(adapter: "Adapter", path: list[str], body: dict[str, Any]) -> None:
    """Add the part that a request for completion names."""
    if path[-1] == "complete" and body.get("part_ids") == ["string"]:
        form = aiohttp.FormData()
        form.add_field("data", _PART, filename="part")
        body["part_ids"] = [await adapter.create(f"/v1/uploads/{path[-2]}/parts", data=form)]


async def make_video(adapter: "Adapter") -> str:
    """Make a video."""
    return await adapter.create("/v1/videos", json={"model": "sora-2", "prompt": "x"})


async def make_response(adapter: "Adapter") -> str:
    """Make a response that is kept."""
    return await adapter.create("/v1/responses", json={"model": _MODEL, "input": "x", "store": True})


async def make_message_batch(adapter: "Adapter") -> str:
    """Make a batch of messages."""
    params = {"model": "claude-opus-5-5", "max_tokens": 16, "messages": _MESSAGES}
    body = {"requests": [{"custom_id": str(number), "params": params} for number in range(adapter.batch_size)]}
    return await adapter.create("/v1/messages/batches", json=body)


IN_PATHS: Mapping[str, MakeObject] = {
    "file_id": make_file,
    "batch_id": make_batch,
    "upload_abc123": make_upload,
    "video_123": make_video,
    "resp_677efb5139a88190b512bc3fef8e535d": make_response,
    "response_id": make_response,
    "message_batch_id": make_message_batch,
}
"""What makes the object that a segment of a path names."""
REUSED = frozenset({"video_123"})
"""What takes seconds to make and does not change when it is used."""
IN_BODIES: Mapping[str, MakeObject] = {"input_file_id": make_file, "previous_response_id": make_response}
"""What makes the object that a field of a JSON body names."""


class Adapter:
    """Serves on a free port and forwards to the gateway; used as an asynchronous context.

    Args:
        gateway: the gateway's URL.
        key: an API key of the gateway.
        correct: also correct what the gateway refuses (``corrections``).

    Attributes:
        url: where it listens.
        batch_size: how many requests the next batch has.
    """

    def __init__(self, gateway: str, key: str, *, correct: bool = False) -> None:
        self.url = ""
        self._gateway = gateway
        self._correct = correct
        self._headers = {"Authorization": f"Bearer {key}"}
        self.batch_size = 1
        self._kept: dict[str, str] = {}
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = await self._stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        self.url = await self._stack.enter_async_context(serve(self._forward))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    async def create(self, path: str, **body: Any) -> str:
        """Create an object at the gateway; return its id."""
        async with self._session.post(self._gateway + path, headers=self._headers, **body) as response:
            made = await response.json()
            if response.status != 200:
                raise RuntimeError(f"the gateway did not make what a test needs: {path}: {made}")
            return str(made["id"])

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        deletes = request.method == "DELETE"
        self.batch_size = _MANY if request.path.endswith("/cancel") else 1
        parts = [await self._replace(part, keep=not deletes) for part in request.rel_url.raw_path.split("/")]
        if deletes or parts[-1] == "remix":
            await self._wait("/".join(parts).removesuffix("/remix"))
        body = await request.read()
        if request.content_type == "application/json" and body:
            body = await self._adapt(parts, body)
        elif self._correct:
            body = correct_form("/".join(parts), request.headers.get("Content-Type", ""), body)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP | _KEY_HEADERS}
        url = URL(self._gateway + "/".join(parts), encoded=True)
        url = url.with_query(correct_query(request.query) if self._correct else request.query)
        async with self._session.request(request.method, url, data=body, headers=headers | self._headers) as response:
            kept = {name: value for name, value in response.headers.items() if name.lower() not in _HOP}
            # A client that tried again would only take longer.
            kept["x-should-retry"] = "false"
            return web.Response(status=response.status, body=await response.read(), headers=kept)

    async def _wait(self, path: str) -> None:
        """Wait until a job has ended; what is no job has no state."""
        async with asyncio.timeout(_WAIT_S):
            while True:
                async with self._session.get(self._gateway + path, headers=self._headers) as response:
                    found = await response.json()
                if found.get("status", found.get("processing_status")) not in _RUNNING:
                    return
                await asyncio.sleep(0.05)

    async def _replace(self, part: str, *, keep: bool) -> str:
        """Return the id of an object in place of an invented one; of one video for all that do not delete it."""
        if part not in IN_PATHS:
            return part
        made = self._kept.get(part) or await IN_PATHS[part](self)
        if part in REUSED:
            self._kept = {part: made} if keep else {}
        return made

    async def _adapt(self, path: list[str], body: bytes) -> bytes:
        parsed = orjson.loads(body)
        before = orjson.dumps(parsed)
        for name, make in IN_BODIES.items():
            if parsed.get(name) == name:
                parsed[name] = await make(self)
        await complete_upload(self, path, parsed)
        if self._correct:
            correct_body("/".join(path), parsed)
        # What needs no change stays as the library wrote it.
        after = orjson.dumps(parsed)
        return body if after == before else after
