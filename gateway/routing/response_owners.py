"""Keeps what one account continues apart from what others have made, and at the channel that has made it."""

import asyncio
from collections.abc import Callable

import attrs
import structlog

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.kept_response import KeptResponse
from gateway.domain.request_log import ID_PREFIX
from gateway.domain.response_owner import KEPT_MS, LONGEST_ID, ResponseOwner
from gateway.errors import NotFound, StoreUnavailable
from gateway.memory_budget import Borrower
from gateway.routing.kept_responses import KeptResponses, Turn, make_missing
from gateway.storage.response_owners import ResponseOwnerRepository

MOST_RECENT = 10_000
"""Owners in memory: of responses that are on their way into the store, and of those that are likely to go on."""

log = structlog.stdlib.get_logger(__name__)


class ResponseOwners:
    """Knows whose each stored response is.

    Args:
        store: where that is kept.
        kept: responses that the gateway keeps itself.
        clock: Unix seconds.

    Attributes:
        pauses_s: how long ``locate`` waits before it looks again: another node may be storing what it looks for.
    """

    def __init__(self, store: ResponseOwnerRepository, kept: KeptResponses, clock: Callable[[], float]) -> None:
        self._store = store
        self._kept = kept
        self._clock = clock
        self.pauses_s: tuple[float, ...] = ()
        self._recent: dict[str, ResponseOwner] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def find(self, response_id: str, account_id: int) -> ResponseOwner | None:
        """Return the owner of a response if that is the account. Raises ``StoreUnavailable``."""
        owner = self._recent.get(response_id) or await self._store.find_owner(response_id)
        return owner if owner is not None and owner.account_id == account_id else None

    async def locate(self, response_id: str, account_id: int) -> KeptResponse | ResponseOwner | None:
        """Return a response that the gateway keeps, or the owner of another one; None if the account has neither.

        Raises ``StoreUnavailable``.
        """
        for pause_s in (None, *self.pauses_s):
            if pause_s is not None:
                await asyncio.sleep(pause_s)
            kept = await self._kept.find(response_id, account_id)
            found = kept if kept is not None else await self.find(response_id, account_id)
            if found is not None:
                return found
        return None

    async def forget(self, response_id: str) -> None:
        """Forget a response that its provider has deleted. Raises ``StoreUnavailable``."""
        await asyncio.gather(*self._writing)
        self._recent.pop(response_id, None)
        await self._store.delete_owner(response_id)

    async def prepare(
        self, call: InferenceRequest, account_id: int, request_id: str, borrower: Borrower
    ) -> InferenceRequest:
        """Return the request with the conversation that it continues, and with what keeps the response.

        ``borrower`` is lent the memory for what is loaded. Raises ``NotFound`` if the response before it, or an item
        that it refers to, is unknown or of another account; ``RequestTooLarge``, ``Overloaded``.
        """
        call, turn = await self._check(await self._kept.inline(call, account_id, borrower), account_id, borrower)
        if not self._kept.wants(call):
            return call
        response_id = f"resp_{request_id.removeprefix(ID_PREFIX)}"
        kept = call  # without `keep`, which would refer to itself

        def keep(body: bytes) -> None:
            self._kept.note(response_id, account_id, kept, body, turn)

        return attrs.evolve(call, keep=keep)

    async def _check(
        self, call: InferenceRequest, account_id: int, borrower: Borrower
    ) -> tuple[InferenceRequest, Turn | None]:
        """Return the request with the conversation that it continues, or bound to the channel that has that.

        With it, what the request adds to a conversation that the gateway keeps; None: it continues none.

        Raises ``NotFound`` if the response is unknown or of another account, or if the request names a conversation.
        """
        conversation = call.body.get("conversation")
        if conversation is not None:
            raise NotFound("Conversation not found", param="conversation", should_retry=False)
        previous = call.body.get("previous_response_id")
        if previous is None:
            return call, None
        found = await self.locate(previous, account_id)
        if found is None:
            raise make_missing(previous, "previous_response_id")
        if isinstance(found, KeptResponse):
            return await self._kept.extend(call, found, borrower)
        return attrs.evolve(call, channel=found.channel), None

    def note(self, response_id: str, account_id: int, channel: str) -> None:
        """Record the owner of a new response. It is stored in the background."""
        if response_id in self._recent or len(response_id) > LONGEST_ID:
            return
        owner = self._recent[response_id] = ResponseOwner(account_id, channel)
        if len(self._recent) > MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        task = asyncio.get_running_loop().create_task(self._keep(response_id, owner))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def sweep(self, now_ms: int) -> int:
        """Forget responses that their providers keep no longer; how many. Raises ``StoreUnavailable``."""
        return await self._store.sweep_owners(now_ms - KEPT_MS)

    async def close(self) -> None:
        """Wait for what is being stored."""
        await asyncio.gather(*self._writing)

    async def _keep(self, response_id: str, owner: ResponseOwner) -> None:
        try:
            await self._store.add_owner(response_id, owner, int(self._clock() * 1000))
        except StoreUnavailable as error:
            log.warning("response_owner_not_stored", channel=owner.channel, error=error.message)
