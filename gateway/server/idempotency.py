"""``Idempotency-Key``: a call that names itself is made once; whoever makes it again is given the same answer."""

import asyncio
from hashlib import sha256
from typing import Any

import attrs
import orjson
from aiohttp import web

from gateway.domain.idempotency import MAX_KEY_CHARS, IdempotencyRecord
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.upload import Upload
from gateway.errors import InvalidRequest
from gateway.formats.form import ReceivedForm
from gateway.formats.openai.videos import build_video
from gateway.server.context import CALLER, CONTEXT, SERVICES
from gateway.server.video_status import find_status_words

HEADER = "Idempotency-Key"
_NOT_STREAMED = f"{HEADER}: a stream is not replayed; the same request again is a new call"
_NOT_NAMED = f"{HEADER}: not used here; the same request again is a new call"
_JSON = "application/json"
_OK = 200
_NAMED: frozenset[Operation] = frozenset({"chat", "images", "image_edits", "videos", "video_remixes"})
_VIDEOS: frozenset[Operation] = frozenset({"videos", "video_remixes"})
_PIECE_BYTES = 256 * 1024


def find_name(request: web.Request, operation: Operation) -> "IdempotencyKey":
    """The name of a call. Operations that have none say so in a header of their answers."""
    name = request.headers.get(HEADER)
    if name is None:
        return NAMELESS
    if operation in _NAMED:
        return IdempotencyKey(request, operation, name)
    request[CONTEXT].warn(_NOT_NAMED)
    return NAMELESS


class IdempotencyKey:
    """The name of one call. Closed without an answer, the call may be made again under it.

    Attributes:
        is_named: there is a name; without one nothing else here does anything.
    """

    is_named = True
    _digest = ""
    _mine: IdempotencyRecord | None = None

    def __init__(self, request: web.Request, operation: Operation, name: str) -> None:
        self._request = request
        self._operation = operation
        self._name = name

    async def note_body(self, body: dict[str, Any]) -> None:
        """What is asked for."""
        if not self.is_named:
            return
        if (self._request.content_length or 0) > _PIECE_BYTES:
            self._digest = await asyncio.to_thread(self._sum_up_body, body)
        else:
            self._digest = self._sum_up_body(body)

    def _sum_up_body(self, body: dict[str, Any]) -> str:
        try:
            return self._sum_up(orjson.dumps(body, option=orjson.OPT_SORT_KEYS))
        except orjson.JSONEncodeError:
            raise InvalidRequest("The request is nested too deeply to be passed on") from None

    async def note_form(self, form: ReceivedForm) -> None:
        """The same of a form, in whatever order its fields came, and whatever stood between them."""
        if self.is_named:
            files = [(file.field, await _sum_up_file(file)) for file in form.files]  # which is first may matter
            self._digest = self._sum_up(orjson.dumps((sorted(form.fields), files)))

    def _sum_up(self, said: bytes) -> str:
        return sha256(b"%b\n%b\n%b" % (self._operation.encode(), self._request.path.encode(), said)).hexdigest()

    async def find_answer(self, call: InferenceRequest) -> web.Response | None:
        """The answer to the same call, made before; None where it is to be made now.

        Raises ``InvalidRequest``, ``IdempotencyConflict``, ``StoreUnavailable``.
        """
        if not self.is_named:
            return None
        if not 0 < len(self._name) <= MAX_KEY_CHARS or not self._name.isascii() or not self._name.isprintable():
            raise InvalidRequest(f"'{HEADER}' must have 1 to {MAX_KEY_CHARS} printable characters", param=HEADER)
        if call.stream:
            self._request[CONTEXT].warn(_NOT_STREAMED)
            return None
        services = self._request.app[SERVICES]
        await services.billing.quota.check_rate(
            self._request[CALLER]
        )  # what is refused in a loop must not write in one
        replays = services.idempotency
        ctx = self._request[CONTEXT]
        mine, known = await replays.begin(ctx.caller.key.id, self._name, self._digest, ctx.id)
        if known is not None and known.state != "answered":
            lost, known = known, await self._find_job(known)
            if known is None:
                await replays.take(mine, lost)
        if known is not None:
            return _write_again(known)
        self._mine = mine
        return None

    async def _find_job(self, lost: IdempotencyRecord) -> IdempotencyRecord | None:
        """A submit that was cut off may have left a job: that is the answer then."""
        services = self._request.app[SERVICES]
        job = await services.videos.jobs.find_by_request(lost.request_id) if self._operation in _VIDEOS else None
        if job is None:
            return None
        body = orjson.dumps(build_video(job, find_status_words(self._request, job)))
        return attrs.evolve(lost, status=_OK, media_type=_JSON, body=body)

    async def keep(self, body: bytes, media_type: str = _JSON) -> None:
        """The call's answer."""
        mine, self._mine = self._mine, None
        if mine is not None:
            await self._request.app[SERVICES].idempotency.end(mine, status=_OK, media_type=media_type, body=body)

    async def lose(self) -> None:
        """Nobody knows what became of the call, but the record of its job."""
        mine, self._mine = self._mine, None
        if mine is not None:
            await self._request.app[SERVICES].idempotency.lose(mine)

    def hand_over(self) -> "IdempotencyKey":
        """The same for whoever carries the call to its end, however long that takes."""
        if not self.is_named:
            return self
        other = IdempotencyKey(self._request, self._operation, self._name)
        other._mine, self._mine = self._mine, None
        return other

    def close(self) -> None:
        """The call is over."""
        mine, self._mine = self._mine, None
        if mine is not None:
            services = self._request.app[SERVICES]
            services.videos.jobs.run(services.idempotency.forget(mine))


class _NoIdempotencyKey(IdempotencyKey):
    """No name, shared by all calls that have none."""

    is_named = False

    def __init__(self) -> None:
        """Nothing."""


NAMELESS = _NoIdempotencyKey()


def _write_again(known: IdempotencyRecord) -> web.Response:
    headers = {"Content-Type": known.media_type, "Idempotent-Replayed": "true"}
    return web.Response(status=known.status, body=known.body, headers=headers)


async def _sum_up_file(file: Upload) -> str:
    digest, offset = sha256(), 0
    while offset < file.size:
        piece = await file.spooled.read(offset, _PIECE_BYTES)
        if not piece:
            break
        await asyncio.to_thread(digest.update, piece)
        offset += len(piece)
    return digest.hexdigest()
