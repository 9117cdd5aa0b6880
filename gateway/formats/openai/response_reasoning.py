"""A provider's signature of reasoning as the ``encrypted_content`` of a reasoning item, and back.

Clients send reasoning items back unchanged. A mark tells the gateway's items from OpenAI's own: neither provider may
get the other's.
"""

from typing import Any

from gateway.formats.chat import ReasoningPart
from gateway.formats.openai.compaction import KINDS, SUMMARY, replace_summary

_SIGNED = "gateway:signed:"
_REDACTED = "gateway:redacted:"
UNSIGNED = "gateway:unsigned:"
"""Reasoning of a provider that signs none, which it requires back (DeepSeek: Thinking Mode, tool calls)."""
_OWN = (_SIGNED, _REDACTED, UNSIGNED, SUMMARY)
_SEALED = ("reasoning", *KINDS)


def build_signed(signature: str) -> str:
    """Return the encrypted content of reasoning with a provider's signature."""
    return _SIGNED + signature


def build_redacted(data: str) -> str:
    """Return the encrypted content of reasoning that the provider shows only encrypted."""
    return _REDACTED + data


def is_own(item: object) -> bool:
    """Return whether an input item is reasoning or a summary that the gateway has written."""
    if not isinstance(item, dict) or item.get("type") not in _SEALED:
        return False
    content = item.get("encrypted_content")
    return isinstance(content, str) and content.startswith(_OWN)


def drop_own(items: Any) -> Any:
    """Return the input of a request without the gateway's reasoning items, and its summaries as text.

    The same object if it has none.
    """
    if not isinstance(items, list) or not any(map(is_own, items)):
        return items
    return [replace_summary(item) for item in items if not is_own(item) or item["type"] in KINDS]


def parse_reasoning(text: str, content: str) -> ReasoningPart | None:
    """Build the reasoning part of a text and an encrypted content; None if nothing in it can be sent.

    OpenAI's own encrypted content means nothing to another provider.
    """
    if content.startswith(_REDACTED):
        return ReasoningPart(redacted=content.removeprefix(_REDACTED))
    if content.startswith(_SIGNED):
        return ReasoningPart(text, content.removeprefix(_SIGNED))
    return ReasoningPart(text) if text else None
