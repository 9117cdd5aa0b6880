"""The demo's images: ``/v1/images/generations``, ``/v1/images/edits``, and the addresses of generated images.

Each image is a gradient. A separate thread draws all images: streams do not wait for them.
"""

import asyncio
import functools
import secrets
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from concurrent.futures import Executor

from aiohttp import web

from gateway.demo.forms import receive_form
from gateway.demo.image_requests import DemoImageRequest, parse_edit, parse_generation
from gateway.demo.png import draw
from gateway.demo.replies import EVENT_STREAM, build_event, build_reply, parse_json, send_pieces
from gateway.demo.requests import Json
from gateway.frozen import frozen

FILES_PATH = "/files/"

_DEFAULT_SIZE = (1024, 1024)
_BANDS_BY_PARTIALS = {0: (), 1: (24,), 2: (16, 64), 3: (12, 32, 96)}
"""The steps of each partial image's gradient, by the number of partial images."""
_PACE_FACTOR = 10  # an image takes as long as ten words
_REPORTED_QUALITY = {"standard": "medium", "hd": "high", "auto": "high"}
_NOTE_LENGTH = 1_000


@frozen
class _Drawing:
    """An image to draw for a request: the size in pixels, and whether it is an edit."""

    request: DemoImageRequest
    size: tuple[int, int]
    is_edit: bool


class DemoImages:
    """Draws images, and stores those that clients request by URL.

    Args:
        pace_s: a tenth of the pause between parts, in seconds.
    """

    def __init__(self, executor: Executor, *, pace_s: float) -> None:
        self._executor = executor
        self._pace_s = pace_s * _PACE_FACTOR
        self._files = Files()

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/images/generations", self._generate)
        app.router.add_post("/v1/images/edits", self._edit)
        app.router.add_get(FILES_PATH + "{name}", self._show)

    def close(self) -> None:
        self._files.clear()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        image_request = parse_generation(await parse_json(request))
        return await self._answer(request, _Drawing(image_request, image_request.size or _DEFAULT_SIZE, is_edit=False))

    async def _edit(self, request: web.Request) -> web.StreamResponse:
        async with receive_form(request) as form:
            image_request = parse_edit(form)
        return await self._answer(request, _Drawing(image_request, image_request.size or _DEFAULT_SIZE, is_edit=True))

    async def _show(self, request: web.Request) -> web.Response:
        data = self._files.find(request.match_info["name"])
        if data is None:
            raise web.HTTPNotFound
        return web.Response(body=data, content_type="image/png")

    async def _answer(self, request: web.Request, drawing: _Drawing) -> web.StreamResponse:
        image_request = drawing.request
        if image_request.stream:
            events = self._stream(drawing)
            return await send_pieces(request, events, headers=EVENT_STREAM, pace_s=self._pace_s)
        items = []
        for index in range(image_request.count):
            data = await self._draw(drawing, index)
            image_field = (
                {"url": self._store_image(request, data)}
                if image_request.form == "url"
                else {"b64_json": b64encode(data).decode()}
            )
            items.append({**image_field, "revised_prompt": f"A gradient for: {image_request.prompt[:_NOTE_LENGTH]}"})
        usage = image_request.build_usage(drawing.size, image_request.count)
        return build_reply({"created": int(time.time()), **_describe(drawing), "data": items, "usage": usage})

    async def _stream(self, drawing: _Drawing) -> AsyncIterator[bytes]:
        image_request, kind = drawing.request, "image_edit" if drawing.is_edit else "image_generation"
        fields = {"created_at": int(time.time()), **_describe(drawing)}
        for index in range(image_request.count):
            for number, bands in enumerate(_BANDS_BY_PARTIALS[image_request.partial_count]):
                data = await self._draw(drawing, index, bands)
                partial_fields = {"b64_json": b64encode(data).decode(), "partial_image_index": number}
                yield build_event({"type": f"{kind}.partial_image", **partial_fields, **fields}, has_name=True)
            data = await self._draw(drawing, index)
            final_event = {
                "b64_json": b64encode(data).decode(),
                "usage": image_request.build_usage(drawing.size, 1, first=index == 0),
            }
            yield build_event({"type": f"{kind}.completed", **final_event, **fields}, has_name=True)

    def _store_image(self, request: web.Request, data: bytes) -> str:
        name = self._files.add(data)
        port = request.transport.get_extra_info("sockname")[1] if request.transport else 0
        return f"http://127.0.0.1:{port}{FILES_PATH}{name}"

    async def _draw(self, drawing: _Drawing, index: int, bands: int | None = None) -> bytes:
        work = functools.partial(draw, drawing.request.prompt, index, drawing.size, border=drawing.is_edit, bands=bands)
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


class Files:
    """Images by name, stored for ``keep_s`` seconds.

    The oldest images are deleted if there are more than ``max_files``, or more than ``max_bytes`` together.
    """

    def __init__(self, *, keep_s: float = 600.0, max_files: int = 256, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._keep_s, self._max_files, self._max_bytes = keep_s, max_files, max_bytes
        self._data: dict[str, tuple[bytes, asyncio.TimerHandle]] = {}
        self._bytes = 0

    def add(self, data: bytes) -> str:
        """Store an image; return its name, which cannot be guessed."""
        name = f"{secrets.token_hex(16)}.png"
        timer = asyncio.get_running_loop().call_later(self._keep_s, self._drop, name)
        self._data[name] = (data, timer)
        self._bytes += len(data)
        while len(self._data) > self._max_files or (self._bytes > self._max_bytes and len(self._data) > 1):
            self._drop(next(iter(self._data)))
        return name

    def find(self, name: str) -> bytes | None:
        """Return a stored image; None if there is no image with that name."""
        entry = self._data.get(name)
        return None if entry is None else entry[0]

    def clear(self) -> None:
        for name in tuple(self._data):
            self._drop(name)

    def _drop(self, name: str) -> None:
        data, timer = self._data.pop(name)
        timer.cancel()
        self._bytes -= len(data)


def _describe(drawing: _Drawing) -> Json:
    quality = drawing.request.quality
    return {
        "background": "opaque",
        "output_format": "png",
        "quality": _REPORTED_QUALITY.get(quality, quality),
        "size": f"{drawing.size[0]}x{drawing.size[1]}",
    }
