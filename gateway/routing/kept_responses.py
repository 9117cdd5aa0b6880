"""Keeps responses of the Responses API that their providers do not store, because they were translated.

A continued conversation is sent as a whole, so that any channel can serve it. Before a request loads stored responses,
their sizes are read from the database and borrowed from the gateway's memory budget.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import structlog

from gateway.background import await_tasks
from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.kept_response import KeptResponse, KeptRules
from gateway.domain.response_owner import MAX_ID_CHARS
from gateway.errors import GatewayError, InvalidRequest, NotFound, RequestTooLarge
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.frozen import frozen
from gateway.large_work import MAX_ON_LOOP, run_by_size, run_in_thread
from gateway.memory_budget import Borrower, Loan, MemoryBudget, estimate_memory
from gateway.routing.item_references import find_responses, measure_references, read_output, replace_references
from gateway.storage.encryption import DecryptionFailed
from gateway.storage.kept_responses import KeptResponseRepository, ResponseTooLarge

MAX_PENDING = 256
"""Maximum number of responses that wait for the database."""
MAX_PENDING_BYTES = 64 * 1024 * 1024
"""Maximum bytes of these responses, including their prompts."""
MAX_REFERENCED_RESPONSES = 1_000
"""Maximum number of responses to whose items one request may refer: each is read from the database."""
MAX_TURNS = 100
"""Maximum number of responses read to continue a conversation. The next response is stored with the whole input."""
MAX_ACCOUNTS = 10_000
"""Maximum number of accounts whose stored bytes are cached."""
_MAX_GROUP_BYTES = 4 * MAX_ON_LOOP
"""Maximum memory of responses that are read together."""
_MAX_UNKNOWN_BYTES = 32 * 1024 * 1024
"""Maximum memory of responses that were stored by versions which did not store this figure."""
_MAX_COMPRESSION_RATIO = 1_032
"""zlib's maximum compression ratio (zlib's technical details, "Maximum Compression Factor")."""
_DAY_MS = 24 * 3_600 * 1000
_CONVERSATION_SUBJECT = "The conversation has become too long to be continued: it"
_ITEMS_SUBJECT = "What 'input' refers to"

Body = dict[str, Any]

log = structlog.stdlib.get_logger(__name__)


@frozen
class Turn:
    """A request's addition to a conversation: its own ``input`` after ``before_id``, the ``number``-th response."""

    before_id: str
    number: int
    input: object = attrs.field(repr=False)


class KeptResponses:
    """Keeps responses, finds them, and continues their conversations. ``find_rules`` returns the current rules."""

    def __init__(
        self,
        store: KeptResponseRepository,
        clock: Callable[[], float],
        find_rules: Callable[[], KeptRules],
        budget: MemoryBudget,
    ) -> None:
        self._store = store
        self._clock = clock
        self._find_rules = find_rules
        self._budget = budget
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._writing_bytes = 0
        self._stored_bytes_by_account: dict[int, int] = {}
        """Stored bytes by account, an upper bound: the database has fewer if responses were deleted since."""
        self._loading = asyncio.Lock()

    def keeps(self, inference: InferenceRequest) -> bool:
        """Return whether to keep the response to ``inference`` if the provider does not store it."""
        return self._find_rules().keep_days > 0 and inference.body.get("store") is not False

    def store_soon(
        self, response_id: str, account_id: int, inference: InferenceRequest, body: bytes, turn: Turn | None = None
    ) -> None:
        """Keep a response or its new state, stored in the background. ``turn`` has the request's new items.

        If too many responses wait for the database, this one is not kept.
        """
        size = len(body) + inference.max_prompt_tokens
        if len(self._writing) >= MAX_PENDING or (self._writing and self._writing_bytes + size > MAX_PENDING_BYTES):
            log.warning("response_not_kept", response_id=response_id, reason="too many responses wait for the database")
            return
        now_ms = int(self._clock() * 1000)
        expires_ms = now_ms + int(self._find_rules().keep_days * _DAY_MS)
        response = KeptResponse(response_id, account_id, now_ms, expires_ms, exact_json.trim(body))
        keeping = self._keep(response, inference, turn, self._writing.get(response_id))
        self._writing[response_id] = task = asyncio.get_running_loop().create_task(keeping)
        self._writing_bytes += size
        task.add_done_callback(lambda _: self._note_written(size))

    def _note_written(self, size: int) -> None:
        self._writing_bytes -= size

    async def find(self, response_id: str, account_id: int) -> KeptResponse | None:
        if len(response_id) > MAX_ID_CHARS:
            return None
        await self._await_written([response_id])
        return self._check_found(await self._store.find_response(response_id), account_id)

    async def load(self, response: KeptResponse, loan: Loan) -> KeptResponse | None:
        """Return a response with its body, whose memory is borrowed with ``loan``. None if it is gone or unreadable.

        Raises ``RequestTooLarge``, ``Overloaded``.
        """
        async with self._loading:
            loaded_responses = await self._load([response], loan, items=False)
        return loaded_responses[0] if loaded_responses else None

    async def load_items(self, response: KeptResponse, loan: Loan) -> list[Body]:
        """Return the input items of the conversation up to ``response``. Their memory is borrowed with ``loan``.

        Raises ``NotFound`` if a response is missing or unreadable, ``RequestTooLarge``, ``Overloaded``.
        """
        items, _ = await self._load_conversation(response, loan, "id", whole=False)
        return items

    async def delete(self, response: KeptResponse) -> None:
        await self.close()
        await self._store.delete_response(response.id, int(self._clock() * 1000))

    async def extend(
        self, inference: InferenceRequest, before: KeptResponse, borrower: Borrower
    ) -> tuple[InferenceRequest, Turn]:
        """Return the request with the conversation up to ``before`` prepended to its input, and its own addition.

        Raises ``NotFound`` if a response is missing or unreadable, ``RequestTooLarge``, ``Overloaded``.
        """
        loan = self._budget.lend(borrower)
        items, number = await self._load_conversation(before, loan, "previous_response_id", whole=True)
        turn = Turn(before.id, number, inference.body.get("input"))
        if loan.held_bytes > MAX_ON_LOOP or inference.large:
            return attrs.evolve(await run_in_thread(_extend, inference, before.id, items), large=True), turn
        return _extend(inference, before.id, items), turn

    async def inline_references(
        self, inference: InferenceRequest, account_id: int, borrower: Borrower
    ) -> InferenceRequest:
        """Return the request with references replaced by kept items.

        Raises ``NotFound`` for an unknown reference, ``InvalidRequest`` for items of more than
        ``MAX_REFERENCED_RESPONSES`` responses, ``RequestTooLarge`` or ``Overloaded`` without the memory for them.
        """
        references = inference.body.get("input")
        response_ids = find_responses(references)
        if not response_ids:
            return inference
        if len(response_ids) > MAX_REFERENCED_RESPONSES:
            message = f"'input' must not refer to items of more than {MAX_REFERENCED_RESPONSES} responses"
            raise InvalidRequest(message, param="input")
        await self._await_written(response_ids)
        responses = [
            response
            for response in await self._store.find_responses(response_ids)
            if self._check_found(response, account_id)
        ]
        loan = self._budget.lend(borrower)
        bodies_by_id: dict[str, Body] = {}
        async with self._loading:
            _borrow_memory(loan, responses, _ITEMS_SUBJECT, "input", items=False)
            for group in _group_by_size(responses):
                for loaded_response in await self._load(group, loan, items=False, taken=True):
                    bodies_by_id |= await run_by_size(len(loaded_response.body), read_output, loaded_response.body)
            # A repeated item is in memory once, but repeated in the provider's request.
            loan.take(await run_in_thread(measure_references, references, bodies_by_id), _ITEMS_SUBJECT, "input")
        if loan.held_bytes > MAX_ON_LOOP or inference.large:
            return attrs.evolve(await run_in_thread(_inline, inference, bodies_by_id), large=True)
        return _inline(inference, bodies_by_id)

    async def sweep(self, now_ms: int) -> int:
        return await self._store.sweep_responses(now_ms)

    async def close(self) -> None:
        await await_tasks(self._writing.values())

    async def _await_written(self, ids: Sequence[str] | frozenset[str]) -> None:
        if self._writing:
            write_tasks = [task for response_id in ids if (task := self._writing.get(response_id)) is not None]
            for task in write_tasks:
                await asyncio.shield(task)

    def _check_found(self, response: KeptResponse | None, account_id: int) -> KeptResponse | None:
        if response is None or response.account_id != account_id or response.expires_ms <= self._clock() * 1000:
            return None
        return response

    async def _load_conversation(
        self, last: KeptResponse, loan: Loan, param: str, *, whole: bool
    ) -> tuple[list[Body], int]:
        """Return the conversation's items, the oldest first, and the number of responses that were read.

        Args:
            last: the response whose items are the last ones.
            loan: lends the memory for the items.
            param: the parameter of the request that errors name.
            whole: whether the output of ``last`` is included.

        Raises:
            NotFound: an earlier response is missing, or a response cannot be read.
            RequestTooLarge: the conversation needs too much memory.
            Overloaded: other requests have borrowed the memory.
        """
        chain = await self._store.list_chain(last.id, MAX_TURNS + 1)
        if (
            not chain
            or chain[-1].before_id is not None
            or any(response.account_id != last.account_id for response in chain)
        ):
            message = f"A response before {last.id!r} is missing: send the whole conversation as 'input'"
            raise NotFound(message, param=param, should_retry=False)
        conversation: list[Body] = []
        async with self._loading:
            _borrow_memory(loan, chain, _CONVERSATION_SUBJECT, param, items=True)
            for group in _group_by_size(chain[::-1]):
                loaded_responses = await self._load(group, loan, items=True, taken=True)
                if len(loaded_responses) < len(group):
                    raise make_response_not_found(last.id, param)
                conversation += await run_in_thread(_read_turns, loaded_responses, None if whole else last.id)
        return conversation, len(chain)

    async def _load(
        self, responses: Sequence[KeptResponse], loan: Loan, *, items: bool, taken: bool = False
    ) -> list[KeptResponse]:
        """Load ``responses``; return none of them if one cannot be decrypted.

        Their memory is borrowed first, unless ``taken`` says that it is borrowed already. For old rows of unknown size
        as much as possible is borrowed, and corrected after loading. Raises ``RequestTooLarge``, ``Overloaded``.
        """
        if not taken:
            _borrow_memory(loan, responses, "The response", "id", items=items)
        room = max(_find_memory(response, items=True) or 0 for response in responses)
        unmeasured_responses = [response for response in responses if response.body_memory is None]
        if unmeasured_responses:
            room = min(
                _MAX_UNKNOWN_BYTES,
                loan.room,
                _MAX_COMPRESSION_RATIO * max(response.stored_bytes for response in unmeasured_responses),
            )
            loan.take(room, _CONVERSATION_SUBJECT)
        try:
            loaded_responses = await self._store.load(responses, room, items=items)
        except DecryptionFailed as error:
            log.warning("response_unreadable", response_id=responses[0].id, error=str(error))
            return []
        except ResponseTooLarge:
            raise RequestTooLarge("The conversation has become too long to be continued") from None
        if unmeasured_responses:
            loan.release(room)
            unmeasured_ids = {response.id for response in unmeasured_responses}
            sizes = [
                estimate_memory(response.body) + estimate_memory(response.items)
                for response in loaded_responses
                if response.id in unmeasured_ids
            ]
            loan.take(sum(sizes), _CONVERSATION_SUBJECT)
        return loaded_responses

    async def _keep(
        self, response: KeptResponse, inference: InferenceRequest, turn: Turn | None, before: asyncio.Task[None] | None
    ) -> None:
        """Store a response with its items, after its previous state is stored."""
        if before is not None:
            await before
        try:
            await self._put(response, inference, turn)
        except GatewayError as error:
            log.warning("response_not_kept", response_id=response.id, reason=error.message)
        finally:
            if self._writing.get(response.id) is asyncio.current_task():  # no newer state is waiting
                del self._writing[response.id]

    async def _put(self, response: KeptResponse, inference: InferenceRequest, turn: Turn | None) -> None:
        if turn is not None:
            await self._await_written([turn.before_id])
            if turn.number >= MAX_TURNS:
                turn = None
        stored = None
        while stored is None:
            own_input = inference.body.get("input") if turn is None else turn.input
            is_large = inference.large or len(response.body) > MAX_ON_LOOP
            sized_response = (
                await run_in_thread(_add_items, response, own_input) if is_large else _add_items(response, own_input)
            )
            needed_bytes = (sized_response.body_memory or 0) + (sized_response.items_memory or 0)
            if needed_bytes > self._budget.max_loan_bytes:
                raise RequestTooLarge("the conversation is too long")
            before_id = None if turn is None else turn.before_id
            stored = await self._store.put_response(attrs.evolve(sized_response, before_id=before_id))
            turn = None  # if the response before is gone, the next state has the whole conversation
        await self._make_room(stored)

    async def _make_room(self, response: KeptResponse) -> None:
        """Delete the account's oldest responses if it exceeds its maximum of stored bytes."""
        account_id, max_total_bytes = response.account_id, self._find_rules().max_total_bytes
        if not max_total_bytes:
            return
        stored_bytes = self._stored_bytes_by_account.get(account_id)
        stored_bytes = (
            await self._store.sum_account(account_id) if stored_bytes is None else stored_bytes + response.stored_bytes
        )
        if stored_bytes > max_total_bytes:
            stored_bytes = await self._store.make_room(account_id, int(self._clock() * 1000), max_total_bytes)
            log.info("responses_evicted", account=str(account_id), bytes=stored_bytes)
        if len(self._stored_bytes_by_account) >= MAX_ACCOUNTS:
            self._stored_bytes_by_account.clear()
        self._stored_bytes_by_account[account_id] = stored_bytes


def make_response_not_found(response_id: str, param: str | None = None) -> NotFound:
    """Return the error for a response that is unknown or of another account.

    ``param`` is the parameter that names a previous response; None for the response that the request is about.
    """
    before = "Previous response" if param else "Response"
    return NotFound(f"{before} with id {response_id[:MAX_ID_CHARS]!r} not found", param=param, should_retry=False)


def _find_memory(response: KeptResponse, *, items: bool) -> int | None:
    """Return the memory that a response needs. None if unknown."""
    if response.body_memory is None:
        return None
    return response.body_memory + ((response.items_memory or 0) if items else 0)


def _borrow_memory(loan: Loan, responses: Sequence[KeptResponse], subject: str, param: str, *, items: bool) -> None:
    """Borrow the memory that ``responses`` need, as far as known. Raises ``RequestTooLarge``, ``Overloaded``."""
    loan.take(sum(_find_memory(response, items=items) or 0 for response in responses), subject, param)


def _group_by_size(responses: Sequence[KeptResponse]) -> list[list[KeptResponse]]:
    """Group ``responses`` that are read together. A response of unknown size is in a group of its own."""
    groups: list[list[KeptResponse]] = []
    left_bytes = 0
    for response in responses:
        size = _find_memory(response, items=True)
        if size is None or size > left_bytes:
            groups.append([])
            left_bytes = _MAX_GROUP_BYTES
        groups[-1].append(response)
        left_bytes = 0 if size is None else left_bytes - size
    return groups


def _read_turns(loaded_responses: Sequence[KeptResponse], last_id: str | None) -> list[Body]:
    """Return the input and output items of the loaded responses, except the output of ``last_id``."""
    items: list[Body] = []
    for response in loaded_responses:
        items += exact_json.loads(response.items)
        if response.id != last_id:
            items += exact_json.loads(response.body)["output"]
    return items


def _extend(inference: InferenceRequest, before_id: str, items: list[Body]) -> InferenceRequest:
    longer_input = [*items, *_list_items(inference.body.get("input"))]
    body = {name: value for name, value in inference.body.items() if name != "previous_response_id"} | {
        "input": longer_input
    }
    return attrs.evolve(parse_responses_inference(body), continues=before_id, compaction=inference.compaction)


def _inline(inference: InferenceRequest, bodies_by_id: dict[str, Body]) -> InferenceRequest:
    body = inference.body | {"input": replace_references(inference.body["input"], bodies_by_id)}
    return attrs.evolve(parse_responses_inference(body), compaction=inference.compaction)


def _add_items(response: KeptResponse, value: object) -> KeptResponse:
    items = exact_json.dumps(_list_items(value))
    memory = estimate_memory(response.body), estimate_memory(items)
    return attrs.evolve(response, items=items, body_memory=memory[0], items_memory=memory[1])


def _list_items(value: object) -> list[Body]:
    if isinstance(value, list):
        return value
    return [{"type": "message", "role": "user", "content": value}] if value else []
