"""A provider of the convention's videos that does as it is told: task by task, and answer by answer.

A test says by a prompt what becomes of a submit, of every poll and of the file (``Play``); what it does not say goes
well. Nothing is made twice here for one ``Idempotency-Key``: a request sent twice is answered twice, and counted.

Shapes: the convention's OpenAPI document, ``VideoResource`` and ``DeletedVideoResource``.
"""

import asyncio
import enum
import re
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Self

import attrs
import orjson
from aiohttp import BodyPartReader, web

KEY = "provider-key"
FTYP = b"\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isommp42"
CLIP_BYTES = 300_000
"""More than one piece, however it is read."""
_RANGE = re.compile(r"bytes=(\d+)-(\d*)\Z")
_PIECE = 64 * 1024
_FOR_EVER_S = 3_600
Json = dict[str, Any]


class Act(enum.Enum):
    """What can be done instead of answering."""

    SILENCE = "say nothing until the other side hangs up"
    BREAK = "reset the connection"
    CLOSE = "close it in order"


SILENCE, BREAK, CLOSE = Act.SILENCE, Act.BREAK, Act.CLOSE


@attrs.frozen
class Answered:
    """An answer in so many words."""

    body: bytes | Json = b""
    status: int = 200
    headers: dict[str, str] = attrs.field(factory=dict)
    content_type: str = "application/json"

    def write(self) -> web.Response:
        raw = self.body if isinstance(self.body, bytes) else orjson.dumps(self.body)
        return web.Response(body=raw, status=self.status, headers={"Content-Type": self.content_type, **self.headers})


@attrs.frozen
class Raw:
    """Bytes that need not be HTTP, and then the end of the connection."""

    data: bytes


@attrs.frozen
class Cut:
    """The file up to there, and then the end of the connection, in order or not; ``then`` is waited for before it."""

    at: int
    act: Act = Act.BREAK
    then: asyncio.Event | None = None


Turn = str | Answered | Raw | Cut | Act | asyncio.Event
"""A status, or ``ok``; or one of the above. An event is waited for, and what follows it is done."""


def _check_end(_play: object, _field: object, turns: Sequence[Turn]) -> None:
    assert not isinstance(turns[-1], asyncio.Event), "what happens then?"


@attrs.define(eq=False)
class Play:
    """What becomes of a prompt: of every submit, poll and fetch in turn; the last of each again and again.

    Attributes:
        hint_ms: told with every status: when to ask again.
        more: besides what is usually said of the task.
    """

    submit: Sequence[Turn] = attrs.field(default=("ok",), validator=_check_end)
    polls: Sequence[Turn] = attrs.field(default=("queued", "in_progress", "completed"), validator=_check_end)
    file: Sequence[Turn] = attrs.field(default=("ok",), validator=_check_end)
    size: int = CLIP_BYTES
    hint_ms: int | None = None
    more: Json = attrs.field(factory=dict)


@attrs.frozen
class Submitted:
    """A call to begin a task, or to make one anew, as it was heard."""

    prompt: str
    mark: str
    path: str
    content_type: str
    fields: Json
    files: dict[str, bytes]


@attrs.define(eq=False)
class Task:
    """A task that was begun. ``ranges``: of every fetch of its file, what was wanted of it."""

    id: str
    prompt: str
    fields: Json
    status: str = "queued"
    polls: int = 0
    ranges: list[str | None] = attrs.Factory(list)
    cursors: dict[str, int] = attrs.Factory(dict)


class OpenAiVideos:
    """A real HTTP server on a loopback port. ``async with`` it.

    Attributes:
        plays: by prompt; ``usual`` is for any other.
        submits: every call to begin a task, whatever became of it.
        tasks: those that were begun, by their ids.
        deleted: ids that were to be forgotten.
        sent: bytes of files that have left.
        hung_up: how often the other side has gone before it was answered.
        deaf: until then no call to begin a task is read beyond its headers; None: at once.
        asked: method, path and key of everything, in order.
    """

    def __init__(self, usual: Play | None = None, **plays: Play) -> None:
        self.usual = usual or Play()
        self.plays: dict[str, Play] = dict(plays)
        self.submits: list[Submitted] = []
        self.tasks: dict[str, Task] = {}
        self.deleted: list[str] = []
        self.asked: list[tuple[str, str, str]] = []
        self.sent = self.hung_up = 0
        self.deaf: asyncio.Event | None = None
        self._cursors: Counter[str] = Counter()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30, middlewares=[self._note])
        app.router.add_post("/v1/videos", self._begin)
        app.router.add_post("/v1/videos/{id}/remix", self._begin)
        app.router.add_get("/v1/videos/{id}", self._tell)
        app.router.add_get("/v1/videos/{id}/content", self._give)
        app.router.add_delete("/v1/videos/{id}", self._forget)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def base_url(self) -> str:
        assert self._runner is not None
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    def channel(self, name: str = "up", **more: Any) -> Json:
        """A ``[[channel]]`` that leads here, and serves the model ``m``."""
        return {
            "name": name,
            "provider": "custom",
            "base_url": self.base_url,
            "api_key": KEY,
            "models": ["m"],
            "connect_timeout_s": 20,
            "first_byte_timeout_s": 5,
            "idle_timeout_s": 5,
            "total_timeout_s": 20,
            **more,
        }

    def count(self, prompt: str) -> int:
        """How often it was asked to begin that."""
        return sum(submit.prompt == prompt for submit in self.submits)

    @property
    def marks(self) -> Counter[str]:
        """How often it was asked under each ``Idempotency-Key``."""
        return Counter(submit.mark for submit in self.submits)

    def find(self, prompt: str) -> Task:
        """The task of a prompt; fails where there is none, or more than one."""
        (task,) = (task for task in self.tasks.values() if task.prompt == prompt)
        return task

    def find_play(self, prompt: str) -> Play:
        """What becomes of a prompt."""
        return self.plays.get(prompt, self.usual)

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append((request.method, request.path, request.headers.get("Authorization", "")))
        try:
            return await handler(request)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            self.hung_up += 1
            raise

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        """``POST /videos``, and ``POST /videos/{id}/remix``."""
        if self.deaf is not None:
            await self.deaf.wait()
        fields, files = await _read(request)
        prompt = str(fields.get("prompt"))
        submit = Submitted(
            prompt, request.headers.get("Idempotency-Key", ""), request.path, request.content_type, fields, files
        )
        self.submits.append(submit)
        turn = await self._take_turn(self.find_play(prompt).submit, self._cursors, prompt)
        if turn != "ok":
            return await _do(request, turn)
        task = Task(f"video_up{len(self.tasks) + 1}", prompt, fields)
        self.tasks[task.id] = task
        return web.json_response(self._write(task))

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        """``GET /videos/{id}``."""
        task = self.tasks.get(request.match_info["id"])
        if task is None:
            return _refuse(404, "Video not found")
        play = self.find_play(task.prompt)
        task.polls += 1
        turn = await self._take_turn(play.polls, task.cursors, "polls")
        if not isinstance(turn, str):
            return await _do(request, turn)
        task.status = turn
        hint = {} if play.hint_ms is None else {"openai-poll-after-ms": str(play.hint_ms)}
        return web.json_response(self._write(task), headers=hint)

    async def _give(self, request: web.Request) -> web.StreamResponse:
        """``GET /videos/{id}/content``."""
        task = self.tasks.get(request.match_info["id"])
        if task is None:
            return _refuse(404, "Video not found")
        play = self.find_play(task.prompt)
        task.ranges.append(request.headers.get("Range"))
        turn = await self._take_turn(play.file, task.cursors, "file")
        if turn != "ok" and not isinstance(turn, Cut):
            return await _do(request, turn)
        start, end = _find_range(request, play.size)
        if end is not None and start >= end:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{play.size}"})
        response = web.StreamResponse(status=200 if end is None else 206, headers={"Content-Type": "video/mp4"})
        if end is not None:
            response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{play.size}"
        stop = play.size if end is None else end
        response.content_length = stop - start
        await response.prepare(request)
        await self._send(response, task.prompt, start, min(stop, turn.at) if isinstance(turn, Cut) else stop)
        if isinstance(turn, Cut):
            if turn.then is not None:
                await turn.then.wait()
            return await _do(request, turn.act)
        await response.write_eof()
        return response

    async def _send(self, response: web.StreamResponse, prompt: str, start: int, stop: int) -> None:
        """No faster than it is read."""
        for piece in write_pieces(prompt, start, stop):
            await response.write(piece)
            self.sent += len(piece)

    async def _forget(self, request: web.Request) -> web.StreamResponse:
        """``DELETE /videos/{id}``."""
        self.deleted.append(request.match_info["id"])
        return web.json_response({"id": request.match_info["id"], "object": "video.deleted", "deleted": True})

    async def _take_turn(self, turns: Sequence[Turn], cursors: Any, name: str) -> Any:
        while True:
            at = cursors.get(name, 0)
            cursors[name] = at + 1
            turn = turns[min(at, len(turns) - 1)]
            if not isinstance(turn, asyncio.Event):
                return turn
            await turn.wait()

    def _write(self, task: Task) -> Json:
        """The task object."""
        failed = {"error": {"code": "internal_error", "message": "The machine ran out of film"}}
        return {
            "id": task.id,
            "object": "video",
            "model": task.fields.get("model", "m"),
            "status": task.status,
            "progress": min(10 * task.polls, 100),
            "created_at": 1_700_000_000,
            "completed_at": None,
            "expires_at": None,
            "prompt": task.prompt,
            "seconds": task.fields.get("seconds", "4"),
            "size": task.fields.get("size", "720x1280"),
            "remixed_from_video_id": None,
            **(failed if task.status == "failed" else {"error": None}),
            **self.find_play(task.prompt).more,
        }


def write_pieces(prompt: str, start: int, stop: int) -> Iterator[bytes]:
    """A part of a prompt's file: what an MP4 begins with, and then noise of its own."""
    block = sha256(prompt.encode()).digest() * (_PIECE // 32)
    first = FTYP + block[len(FTYP) :]
    while start < stop:
        offset = start % _PIECE
        piece = (first if start < _PIECE else block)[offset : offset + stop - start]
        yield piece
        start += len(piece)


def write_clip(prompt: str, size: int = CLIP_BYTES) -> bytes:
    """The whole of it."""
    return b"".join(write_pieces(prompt, 0, size))


async def _do(request: web.Request, turn: Turn) -> web.StreamResponse:
    match turn:
        case Answered():
            return turn.write()
        case Act.SILENCE:
            await asyncio.sleep(_FOR_EVER_S)
        case Act.BREAK:
            linger = struct.pack("ii", 1, 0)
            _get_transport(request).get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            _get_transport(request).abort()
            return web.Response()
        case Act.CLOSE:
            _get_transport(request).close()
            return web.Response()
        case Raw():
            _get_transport(request).write(turn.data)
            return await _do(request, Act.CLOSE)
    raise AssertionError(f"this cannot be done here: {turn}")


def _get_transport(request: web.Request) -> asyncio.Transport:
    assert request.transport is not None
    return request.transport


def _refuse(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=status)


def _find_range(request: web.Request, size: int) -> tuple[int, int | None]:
    """Where to begin, and where to end; None where no part was asked for."""
    found = _RANGE.match(request.headers.get("Range", ""))
    return (int(found[1]), min(int(found[2] or size - 1) + 1, size)) if found else (0, None)


async def _read(request: web.Request) -> tuple[Json, dict[str, bytes]]:
    if request.content_type != "multipart/form-data":
        return orjson.loads(await request.read()), {}
    fields: Json = {}
    files: dict[str, bytes] = {}
    async for part in await request.multipart():
        assert isinstance(part, BodyPartReader)
        data = bytes(await part.read())
        if part.filename is None:
            fields[str(part.name)] = data.decode()
        else:
            files[str(part.name)] = data
    return fields, files
