"""Conversion between providers' reasoning signatures and the ``encrypted_content`` of reasoning items.

Clients send reasoning items back unchanged. A prefix distinguishes the gateway's items from OpenAI's own: no provider
receives another provider's signature.
"""

from typing import Any

from gateway.formats.chat.model import ReasoningPart
from gateway.formats.chat.responses.compaction import COMPACTION_KINDS, SUMMARY_PREFIX, replace_summary

_SIGNED_PREFIX = "gateway:signed:"
_REDACTED_PREFIX = "gateway:redacted:"
UNSIGNED_PREFIX = "gateway:unsigned:"
"""Marks unsigned reasoning, which its provider may require back (DeepSeek: Thinking Mode, tool calls)."""
_GATEWAY_PREFIXES = (_SIGNED_PREFIX, _REDACTED_PREFIX, UNSIGNED_PREFIX, SUMMARY_PREFIX)
_ENCRYPTED_KINDS = ("reasoning", *COMPACTION_KINDS)


def build_signed(signature: str) -> str:
    """Return the ``encrypted_content`` for reasoning with a provider's signature."""
    return _SIGNED_PREFIX + signature


def build_redacted(data: str) -> str:
    """Return the ``encrypted_content`` for reasoning that the provider sends only in encrypted form."""
    return _REDACTED_PREFIX + data


def is_gateway_item(item: object) -> bool:
    """Return whether an input item is a reasoning or summary item written by the gateway."""
    if not isinstance(item, dict) or item.get("type") not in _ENCRYPTED_KINDS:
        return False
    content = item.get("encrypted_content")
    return isinstance(content, str) and content.startswith(_GATEWAY_PREFIXES)


def drop_gateway_items(items: Any) -> Any:
    """Return the input without the gateway's reasoning items, and with its summaries as text."""
    if not isinstance(items, list) or not any(map(is_gateway_item, items)):
        return items
    return [replace_summary(item) for item in items if not is_gateway_item(item) or item["type"] in COMPACTION_KINDS]


def parse_reasoning(text: str, content: str) -> ReasoningPart | None:
    """Build a reasoning part from an item's text and its ``encrypted_content``.

    Returns None if there is no text, and the content has no signature or reasoning that the gateway put there.
    """
    if content.startswith(_REDACTED_PREFIX):
        return ReasoningPart(redacted_data=content.removeprefix(_REDACTED_PREFIX))
    if content.startswith(_SIGNED_PREFIX):
        return ReasoningPart(text, content.removeprefix(_SIGNED_PREFIX))
    return ReasoningPart(text) if text else None
