"""A provider that answers every operation of texts in the OpenAI API format, with a text that names the model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.scripted_upstream import DONE, event

USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


@asynccontextmanager
async def open_text_provider(received: list[tuple[str, dict[str, Any]]]) -> AsyncIterator[str]:
    """Yield the base URL of the provider, which adds the path and the body of each request to ``received``."""

    async def serve(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        if request.path == "/v1/responses":  # like most providers: the gateway asks for a chat instead
            raise web.HTTPNotFound
        received.append((request.path, body))
        text = f"{body['model']} says hello"
        if body.get("stream") is True:
            return web.Response(body=_write_stream(body["model"], text, request.path), content_type="text/event-stream")
        return web.json_response(_build_answer(request.path.rpartition("/v1")[2], body, text))

    app = web.Application()
    app.router.add_post("/v1/{path:.*}", serve)
    async with TestServer(app) as server:
        yield str(server.make_url("/v1"))


def _build_answer(path: str, body: dict[str, Any], text: str) -> Any:
    model = {"id": "x-1", "created": 1, "model": body["model"], "usage": USAGE}
    if path == "/completions":
        return {**model, "object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
    if path == "/embeddings":
        vector = [1.0, 0.0] if body["model"] == "m" else [1.0, 1.0]
        return {**model, "object": "list", "data": [{"object": "embedding", "index": 0, "embedding": vector}]}
    if path == "/moderations":
        return {**model, "results": [{"flagged": False, "categories": {}, "category_scores": {}}]}
    if path == "/rerank":
        return {**model, "results": [{"index": 0, "relevance_score": 0.5}]}
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {**model, "object": "chat.completion", "choices": [choice]}


def _write_stream(model: str, text: str, path: str) -> bytes:
    if path.endswith("/completions") and not path.endswith("/chat/completions"):
        start: dict[str, Any] = {"id": "x-1", "object": "text_completion", "created": 1, "model": model}
        choices = [{"index": 0, "text": f"{word} ", "finish_reason": None} for word in text.split()]
        choices.append({"index": 0, "text": "", "finish_reason": "stop"})
        chunks = [{**start, "choices": [choice]} for choice in choices]
        return b"".join(map(event, [*chunks, {**start, "choices": [], "usage": USAGE}])) + DONE
    head = {"id": "x-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    pieces = [{"content": f"{word} "} for word in text.split()]
    events = [{**head, "choices": [{"index": 0, "delta": piece, "finish_reason": None}]} for piece in pieces]
    events.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events.append({**head, "choices": [], "usage": USAGE})
    return b"".join(map(event, events)) + DONE
