"""The demo's painter at work: ``/v1/images/generations``, ``/v1/images/edits``, and the pictures' own addresses.

Everything is painted in one thread of its own, a picture after the other, so that no stream waits for one.
"""

import asyncio
import functools
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from aiohttp import web
from attrs import frozen

from gateway.demo.asks import AskError, Json
from gateway.demo.drawing import Raster, draw, pixelate
from gateway.demo.forms import Form, FormFile, receive_form
from gateway.demo.picture_asks import PictureAsk, is_png, read_edit, read_generation
from gateway.demo.png import PngError, PngReader, write_png
from gateway.demo.repainting import choose_size, read_canvas, read_mask, repaint
from gateway.demo.replies import EVENT_STREAM, json_reply, read_json, send_pieces, write_event
from gateway.demo.scenery import imagine

FILES = "/files/"

_DEFAULT_SIZE = (1024, 1024)
_CELLS = {0: (), 1: (24,), 2: (16, 64), 3: (12, 32, 96)}  # squares on a partial picture's shorter side
_MAX_EASELS = 4
_PACES = 10  # a picture takes as long as ten words
_TOLD_QUALITY = {"standard": "medium", "hd": "high", "auto": "high"}
_NOTE_LENGTH = 1_000
_T = TypeVar("_T")


@frozen
class Easel:
    """What pictures are painted on: an edit's picture, if it could be read, its open places, and the size."""

    size: tuple[int, int]
    canvas: Raster | None = None
    mask: tuple[bytes, ...] | None = None


class Painter:
    """Paints, and keeps what it painted at an address of its own for a while.

    Args:
        executor: where it paints.
        pace_s: a tenth of the pause between two parts of a streamed picture, in seconds.
    """

    def __init__(self, executor: Executor, *, pace_s: float) -> None:
        self._executor = executor
        self._pace_s = pace_s * _PACES
        self._files = Files()
        self._easels = asyncio.Semaphore(_MAX_EASELS)

    def add_routes(self, app: web.Application) -> None:
        """Take the convention's paths, and those of the pictures."""
        app.router.add_post("/v1/images/generations", self._generate)
        app.router.add_post("/v1/images/edits", self._edit)
        app.router.add_get(FILES + "{name}", self._show)

    def close(self) -> None:
        """Forget every picture."""
        self._files.clear()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        ask = read_generation(await read_json(request))
        return await self._answer(request, ask, Easel(ask.size or _DEFAULT_SIZE), "image_generation")

    async def _edit(self, request: web.Request) -> web.StreamResponse:
        async with receive_form(request) as form:
            ask = read_edit(form)
            async with self._easels:  # a picture that was sent is large; its file can wait
                easel = await self._set_up(ask, form)
                return await self._answer(request, ask, easel, "image_edit")

    async def _set_up(self, ask: PictureAsk, form: Form) -> Easel:
        over = threading.Event()

        def is_over() -> bool:
            time.sleep(0)  # the loop need not wait until the interpreter takes its lock away
            return over.is_set()

        work = self._executor.submit(set_up, ask, form, is_over)
        reading = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            over.set()
            if not work.cancel():  # it has begun, and reads files that are closed next
                await asyncio.gather(reading, return_exceptions=True)
            raise

    async def _show(self, request: web.Request) -> web.Response:
        data = self._files.find(request.match_info["name"])
        if data is None:
            raise web.HTTPNotFound
        return web.Response(body=data, content_type="image/png")

    async def _answer(self, request: web.Request, ask: PictureAsk, easel: Easel, kind: str) -> web.StreamResponse:
        if ask.stream:
            events = self._paint_slowly(ask, easel, kind)
            return await send_pieces(request, events, headers=EVENT_STREAM, pace_s=self._pace_s)
        items = []
        for index in range(ask.count):
            data = await self._run(paint, ask, easel, index)
            shown = {"url": self._keep(request, data)} if ask.form == "url" else {"b64_json": b64encode(data).decode()}
            items.append({**shown, "revised_prompt": describe(ask.prompt, index)})
        usage = ask.usage(easel.size, ask.count)
        return json_reply({"created": int(time.time()), **_told(ask, easel), "data": items, "usage": usage})

    async def _paint_slowly(self, ask: PictureAsk, easel: Easel, kind: str) -> AsyncIterator[bytes]:
        """Each picture's events: what can already be seen of it, and then itself."""
        told = {"created_at": int(time.time()), **_told(ask, easel)}
        for index in range(ask.count):
            for number, cells in enumerate(_CELLS[ask.partials]):
                data = await self._run(paint, ask, easel, index, cells)
                seen = {"b64_json": b64encode(data).decode(), "partial_image_index": number}
                yield write_event({"type": f"{kind}.partial_image", **seen, **told}, named=True)
            data = await self._run(paint, ask, easel, index)
            done = {"b64_json": b64encode(data).decode(), "usage": ask.usage(easel.size, 1, first=index == 0)}
            yield write_event({"type": f"{kind}.completed", **done, **told}, named=True)

    def _keep(self, request: web.Request, data: bytes) -> str:
        """Return the address at which a picture can be had from now on."""
        name = self._files.keep(data)
        port = request.transport.get_extra_info("sockname")[1] if request.transport else 0
        return f"http://127.0.0.1:{port}{FILES}{name}"

    async def _run(self, work: Callable[..., _T], *given: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, functools.partial(work, *given))


class Files:
    """Pictures by name, for a few minutes; the oldest go first when there are too many of them.

    Args:
        keep_s: for how long, in seconds.
        most: how many.
        most_bytes: how large all of them may be together.
    """

    def __init__(self, *, keep_s: float = 600.0, most: int = 256, most_bytes: int = 32 * 1024 * 1024) -> None:
        self._keep_s, self._most, self._most_bytes = keep_s, most, most_bytes
        self._data: dict[str, tuple[bytes, asyncio.TimerHandle]] = {}
        self._bytes = 0

    def keep(self, data: bytes) -> str:
        """Keep a picture; returns its name, which nobody guesses."""
        name = f"{secrets.token_hex(16)}.png"
        timer = asyncio.get_running_loop().call_later(self._keep_s, self._drop, name)
        self._data[name] = (data, timer)
        self._bytes += len(data)
        while len(self._data) > self._most or (self._bytes > self._most_bytes and len(self._data) > 1):
            self._drop(next(iter(self._data)))
        return name

    def find(self, name: str) -> bytes | None:
        """A picture that is still there."""
        kept = self._data.get(name)
        return None if kept is None else kept[0]

    def clear(self) -> None:
        """Drop everything."""
        for name in tuple(self._data):
            self._drop(name)

    def _drop(self, name: str) -> None:
        data, timer = self._data.pop(name)
        timer.cancel()
        self._bytes -= len(data)


def set_up(ask: PictureAsk, form: Form, is_over: Callable[[], bool]) -> Easel:
    """Read what an edit came with, until that is over; an AskError names what cannot be read.

    Of several pictures the first is painted on. One that is no PNG, or interlaced, is not looked at.
    """
    source = _open(form.files_of("image")[0], "image", is_over)
    mask = next((_open(file, "mask", is_over) for file in form.files_of("mask")), None)
    if form.files_of("mask"):
        _check_mask(mask, source)
    if source is None or source.head.interlaced:
        return Easel(ask.size or _DEFAULT_SIZE)
    size = ask.size or choose_size(source.head.width, source.head.height)
    return Easel(
        size,
        _read("image", read_canvas, source, size),
        None if mask is None else _read("mask", read_mask, mask, size),
    )


def paint(ask: PictureAsk, easel: Easel, index: int, cells: int | None = None) -> bytes:
    """Paint one picture, as a PNG; ``cells``: in squares, so many of them on its shorter side."""
    raster = draw(ask.prompt, index, *easel.size)
    if easel.canvas is not None:
        raster = repaint(easel.canvas, easel.mask, raster)
    if cells is not None:
        raster = pixelate(raster, min(easel.size) // cells)
    return write_png(raster.width, raster.height, raster.rows, note=ask.prompt[:_NOTE_LENGTH])


def describe(prompt: str, index: int) -> str:
    """What the demo made of a prompt."""
    scene = imagine(prompt, index)
    return f"{scene.kind.capitalize()} at {scene.hour}, which is how the demo pictures: {prompt[:_NOTE_LENGTH]}"


def _told(ask: PictureAsk, easel: Easel) -> Json:
    return {
        "background": "opaque",
        "output_format": "png",
        "quality": _TOLD_QUALITY.get(ask.quality, ask.quality),
        "size": f"{easel.size[0]}x{easel.size[1]}",
    }


def _open(file: FormFile, param: str, is_over: Callable[[], bool]) -> PngReader | None:
    """A PNG, or None where it is a picture of another kind."""
    if not is_png(file):
        return None
    try:
        return PngReader(file.file, is_over=is_over)
    except PngError as fault:
        raise AskError(str(fault), param=param) from fault


def _check_mask(mask: PngReader | None, source: PngReader | None) -> None:
    if mask is None or mask.head.interlaced or not mask.head.has_alpha:
        raise AskError("The mask must be a PNG with transparency, not interlaced.", param="mask")
    if source is not None and (mask.head.width, mask.head.height) != (source.head.width, source.head.height):
        raise AskError("The mask must have the size of the picture.", param="mask")


def _read(param: str, read: Callable[[PngReader, int, int], _T], source: PngReader, size: tuple[int, int]) -> _T:
    try:
        return read(source, *size)
    except PngError as fault:
        raise AskError(str(fault), param=param) from fault
