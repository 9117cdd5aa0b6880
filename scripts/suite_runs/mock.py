"""A server that answers each operation of an OpenAPI document with an example, and refuses what does not fit it."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import orjson
from aiohttp import web

from scripts.suite_runs.document import STREAM, Document, Invalid, Operation
from scripts.suite_runs.local_server import serve

_MP4 = b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom\0\0\0\x08mdat"
"""A video without a frame: the gateway looks at how one begins."""


class MockServer:
    """Serves ``documents`` on a free port of this machine; used as an asynchronous context.

    Args:
        documents: what it serves; the last one to requests for beta features, as Anthropic marks them.
        prefix: of all paths, "" or "/v1".

    Attributes:
        url: where it listens, without the prefix.
        refusals: what it refused, with the operation.
    """

    def __init__(self, documents: Sequence[Document], *, prefix: str) -> None:
        self.url = ""
        self.refusals: list[str] = []
        self._documents = documents
        self._prefix = prefix
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.url = await self._stack.enter_async_context(serve(self._serve))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        # The path as sent: a slash in the name of a model is a part of it.
        path = request.rel_url.raw_path.removeprefix(self._prefix)
        beta = "beta" in request.query or "anthropic-beta" in request.headers
        document = self._documents[-1 if beta else 0]
        operation = document.find(request.method, path)
        if operation is None:
            return self._refuse(request, 404, "no such operation")
        try:
            stream = await _check(document, operation, request)
        except Invalid as invalid:
            return self._refuse(request, 400, str(invalid))
        kind, example = document.answer(operation, stream=stream)
        return web.Response(body=_write(kind, example), content_type=kind)

    def _refuse(self, request: web.Request, status: int, why: str) -> web.Response:
        self.refusals.append(f"{request.method} {request.path}: {why}")
        error = {"message": why, "type": "invalid_request_error", "param": None, "code": None}
        # A client that tried again would only take longer.
        headers = {"x-should-retry": "false"}
        return web.json_response({"type": "error", "error": error}, status=status, headers=headers)


def _write(kind: str, example: Any) -> bytes:
    if example is None:
        return _MP4 if kind.startswith("video/") else b"example"
    if kind != STREAM:
        return orjson.dumps(example)
    events = example if isinstance(example, list) else [example]
    named = "type" in events[0]
    return b"".join(map(_write_event, events)) + (b"" if named else b"data: [DONE]\n\n")


def _write_event(event: dict[str, Any]) -> bytes:
    name = f"event: {event['type']}\n".encode() if "type" in event else b""
    return name + b"data: " + orjson.dumps(event) + b"\n\n"


async def _check(document: Document, operation: Operation, request: web.Request) -> bool:
    """Check a request; return whether it asks for a stream. Raises ``Invalid``."""
    query = {name: value for name, value in request.query.items() if name != "beta"}
    document.check_query(operation, query)
    if request.content_type.startswith("multipart/") or "urlencoded" in request.content_type:
        form = await request.post()
        document.check_form(operation, form)
        return form.get("stream") == "true"
    body = await request.read()
    if not operation.bodies:
        return query.get("stream") == "true"
    parsed: Any = orjson.loads(body or b"{}")
    document.check_json(operation, parsed)
    return isinstance(parsed, dict) and parsed.get("stream") is True
