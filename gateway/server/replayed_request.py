"""A kept request that is sent again, over another model or channel, for the caller who asks for it.

The body is the kept one with another model. It goes the way of a caller's own request: the checks of the key that pays,
routing, a reservation, failover and one row, which names the request that was sent again. The answer is not kept, nor
stored for a later request: a second copy would outlive a deletion of the first.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import orjson

from gateway.deferred import load
from gateway.domain import exact_json
from gateway.domain.account import Caller
from gateway.domain.attribution import find_attribution
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.kept_body import BodyPart
from gateway.domain.operation import Operation
from gateway.domain.request_log import RequestRecord
from gateway.errors import Conflict, NoHealthyChannel, NotFound, ProviderRateLimited, RateLimited
from gateway.frozen import frozen
from gateway.large_work import MAX_ON_LOOP, run_in_thread
from gateway.media.prompt_files import inline_files
from gateway.memory_budget import estimate_memory
from gateway.proxy import forward
from gateway.request_context import CopyOrigin
from gateway.routing.target_list import TargetList
from gateway.server.context import Services
from gateway.server.internal_request import DiscardedStream, InternalRequest

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Maximum size of what is shown of an answer. The whole answer is read and charged."""
MIB = 1024 * 1024
_PROVIDER_PAUSE_S = 1.0
"""The pause after a provider's rate limit that names none."""
_RESPONSES = "responses"
_BATCH_FIELD = "requests"
_PARSERS: Mapping[str, str] = {
    "chat": "formats.chat.openai.chat:parse_chat_inference",
    "completions": "formats.chat.openai.completions:parse_completions_inference",
    "embed_contents": "formats.embeddings.gemini_clients:parse_embed_inference",
    "embeddings": "formats.embeddings.openai:parse_embeddings_inference",
    "generate_content": "formats.chat.gemini.request:parse_generate_inference",
    "messages": "formats.chat.anthropic.request:parse_messages_inference",
    "moderations": "formats.moderations:parse_moderations_inference",
    "rerank": "formats.rerank:parse_rerank_inference",
    "responses": "formats.chat.responses.responses:parse_responses_inference",
}
"""The parsers of the operations that can be sent again: those of texts, with a body in JSON."""
_BATCH_PARSER = "formats.embeddings.gemini_clients:parse_batch_embed_inference"
_NAMED_OPERATIONS = frozenset({"embed_contents", "generate_content"})
"""Operations with the model in the path."""


@frozen
class ReplayedAnswer:
    """The row of a request that was sent again, and its answer.

    Attributes:
        cut: whether only the beginning of the answer is here.
        retry_after_s: when a request that was refused for now may be sent once more, in seconds; else None.
    """

    row: RequestRecord
    body: bytes = attrs.field(repr=False)
    media_type: str
    cut: bool
    retry_after_s: float | None = None


@attrs.define(eq=False)
class ReplayBody:
    """The body of a kept request, for another model.

    ``size`` is that of the kept JSON in bytes, ``memory`` an estimate of the bytes that it takes when parsed.
    """

    row: RequestRecord
    body: dict[str, Any] = attrs.field(repr=False)
    model: str
    size: int
    memory: int

    def parse(self) -> InferenceRequest:
        """Return the request, of which no provider keeps anything. Raises ``InvalidRequest``."""
        operation, body = self.row.operation, {name: value for name, value in self.body.items() if name != "store"}
        is_batch = operation == "embed_contents" and _BATCH_FIELD in body
        parse: Callable[..., InferenceRequest] = load(_BATCH_PARSER if is_batch else _PARSERS[operation])
        if operation == "generate_content":
            return parse(body, model=self.model, stream=self.row.stream)
        if operation in _NAMED_OPERATIONS:
            return parse(body, model=self.model)
        if operation == _RESPONSES:
            body = {name: value for name, value in body.items() if name != "background"} | {"store": False}
        return parse({**body, "model": self.model})


def build_replay(row: RequestRecord, part: BodyPart, model: str, *, allows_redacted: bool) -> ReplayBody:
    """Return the body to send again.

    Raises ``Conflict`` if the operation cannot be sent again, or if the kept body is cut, no JSON object or, unless
    ``allows_redacted``, redacted.
    """
    if row.operation == "realtime":
        raise Conflict("A realtime session cannot be sent again: its events answer each other")
    if row.operation not in _PARSERS:
        raise Conflict(f"Requests of {row.operation!r} cannot be sent again: only those of texts, with a body in JSON")
    if part.cut:
        raise Conflict("The body was kept without its middle (bodies.max_kb): it cannot be sent again")
    if part.redacted and not allows_redacted:
        raise Conflict(
            "Values of the body were replaced before it was kept, so it cannot be sent as it was. "
            "'allow_redacted' sends it with the marks that stand in their place",
            param="allow_redacted",
        )
    try:
        body = exact_json.loads(part.content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise Conflict("The kept body is no JSON object: it cannot be sent again")
    return ReplayBody(row, body, model, len(part.content), estimate_memory(part.content))


class CollectedStream(DiscardedStream):
    """Implements ``proxy.client_stream.ClientStream``: collects the beginning of a stream."""

    def __init__(self) -> None:
        self.media_type = ""
        self.pieces: list[bytes] = []
        self.size = 0

    def open(self, media_type: str, data: bytes) -> None:
        self.media_type = media_type
        self._add(data)

    def write(self, data: bytes, framed: bytes | None = None) -> bool:  # noqa: ARG002 - the interface's
        self._add(data)
        return False

    async def finish(self, data: bytes) -> None:
        self._add(data)

    def _add(self, data: bytes) -> None:
        if self.size < MAX_ANSWER_BYTES:
            self.pieces.append(data[: MAX_ANSWER_BYTES - self.size])
        self.size += len(data)


class ReplayedRequest(InternalRequest):
    """One request that is sent again.

    Args:
        channel: the only channel that may serve it; empty: any.
        low_priority: whether it leaves the last places of channels and limits to other requests.
    """

    def __init__(
        self, services: Services, caller: Caller, kept: ReplayBody, *, channel: str = "", low_priority: bool = False
    ) -> None:
        operation: Operation = kept.row.operation  # type: ignore[assignment]  # of a row, so any text
        unparsed = InferenceRequest(operation, kept.model, {}, stream=kept.row.stream)
        super().__init__(services, caller, unparsed, CopyOrigin(replay_of=kept.row.id))
        self._kept_body = kept
        self._channel = channel
        self._is_low_priority = low_priority
        self._answer = forward.ProviderAnswer(b"")
        self._is_cut = False
        self._retry_after_s: float | None = None

    async def replay(self) -> ReplayedAnswer:
        """Send the request; return its row and its answer: after a failure, an empty one or the part that came."""
        self.services.drain.active_count += 1
        try:
            await self.run()
        finally:
            self.services.drain.active_count -= 1
            if self.context.caller.key.loops is not None:
                self.services.open_loop_guard().note_end(self.context.id, self.context.record)
        row = self.context.record
        if row is None:
            raise RuntimeError("a request has ended without a record")
        return ReplayedAnswer(row, self._answer.body, self._answer.media_type, self._is_cut, self._retry_after_s)

    async def send(self) -> None:
        try:
            await self._send()
        except (RateLimited, NoHealthyChannel) as error:
            self._retry_after_s = error.retry_after_s
            raise
        except ProviderRateLimited as error:
            self._retry_after_s = error.provider_retry_after_s or _PROVIDER_PAUSE_S
            raise

    async def _send(self) -> None:
        context, services = self.context, self.services
        await self._prepare()
        context.caller = services.auth.api_keys.refresh(context.caller)  # its key may have changed meanwhile
        if context.caller.key.loops is not None:
            await services.open_loop_guard().check(context)
        context.route = services.routing.router.find_route_name(context.inference.model)
        context.target_list = targets = self._find_targets()
        if self._is_low_priority:
            targets.leave_room()
            services.billing.quota.check_low_priority(context.caller, context.inference)
        await services.billing.quota.admit(context, targets.rank())
        if context.inference.stream:
            client_stream = CollectedStream()
            try:
                await forward.stream(services.proxy, context, client_stream, settle=self.settle_stream)
            finally:
                self._take(b"".join(client_stream.pieces), client_stream.media_type, client_stream.size)
            return
        answer = await forward.fetch(services.proxy, context)
        self._take(answer.body[:MAX_ANSWER_BYTES], answer.media_type, len(answer.body))
        self.settle_answered()

    async def _prepare(self) -> None:
        """Parse the request, and load what it only names. Both count in the memory for loaded data."""
        context, services, kept = self.context, self.services, self._kept_body
        memory_loan = services.memory.lend(context)
        memory_loan.take(min(kept.memory, memory_loan.room), "The kept body")
        account_id, limit = context.caller.account.id, services.http.max_body_mb * MIB
        size = await inline_files(services.files.files, account_id, kept.body, memory_loan, size=kept.size, limit=limit)
        is_large = size > MAX_ON_LOOP
        inference = await run_in_thread(kept.parse) if is_large else kept.parse()
        context.inference = inference = attrs.evolve(inference, large=is_large)
        key = context.caller.key
        context.attribution = find_attribution({}, {}, services.live_config.attribution, key.user, key.tags)
        owners = services.routing.response_owners
        context.inference = await owners.prepare(inference, account_id, context.id, context)

    def _find_targets(self) -> TargetList:
        context, channel = self.context, self._channel
        router = self.services.routing.router
        if not channel:
            return router.route(context.caller, context.inference)
        try:
            return router.route(context.caller, attrs.evolve(context.inference, channel=channel))
        except NotFound:
            router.route(context.caller, context.inference)  # raises the error of a model that no channel serves
            raise NotFound(
                f"The channel {channel!r} does not serve the model {context.inference.model!r}", should_retry=False
            ) from None

    def _take(self, body: bytes, media_type: str, size: int) -> None:
        self._answer = forward.ProviderAnswer(body, media_type)
        self._is_cut = size > len(body)
