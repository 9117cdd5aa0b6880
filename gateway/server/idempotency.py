"""``Idempotency-Key``: a request with a key runs once; a repeated one gets the same response. Streams are exempt."""

import asyncio
from hashlib import sha256
from typing import Any

import attrs
import orjson
from aiohttp import web

from gateway.domain import exact_json
from gateway.domain.idempotency import MAX_KEY_CHARS, IdempotencyRecord
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.upload import Upload
from gateway.errors import InvalidRequest
from gateway.formats.videos.openai import build_video
from gateway.formats.wire.form import ReceivedForm
from gateway.server.context import CALLER, CONTEXT, SERVICES
from gateway.server.video_status import find_status_words

HEADER = "Idempotency-Key"
_STREAM_WARNING = f"{HEADER}: a stream is not replayed; the same request again is a new request"
_UNUSED_WARNING = f"{HEADER}: not used here; the same request again is a new request"
_JSON_TYPE = "application/json"
_OK_STATUS = 200
_PIECE_BYTES = 256 * 1024


def find_name(request: web.Request, operation: Operation) -> "IdempotencyKey":
    """Return the idempotency key of a request; ``NO_IDEMPOTENCY_KEY`` without one.

    If the operation takes no such key, a response header warns of that.
    """
    name = request.headers.get(HEADER)
    if name is None:
        return NO_IDEMPOTENCY_KEY
    if OPERATIONS[operation].replayable:
        return IdempotencyKey(request, operation, name)
    request[CONTEXT].warn(_UNUSED_WARNING)
    return NO_IDEMPOTENCY_KEY


class IdempotencyKey:
    """The idempotency key of one request. Releasing it without a kept answer permits using the key again."""

    is_named = True
    _digest = ""
    _own_record: IdempotencyRecord | None = None

    def __init__(self, request: web.Request, operation: Operation, name: str) -> None:
        self._request = request
        self._operation = operation
        self._name = name

    async def record_body(self, body: dict[str, Any]) -> None:
        if not self.is_named:
            return
        if (self._request.content_length or 0) > _PIECE_BYTES:
            self._digest = await asyncio.to_thread(self._hash_body, body)
        else:
            self._digest = self._hash_body(body)

    def _hash_body(self, body: dict[str, Any]) -> str:
        try:
            return self._hash(orjson.dumps(body, default=exact_json.write_number, option=orjson.OPT_SORT_KEYS))
        except orjson.JSONEncodeError:
            raise InvalidRequest("The request body is nested too deeply") from None

    async def record_form(self, form: ReceivedForm) -> None:
        """Compute the digest of a form, independent of the order of its text fields and of the boundary."""
        if self.is_named:
            files = [(file.field, await _hash_file(file)) for file in form.files]  # the order of files may matter
            self._digest = self._hash(orjson.dumps((sorted(form.fields), files)))

    def _hash(self, body: bytes) -> str:
        return sha256(b"%b\n%b\n%b" % (self._operation.encode(), self._request.path.encode(), body)).hexdigest()

    async def begin_or_replay(self, inference: InferenceRequest) -> web.Response | None:
        """Return the stored response if the same request ran before. Otherwise record its start and return None.

        Nothing is recorded for a stream, or without a key. Raises ``InvalidRequest`` for a malformed key,
        ``RateLimited``, and the errors of ``IdempotencyService.begin``.
        """
        if not self.is_named:
            return None
        if not 0 < len(self._name) <= MAX_KEY_CHARS or not self._name.isascii() or not self._name.isprintable():
            raise InvalidRequest(f"'{HEADER}' must have 1 to {MAX_KEY_CHARS} printable characters", param=HEADER)
        if inference.stream:
            self._request[CONTEXT].warn(_STREAM_WARNING)
            return None
        services = self._request.app[SERVICES]
        # Checked before the database write: a client that repeats refused requests must not cause a write each time.
        await services.billing.quota.check_rate(self._request[CALLER])
        records = services.idempotency
        ctx = self._request[CONTEXT]
        own_record, earlier_record = await records.begin(ctx.caller.key.id, self._name, self._digest, ctx.id)
        if earlier_record is not None and earlier_record.state != "answered":
            lost_record, earlier_record = earlier_record, await self._find_job(earlier_record)
            if earlier_record is None:
                await records.claim_lost(own_record, lost_record)
        if earlier_record is not None:
            return _build_replay(earlier_record)
        self._own_record = own_record
        return None

    async def _find_job(self, lost_record: IdempotencyRecord) -> IdempotencyRecord | None:
        """Return a record whose answer is the job of an interrupted submission; None if there is no such job."""
        services = self._request.app[SERVICES]
        job = (
            await services.videos.jobs.store.find_by_request(lost_record.request_id)
            if OPERATIONS[self._operation].media == "video"
            else None
        )
        if job is None:
            return None
        body = orjson.dumps(build_video(job, find_status_words(self._request, job)))
        return attrs.evolve(lost_record, status=_OK_STATUS, media_type=_JSON_TYPE, body=body)

    async def keep(self, body: bytes, media_type: str = _JSON_TYPE) -> None:
        own_record, self._own_record = self._own_record, None
        if own_record is not None:
            await self._request.app[SERVICES].idempotency.record_answer(
                own_record, status=_OK_STATUS, media_type=media_type, body=body
            )

    async def mark_lost(self) -> None:
        own_record, self._own_record = self._own_record, None
        if own_record is not None:
            await self._request.app[SERVICES].idempotency.mark_lost(own_record)

    def hand_over(self) -> "IdempotencyKey":
        """Transfer the key to the task that completes the request. This object becomes inactive."""
        if not self.is_named:
            return self
        other_key = IdempotencyKey(self._request, self._operation, self._name)
        other_key._own_record, self._own_record = self._own_record, None
        return other_key

    def release(self) -> None:
        """Delete the record of a request that has kept no answer: the next one with this key begins anew."""
        own_record, self._own_record = self._own_record, None
        if own_record is not None:
            services = self._request.app[SERVICES]
            services.videos.jobs.tasks.start(services.idempotency.delete(own_record))


class _NoIdempotencyKey(IdempotencyKey):
    is_named = False

    def __init__(self) -> None: ...


NO_IDEMPOTENCY_KEY = _NoIdempotencyKey()


def _build_replay(earlier_record: IdempotencyRecord) -> web.Response:
    headers = {"Content-Type": earlier_record.media_type, "Idempotent-Replayed": "true"}
    return web.Response(status=earlier_record.status, body=earlier_record.body, headers=headers)


async def _hash_file(file: Upload) -> str:
    digest, offset = sha256(), 0
    while offset < file.size:
        piece = await file.spooled.read(offset, _PIECE_BYTES)
        if not piece:
            break
        await asyncio.to_thread(digest.update, piece)
        offset += len(piece)
    return digest.hexdigest()
