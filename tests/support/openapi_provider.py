"""A provider that has a short good answer to everything, in the convention's language and in Anthropic's."""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, Self

import orjson
from aiohttp import web

from tests.support.image_providers import draw
from tests.support.openai_videos import KEY, OpenAiVideos, Play

Json = dict[str, Any]
MODEL = "m"
IMAGE = base64.b64encode(draw()).decode()
USED: Json = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
MESSAGE: Json = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "Hi"}], "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}  # fmt: skip
ANSWERS: Mapping[str, Json] = {
    "/v1/chat/completions": {
        "id": "c1", "object": "chat.completion", "created": 1, "model": MODEL, "usage": USED,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    },
    "/v1/completions": {
        "id": "t1", "object": "text_completion", "created": 1, "model": MODEL, "usage": USED,
        "choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}],
    },
    "/v1/responses": {
        "id": "r1", "object": "response", "created_at": 1, "model": MODEL, "status": "completed",
        "output": [{"type": "message", "role": "assistant", "content": []}],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    },
    "/v1/embeddings": {
        "object": "list", "model": MODEL, "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    },
    "/v1/moderations": {"id": "m1", "model": MODEL, "results": [{"flagged": False, "categories": {"hate": False}}]},
    "/v1/rerank": {"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 3}},
    "/v1/messages": MESSAGE,
    "/v1/messages/count_tokens": {"input_tokens": 3},
    "/v1/images/generations": {"created": 1, "data": [{"b64_json": IMAGE}]},
    "/v1/images/edits": {"created": 1, "data": [{"b64_json": IMAGE}]},
    "/v1/audio/transcriptions": {"text": "Hi", "segments": [{"start": 0.0, "end": 1.0, "text": "Hi"}]},
    "/v1/audio/translations": {"text": "Hi", "segments": [{"start": 0.0, "end": 1.0, "text": "Hi"}]},
}  # fmt: skip
CHUNK: Json = {
    "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}],
}  # fmt: skip
LAST: Json = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE_CHUNK: Json = {**CHUNK, "choices": [], "usage": USED}
MESSAGE_EVENTS: tuple[Json, ...] = (
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": MESSAGE["usage"]},
    {"type": "message_stop"},
)
DONE = b"data: [DONE]\n\n"


def write_events(*events: Json, named: bool = False) -> bytes:
    lines = []
    for event in events:
        name = b"event: " + event["type"].encode() + b"\n" if named else b""
        lines.append(name + b"data: " + orjson.dumps(event) + b"\n\n")
    return b"".join(lines)


STREAMS: Mapping[str, bytes] = {
    "/v1/chat/completions": write_events(CHUNK, LAST, USAGE_CHUNK) + DONE,
    "/v1/completions": write_events(ANSWERS["/v1/completions"]) + DONE,
    "/v1/messages": write_events(*MESSAGE_EVENTS, named=True),
    "/v1/responses": write_events(
        {"type": "response.created", "response": {**ANSWERS["/v1/responses"], "status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "Hi"},
        {"type": "response.completed", "response": ANSWERS["/v1/responses"]},
        named=True,
    ),
}
SPOKEN = write_events(
    {"type": "speech.audio.delta", "audio": base64.b64encode(b"ID3").decode()},
    {"type": "speech.audio.done", "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}},
)


class Everything(OpenAiVideos):
    """It answers by the path alone, and makes videos besides. What is asked to be ``slow`` is, until ``end``."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        super().__init__(slow=Play(polls=("in_progress", self.end, "completed")))

    async def __aenter__(self) -> Self:
        self._more = web.AppRunner(self._build(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._more.setup()
        await web.TCPSite(self._more, "127.0.0.1", 0).start()
        return await super().__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        await self._more.cleanup()

    def _build(self) -> web.Application:
        app = web.Application(client_max_size=1 << 20)
        app.router.add_get("/v1/models", self._list)
        app.router.add_post("/v1/told", self._listen)
        app.router.add_post("/v1/audio/speech", self._speak)
        for path in ANSWERS:
            app.router.add_post(path, self._answer)
        return app

    @property
    def answers_url(self) -> str:
        return f"http://127.0.0.1:{self._more.addresses[0][1]}/v1"

    def list_channels(self) -> list[Json]:
        """The channels that lead here: ``m`` for all but videos and messages, ``film``, ``claude``."""
        common = {"api_key": KEY, "total_timeout_s": 20}
        return [
            {"name": "up", "provider": "custom", "base_url": self.answers_url, "models": [MODEL], **common},
            {"name": "claude", "provider": "anthropic", "base_url": self.answers_url, "models": ["claude"], **common},
            self.channel("film", models=["film"]),
        ]

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "listed", "object": "model"}]})

    async def _listen(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _speak(self, request: web.Request) -> web.Response:
        if b'"stream_format":"sse"' in await request.read():
            return web.Response(body=SPOKEN, content_type="text/event-stream")
        return web.Response(body=b"ID3" + bytes(500), content_type="audio/mpeg")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        if b'"stream":true' not in raw:
            return web.json_response(ANSWERS[request.path])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if b"slow" in raw:
            await response.write(write_events(CHUNK))
            await self.end.wait()
        await response.write(STREAMS[request.path])
        return response
