"""Owners of provider-side objects: an account may continue only its own, at the channel that made them."""

import asyncio
from collections.abc import Callable, Iterable

import attrs
import structlog

from gateway.background import await_tasks
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.kept_response import KeptResponse
from gateway.domain.request_log import ID_PREFIX
from gateway.domain.response_owner import MAX_ID_CHARS, RETENTION_MS, ResponseOwner
from gateway.errors import InvalidRequest, NotFound, StoreUnavailable
from gateway.formats.references.stored import StoredReference, list_stored_references
from gateway.large_work import call_on_loop
from gateway.memory_budget import Borrower
from gateway.routing.item_references import is_own
from gateway.routing.kept_responses import MAX_REFERENCED_RESPONSES, KeptResponses, Turn, make_response_not_found
from gateway.storage.response_owners import ResponseOwnerRepository

MAX_RECENT_OWNERS = 10_000
"""Maximum number of owners in memory: of responses being stored, and of recent ones likely to be continued."""
_MAX_MADE_IDS = 500
"""Maximum number of ids recorded per answer."""
_RESPONSES_OPERATION = "responses"
_PART_PREFIX = "part:"
"""Prefix for the ids of objects that a response has made, to distinguish them from response ids."""

log = structlog.stdlib.get_logger(__name__)


class ResponseOwners:
    """Finds and records the owner of each response, item, container or recording stored at a provider.

    ``pauses_s`` are the waits before each further lookup of an unknown id, because another node may be storing it.
    """

    def __init__(
        self,
        store: ResponseOwnerRepository,
        kept_responses: KeptResponses,
        clock: Callable[[], float],
        *,
        pauses_s: tuple[float, ...],
    ) -> None:
        self._store = store
        self._kept_responses = kept_responses
        self._clock = clock
        self.pauses_s = pauses_s
        self._recent_owners: dict[str, ResponseOwner] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def find(self, response_id: str, account_id: int) -> ResponseOwner | None:
        owner = (await self._find_all([response_id])).get(response_id)
        return owner if owner is not None and owner.account_id == account_id else None

    async def _find_all(self, ids: Iterable[str]) -> dict[str, ResponseOwner]:
        valid_ids = {response_id for response_id in ids if len(response_id) <= MAX_ID_CHARS}
        owner_by_id = {
            response_id: owner
            for response_id in valid_ids
            if (owner := self._recent_owners.get(response_id)) is not None
        }
        if len(owner_by_id) < len(valid_ids):
            owner_by_id |= await self._store.find_owners(valid_ids - owner_by_id.keys())
        return owner_by_id

    async def locate(self, response_id: str, account_id: int) -> KeptResponse | ResponseOwner | None:
        """Return an account's kept response, or the owner record of a response at a provider; None if unknown."""
        for pause_s in (None, *self.pauses_s):
            if pause_s is not None:
                await asyncio.sleep(pause_s)
            kept_response = await self._kept_responses.find(response_id, account_id)
            owner = kept_response if kept_response is not None else await self.find(response_id, account_id)
            if owner is not None:
                return owner
        return None

    async def forget(self, response_id: str) -> None:
        await await_tasks(self._writing)
        self._recent_owners.pop(response_id, None)
        await self._store.delete_owner(response_id)

    async def prepare(
        self, inference: InferenceRequest, account_id: int, request_id: str, borrower: Borrower
    ) -> InferenceRequest:
        """Return the request with the conversation that it continues, and with a callback that keeps the response.

        ``borrower`` borrows the memory for loaded responses. Raises ``NotFound`` if the previous response, or another
        object named at a provider, is unknown or another account's; ``InvalidRequest`` for too many references;
        ``RequestTooLarge``, ``Overloaded``.
        """
        responds = inference.operation == _RESPONSES_OPERATION
        if responds:
            inference = await self._kept_responses.inline_references(inference, account_id, borrower)
        if references := list_stored_references(inference.body, items=responds):
            inference = await self._check_names(inference, references, account_id)
        if not responds:
            return inference
        inference, turn = await self._check(inference, account_id, borrower)
        if not self._kept_responses.keeps(inference):
            return inference
        response_id = f"resp_{request_id.removeprefix(ID_PREFIX)}"
        kept_call = inference  # without `keep`, which would refer to itself
        loop = asyncio.get_running_loop()

        def keep(body: bytes) -> None:
            call_on_loop(loop, self._kept_responses.store_soon, response_id, account_id, kept_call, body, turn)

        return attrs.evolve(inference, keep=keep)

    async def _check_names(
        self, inference: InferenceRequest, references: list[StoredReference], account_id: int
    ) -> InferenceRequest:
        """Return the request bound to the channel of its objects, with the unknown objects as ``foreign``.

        Raises ``NotFound`` for another account's object or one at another channel, ``InvalidRequest`` for more than
        ``MAX_REFERENCED_RESPONSES`` ids.
        """
        references = [reference for reference in references if not is_own(reference.id)]
        ids = {f"{_PART_PREFIX}{reference.id}" for reference in references}
        if len(ids) > MAX_REFERENCED_RESPONSES:
            raise InvalidRequest(
                f"The request names more than {MAX_REFERENCED_RESPONSES} ids", param=references[0].param
            )
        owners = await self._find_all(ids)
        for pause_s in self.pauses_s:
            if len(owners) == len(ids):
                break
            await asyncio.sleep(pause_s)  # another node may be storing it
            owners = await self._find_all(ids)
        channel, foreign_objects = inference.channel, []
        for reference in references:
            owner = owners.get(f"{_PART_PREFIX}{reference.id}")
            if owner is None:
                foreign_objects += [] if reference.has_content else [(reference.field, reference.param)]
            elif owner.account_id != account_id or (channel and owner.channel != channel):
                raise make_not_found(reference.param)
            else:
                channel = owner.channel
        return attrs.evolve(inference, channel=channel, foreign_objects=tuple(foreign_objects))

    async def _check(
        self, inference: InferenceRequest, account_id: int, borrower: Borrower
    ) -> tuple[InferenceRequest, Turn | None]:
        """Return the request with the conversation that it continues, or bound to the channel that stores it.

        The second result is the request's addition to a conversation kept by the gateway; None if it continues none.

        Raises ``NotFound`` if the response is unknown, another account's or at another channel than the request's, and
        the errors of ``KeptResponses.extend``.
        """
        previous = inference.body.get("previous_response_id")
        if previous is None:
            return inference, None
        owner = await self.locate(previous, account_id)
        if owner is None:
            raise make_response_not_found(previous, "previous_response_id")
        if isinstance(owner, KeptResponse):
            return await self._kept_responses.extend(inference, owner, borrower)
        if inference.channel and inference.channel != owner.channel:
            raise make_response_not_found(previous, "previous_response_id")
        return attrs.evolve(inference, channel=owner.channel, earlier_tokens=owner.tokens), None

    def record_owner(
        self, response_id: str, account_id: int, channel: str, part_ids: Iterable[str] = (), *, tokens: int = 0
    ) -> None:
        """Record the owner of a response (with its ``tokens``) and of its objects ``part_ids``, in the background."""
        owners = dict.fromkeys(
            (response_id, *(f"{_PART_PREFIX}{part_id}" for part_id in part_ids)), ResponseOwner(account_id, channel)
        )
        owners[response_id] = ResponseOwner(account_id, channel, tokens)
        ids = [
            object_id
            for object_id in owners
            if object_id not in self._recent_owners and 0 < len(object_id) <= MAX_ID_CHARS
        ][:_MAX_MADE_IDS]
        if not ids:
            return
        new_owners = {object_id: owners[object_id] for object_id in ids}
        self._recent_owners |= new_owners
        while len(self._recent_owners) > MAX_RECENT_OWNERS:
            del self._recent_owners[next(iter(self._recent_owners))]
        task = asyncio.get_running_loop().create_task(self._keep(new_owners))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def sweep(self, now_ms: int) -> int:
        return await self._store.sweep_owners(now_ms - RETENTION_MS)

    async def close(self) -> None:
        await await_tasks(self._writing)

    async def _keep(self, owners: dict[str, ResponseOwner]) -> None:
        try:
            await self._store.add_owners(owners, int(self._clock() * 1000))
        except StoreUnavailable as error:
            channel = next(iter(owners.values())).channel
            log.warning("response_owner_not_stored", channel=channel, error=error.message)


def make_not_found(where: str, allow: str = "") -> NotFound:
    """Return the error for an id at ``where`` in the request that is not the account's.

    ``allow`` is the name in ``allow_fields`` with which a channel accepts such ids; empty: the message names none.
    """
    hint = f" (a channel takes ids that were made elsewhere with allow_fields = ['{allow}'])" if allow else ""
    message = f"'{where}' names nothing that this account has made through the gateway{hint}"
    return NotFound(message, param=where, should_retry=False)
