"""Keeps responses of the Responses API for clients if their providers do not: those that were translated.

A conversation that goes on is sent as a whole, so that any channel can serve it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import attrs
import structlog

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.kept_response import KeptResponse
from gateway.domain.response_owner import LONGEST_ID
from gateway.errors import InvalidRequest, NotFound, StoreUnavailable
from gateway.formats.openai.responses import parse_responses_call
from gateway.large_work import MAX_ON_LOOP, work_aside
from gateway.routing.item_references import find_responses, replace_references
from gateway.storage.encryption import DecryptionFailed
from gateway.storage.kept_responses import KeptResponseRepository

MOST_PENDING = 256
"""Responses on their way into the database."""
MAX_BYTES = 32 * 1024 * 1024
"""The longest conversation that is kept."""
MOST_REFERRED = 1_000
"""Responses whose items one request may refer to: each is read from the database."""
_DAY_MS = 24 * 3_600 * 1000
_TOO_LONG = "The conversation has become too long to be continued"

Body = dict[str, Any]

log = structlog.stdlib.get_logger(__name__)


class KeptResponses:
    """Keeps responses, finds them, and continues their conversations.

    Args:
        store: the kept responses.
        clock: Unix seconds.
        find_days: returns ``responses.keep_days``; 0 keeps nothing.
    """

    def __init__(
        self, store: KeptResponseRepository, clock: Callable[[], float], find_days: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._find_days = find_days
        self._writing: dict[str, asyncio.Task[None]] = {}

    def wants(self, call: InferenceRequest) -> bool:
        """Return whether the response to ``call`` is kept if the provider does not keep it."""
        return self._find_days() > 0 and call.body.get("store") is not False

    def note(self, response_id: str, account_id: int, call: InferenceRequest, body: bytes) -> None:
        """Keep a response, or what it has become. It is stored in the background."""
        if len(self._writing) >= MOST_PENDING:
            log.warning("response_not_kept", response_id=response_id, reason="too many responses wait for the database")
            return
        now_ms = int(self._clock() * 1000)
        expires_ms = now_ms + int(self._find_days() * _DAY_MS)
        response = KeptResponse(response_id, account_id, now_ms, expires_ms, body, b"")
        keeping = self._keep(response, call, self._writing.get(response_id))
        self._writing[response_id] = asyncio.get_running_loop().create_task(keeping)

    async def find(self, response_id: str, account_id: int) -> KeptResponse | None:
        """Return a response of the account; None if the gateway keeps none. Raises ``StoreUnavailable``."""
        if len(response_id) > LONGEST_ID:
            return None
        if (pending := self._writing.get(response_id)) is not None:
            await asyncio.shield(pending)
        try:
            found = await self._store.find_response(response_id)
        except DecryptionFailed as error:
            log.warning("response_unreadable", response_id=response_id, error=str(error))
            return None
        if found is None or found.account_id != account_id or found.expires_ms <= self._clock() * 1000:
            return None
        return found

    async def delete(self, response: KeptResponse) -> None:
        """Delete a response. Raises ``StoreUnavailable``."""
        await self.close()
        await self._store.delete_response(response.id)

    async def extend(self, call: InferenceRequest, before: KeptResponse) -> InferenceRequest:
        """Return the request with the conversation up to ``before`` in front of its own input."""
        if len(before.items) + len(before.body) > MAX_ON_LOOP or call.large:
            return attrs.evolve(await work_aside(_extend, call, before), large=True)
        return _extend(call, before)

    async def inline(self, call: InferenceRequest, account_id: int) -> InferenceRequest:
        """Return the request with kept items in place of references to them. Raises ``NotFound`` naming one."""
        wanted = find_responses(call.body.get("input"))
        if not wanted:
            return call
        if len(wanted) > MOST_REFERRED:
            message = f"'input' must not refer to items of more than {MOST_REFERRED} responses"
            raise InvalidRequest(message, param="input")
        found = [await self.find(response_id, account_id) for response_id in wanted]
        kept = [response for response in found if response is not None]
        if sum(len(response.body) for response in kept) > MAX_ON_LOOP or call.large:
            return attrs.evolve(await work_aside(_inline, call, kept), large=True)
        return _inline(call, kept)

    async def sweep(self, now_ms: int) -> int:
        """Delete the responses that have expired; how many. Raises ``StoreUnavailable``."""
        return await self._store.sweep_responses(now_ms)

    async def close(self) -> None:
        """Wait for what is being stored."""
        await asyncio.gather(*self._writing.values())

    async def _keep(self, response: KeptResponse, call: InferenceRequest, before: asyncio.Task[None] | None) -> None:
        """Store a response with its items, after its state before."""
        if before is not None:
            await before
        try:
            items = await work_aside(_write_items, call) if call.large else _write_items(call)
            if len(items) + len(response.body) > MAX_BYTES:
                log.warning("response_not_kept", response_id=response.id, reason="the conversation is too long")
            else:
                await self._store.put_response(attrs.evolve(response, items=items))
        except StoreUnavailable as error:
            log.warning("response_not_kept", response_id=response.id, reason=error.message)
        finally:
            if self._writing.get(response.id) is asyncio.current_task():  # no newer state is on its way
                del self._writing[response.id]


def make_missing(response_id: str, param: str | None = None) -> NotFound:
    """Return the error for a response that is unknown or of another account."""
    before = "Previous response" if param else "Response"
    return NotFound(f"{before} with id {response_id[:LONGEST_ID]!r} not found", param=param, should_retry=False)


def _extend(call: InferenceRequest, before: KeptResponse) -> InferenceRequest:
    output = exact_json.loads(before.body)["output"]
    items = [*exact_json.loads(before.items), *output, *_list_items(call.body.get("input"))]
    body = {name: value for name, value in call.body.items() if name != "previous_response_id"} | {"input": items}
    longer = attrs.evolve(parse_responses_call(body), continues=before.id)
    if longer.max_prompt_tokens > MAX_BYTES:
        raise InvalidRequest(_TOO_LONG, param="previous_response_id")
    return longer


def _inline(call: InferenceRequest, kept: list[KeptResponse]) -> InferenceRequest:
    items = replace_references(call.body["input"], kept)
    longer = parse_responses_call(call.body | {"input": items})
    if longer.max_prompt_tokens > MAX_BYTES:
        raise InvalidRequest(_TOO_LONG, param="input")
    return longer


def _write_items(call: InferenceRequest) -> bytes:
    return exact_json.dumps(_list_items(call.body.get("input")))


def _list_items(value: object) -> list[Body]:
    """Return the ``input`` of a request as items."""
    if isinstance(value, list):
        return value
    return [{"type": "message", "role": "user", "content": value}] if value else []
