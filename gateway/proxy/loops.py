"""Refuses a conversation that a client sends again and again: an agent in a loop spends until its budget is used up.

Only requests count that were answered or still run. Clients rightly repeat a request that was refused or failed. The
client libraries of OpenAI and Anthropic do so by themselves after a 408, 409, 429 or 5xx and after a broken connection.
Requests for other end users or in other sessions belong to other conversations. Each process counts on its own.
"""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from time import monotonic
from typing import Any

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.loop_rule import LoopRule
from gateway.domain.operation import OPERATIONS
from gateway.domain.request_log import RequestRecord
from gateway.errors import LoopDetected
from gateway.large_work import run_in_thread
from gateway.request_context import RequestContext
from gateway.routing.affinity import CHANGING_TEXT

MAX_CONVERSATIONS = 50_000
"""Conversations that are remembered, some 15 MB; the one whose last request is oldest is forgotten first."""
_DIGEST_BYTES = 16
_ID_FIELDS = frozenset(
    {"id", "call_id", "tool_call_id", "tool_use_id", "item_id", "cache_control", "signature", "thoughtSignature",
     "encrypted_content", "status"}
)  # fmt: skip
"""Fields of a message and its parts whose values may differ in an unchanged conversation."""
_INNER_FIELDS = frozenset({"content", "parts", "tool_calls", "functionCall", "functionResponse"})
"""Fields with parts of a message. The arguments of tools stay as they are: an ``id`` in them is input of the tool."""
_OTHER_FIELDS = frozenset({"previous_response_id", "conversation", "response_format", "generationConfig", "seed"})
"""Fields besides the prompt that distinguish requests for different answers."""
_UNANSWERED_OUTCOMES = frozenset({"refused", "failed", "blocked", "interrupted", "cancelled"})


class LoopGuard:
    """The conversations of keys with ``loops``, in the order in which they were sent. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic, max_conversations: int = MAX_CONVERSATIONS) -> None:
        self._clock = clock
        self._max_conversations = max_conversations
        self._times_by_digest: dict[bytes, list[float]] = {}
        self._running: dict[str, tuple[bytes, float]] = {}

    def __len__(self) -> int:
        return len(self._times_by_digest)

    async def check(self, ctx: RequestContext) -> None:
        """Count a request of a conversation. Raises ``LoopDetected`` if the key's rule forbids to send it once more.

        ``note_end`` has to be called afterwards. A request with ``n`` wants several answers to the same prompt, so it
        does not count.
        """
        rule, inference = ctx.caller.key.loops, ctx.inference
        if rule is None or not OPERATIONS[inference.operation].conversation or inference.choices > 1:
            return
        arguments = (inference, ctx.caller.key.id, *ctx.attribution[:2])
        digest = (
            await run_in_thread(digest_conversation, *arguments) if inference.large else digest_conversation(*arguments)
        )
        self._running[ctx.id] = digest, self._count(digest, rule)

    def _count(self, digest: bytes, rule: LoopRule) -> float:
        now = self._clock()
        times = [counted_at for counted_at in self._times_by_digest.pop(digest, ()) if now - counted_at < rule.window_s]
        is_loop = len(times) >= rule.same_prompt
        if not is_loop:
            times.append(now)
        self._times_by_digest[digest] = times
        if len(self._times_by_digest) > self._max_conversations:
            del self._times_by_digest[next(iter(self._times_by_digest))]
        if is_loop:
            wait_s = max(1, round(times[-rule.same_prompt] + rule.window_s - now))
            raise LoopDetected(
                f"This conversation was sent {len(times)} times within {rule.window_s} s, unchanged: the client seems "
                f"to repeat itself. This API key allows {rule.same_prompt}.",
                retry_after_s=wait_s,
            )
        return now

    def note_end(self, request_id: str, record: RequestRecord | None) -> None:
        """End a request. A request that got no answer no longer counts."""
        digest, counted_at = self._running.pop(request_id, (b"", 0.0))
        times = self._times_by_digest.get(digest)
        if times is None or counted_at not in times or record is None:
            return
        if record.outcome in _UNANSWERED_OUTCOMES or record.first_byte_ms is None:
            times.remove(counted_at)
            if not times:
                del self._times_by_digest[digest]


def digest_conversation(inference: InferenceRequest, key_id: int, end_user: str, session: str) -> bytes:
    """Return a hash of the key, the end user, the session, the model and the whole prompt, from which ids are left out.

    It also covers other fields that distinguish requests for different answers.
    """
    body, prompt = inference.body, OPERATIONS[inference.operation].prompt
    prompt_fields = {
        name: _strip(body[name]) if name in prompt else body[name]
        for name in sorted((prompt | _OTHER_FIELDS) & body.keys())
    }
    content = exact_json.dumps([key_id, end_user, session, inference.model, prompt_fields])
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _strip(value: Any) -> Any:
    """Return a message, its parts or a list of them without ids, and without texts that differ in every request."""
    if isinstance(value, list):
        return [_strip(item) for item in value if not _is_changing_text(item)]
    if isinstance(value, Mapping):
        return {
            name: _strip(item) if name in _INNER_FIELDS else item
            for name, item in value.items()
            if name not in _ID_FIELDS
        }
    return value


def _is_changing_text(part: object) -> bool:
    """Return whether a part of a system text differs in every request."""
    text = part.get("text") if isinstance(part, Mapping) else None
    return isinstance(text, str) and text.startswith(CHANGING_TEXT)
