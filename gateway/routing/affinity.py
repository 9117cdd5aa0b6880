"""Keeps a conversation on the channel, the provider key and the step of a route that answered last.

Providers cache prompts: a conversation that stays pays the price of cached tokens for all earlier turns. Few clients
name their conversation, so it is recognized by what does not change within one: model, system text, tools and the first
message of the user.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from gateway.domain.attribution import find_session
from gateway.domain.channel import Channel
from gateway.domain.inference_request import STORED_RESPONSES, InferenceRequest
from gateway.frozen import quick_frozen
from gateway.routing.channel_state import ChannelState, KeyState
from gateway.routing.load_balancer import AffinityMode
from gateway.routing.selection import Candidate
from gateway.routing.target import Attempt, Target
from gateway.routing.target_list import TargetList

MAX_CONVERSATIONS = 100_000
"""Conversations that are remembered, some 30 MB; the one whose last answer is oldest is forgotten first."""
_END_CHARS = 128
"""Characters of a text's beginning and of its end that are hashed: hashing the whole text would take longer than
everything else."""
_SYSTEM_CHARS = 256
"""Characters of a system text that are hashed. The end of the text may contain the time of day, while cached prompts
begin alike."""
_EXPIRED_AT_ONCE = 4
CHANGING_TEXT = "x-anthropic-billing-header:"
"""Beginning of a system text of Claude Code that differs in every request."""
_SYSTEM_FIELDS = ("system", "instructions", "systemInstruction")
_MESSAGE_FIELDS = ("messages", "input", "contents")
_SYSTEM_ROLES = frozenset({"system", "developer"})

ConversationKey = tuple[int, str | int]
"""The id of an account, and the conversation's name or hash."""


@quick_frozen
class Home:
    """The channel, key and model that answered a conversation last, and when (``at``, monotonic seconds).

    An edit of the channel ends the home.
    """

    channel: Channel
    key: KeyState
    model: str
    at: float


class ConversationMemory:
    """The homes of conversations, in the order of their last answers.

    ``keeps_s`` seconds after its last answer a conversation is forgotten: providers have dropped its prompt by then.
    At most ``max_conversations`` are remembered.
    """

    def __init__(self, max_conversations: int = MAX_CONVERSATIONS) -> None:
        self._max_conversations = max_conversations
        self._homes: dict[ConversationKey, Home] = {}
        self._conversations: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, key: ConversationKey, now_s: float, keeps_s: float) -> Home | None:
        """Return the home of a conversation. None if it is new, or forgotten."""
        home = self._homes.get(key)
        return home if home is not None and now_s - home.at < keeps_s else None

    def store(self, key: ConversationKey, home: Home, keeps_s: float) -> None:
        """Remember a conversation's home, and forget a few that are too old or too many."""
        self._forget(key)
        self._homes[key] = home
        name = home.channel.name
        self._conversations[name] = self._conversations.get(name, 0) + 1
        for _ in range(_EXPIRED_AT_ONCE):
            oldest = next(iter(self._homes))
            if len(self._homes) <= self._max_conversations and home.at - self._homes[oldest].at < keeps_s:
                break
            self._forget(oldest)

    def count(self, channel: str) -> int:
        """Return how many conversations have their home on a channel."""
        return self._conversations.get(channel, 0)

    def _forget(self, key: ConversationKey) -> None:
        home = self._homes.pop(key, None)
        if home is not None:
            name = home.channel.name
            self._conversations[name] -= 1
            if not self._conversations[name]:
                del self._conversations[name]


def keep_conversation(
    memory: ConversationMemory, targets: TargetList, inference: InferenceRequest, headers: Mapping[str, str]
) -> None:
    """Prefer the target that answered a request's conversation last, if the request belongs to one."""
    balancer = targets.load_balancer
    settings = balancer.settings
    key = find_conversation(targets.account_id, inference, headers, settings.affinity)
    if key is not None:
        continues = isinstance(key[1], str) or has_earlier_turn(inference)
        affinity = Affinity(memory, key, balancer.now, settings.affinity_s, continues=continues)
        targets.keep_conversation(affinity, f"{key[0]}:{key[1]}")


class Affinity:
    """The conversation of one request, and its home.

    A first message is remembered, and goes anywhere: thousands of requests may begin alike. Only a request with an
    earlier answer in its history, or with a name from its client, goes to the conversation's home (``continues``).

    ``key`` is the conversation's key. ``now_s`` and ``keeps_s``: see ``ConversationMemory``.
    """

    def __init__(
        self, memory: ConversationMemory, key: ConversationKey, now_s: float, keeps_s: float, *, continues: bool
    ) -> None:
        self.continues = continues
        self._memory = memory
        self._key = key
        self._keeps_s = keeps_s
        self._home = memory.find(key, now_s, keeps_s)

    @property
    def is_new(self) -> bool:
        return self._home is None

    def find_target(self, targets: Sequence[Target]) -> Target | None:
        """Return the target at the conversation's home.

        None if there is no home, if no target is there, or if the request begins the conversation.
        """
        home = self._home
        if home is None or not self.continues:
            return None
        return next(
            (target for target in targets if target.channel is home.channel and target.model == home.model), None
        )

    def find_key(self, state: ChannelState) -> KeyState | None:
        """Return the provider key at the conversation's home.

        None if there is no home, if it is on another channel, or if the request begins the conversation.
        """
        home = self._home
        return home.key if home is not None and self.continues and home.channel is state.channel else None

    def count_conversations(self, candidates: Sequence[Candidate[Target]]) -> list[Candidate[Target]]:
        """Return the candidates with their conversations as load, so weights divide conversations, not requests."""
        return [attrs.evolve(candidate, running=self._memory.count(candidate.name)) for candidate in candidates]

    def note_started(self, attempt: Attempt, now_s: float) -> None:
        """Remember the first attempt of a new conversation: its next request may come before the answer.

        The attempt records whether the conversation is new, kept at its home or moved.
        """
        home = self._home
        if home is None:
            attempt.affinity = "new"
            self._store(attempt, now_s)
        elif self.continues:
            used_target = attempt.channel, attempt.slot.key, attempt.target.model
            attempt.affinity = "kept" if used_target == (home.channel, home.key, home.model) else "moved"

    def note_answered(self, attempt: Attempt, now_s: float) -> None:
        """Remember the attempt's channel, key and model as the conversation's home."""
        self._store(attempt, now_s)

    def _store(self, attempt: Attempt, now_s: float) -> None:
        home = Home(attempt.channel, attempt.slot.key, attempt.target.model, now_s)
        self._memory.store(self._key, home, self._keeps_s)


def find_conversation(
    account_id: int, inference: InferenceRequest, headers: Mapping[str, str], mode: AffinityMode
) -> ConversationKey | None:
    """Return the key of a request's conversation.

    None if ``mode`` is "off", if the request continues a stored response, or if ``mode`` is "header" and the client
    names no conversation.
    """
    if mode == "off" or inference.affinity_key == STORED_RESPONSES:
        return None
    session = find_session(headers, inference.body)
    if session:
        return account_id, session
    if mode == "header":
        return None if inference.affinity_key is None else (account_id, inference.affinity_key)
    return account_id, hash_conversation(inference)


def has_earlier_turn(inference: InferenceRequest) -> bool:
    """Return whether the first message that is not a system message is followed by another one.

    If so, the conversation began before this request.
    """
    body = inference.body
    messages = _find_messages(body)
    if not isinstance(messages, list):
        return False
    last = len(messages) - 1
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _SYSTEM_ROLES:
            return index < last
    return False


def hash_conversation(inference: InferenceRequest) -> int:
    """Hash what does not change within a conversation, equally on all nodes. Conversations of one hash share a home."""
    body = inference.body
    system_texts = [_find_text(body[name])[:_SYSTEM_CHARS] for name in _SYSTEM_FIELDS if name in body]
    parts = [inference.model, *system_texts]
    if "tools" in body and (tools := body["tools"]) and isinstance(tools, list):
        parts.append(f"{len(tools)}{_find_name(tools[0])}")
    messages = _find_messages(body)
    for message in messages if isinstance(messages, list) else ({"content": messages},):
        if not isinstance(message, dict):
            break
        text = _find_text(message["content"] if "content" in message else message.get("parts"))
        role = message.get("role")
        if isinstance(role, str) and role in _SYSTEM_ROLES:
            parts.append(text[:_SYSTEM_CHARS])
        else:
            parts.append(text if len(text) <= _END_CHARS else f"{len(text)}{text[:_END_CHARS]}{text[-_END_CHARS:]}")
            break
    return zlib.crc32("\0".join(parts).encode("utf-8", "surrogatepass"))


def _find_messages(body: Mapping[str, Any]) -> Any:
    for name in _MESSAGE_FIELDS:
        if name in body:
            return body[name]
    return None


def _find_name(tool: Any) -> str:
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    return str((function if isinstance(function, dict) else tool).get("name"))[:64]


def _find_text(content: Any) -> str:
    """Return the first text of a message or a system text that stays the same in every turn; empty without one."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return _find_text(content.get("text", content.get("parts")))
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            text = _find_text(part)
        if text and not text.startswith(CHANGING_TEXT):
            return text
    return ""
