"""Build content blocks of Bedrock's Converse API from those of Anthropic's Messages API.

Shapes: docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ContentBlock.html and the types linked there.
"""

import re
from base64 import b64encode
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.chat.anthropic.request_writer import build_call_id
from gateway.formats.chat.valid_chat import OPENING_TEXT

Body = dict[str, Any]

MAX_NAME_CHARS = 64
"""Maximum length of a tool's name and of a tool call id."""
EMPTY_RESULT_TEXT = "(no output)"
"""The text for an empty tool result. Some models reject an empty result. All models reject a blank text, and a failed
result without a text (pydantic/pydantic-ai, issue 6115; strands-agents/harness-sdk, issue 2122;
NousResearch/hermes-agent, issue 55092).
"""
_MAX_DOCUMENT_NAME_CHARS = 150
_FORBIDDEN_CHARS = re.compile(r"[^A-Za-z0-9 ()\[\]-]+")
_REPEATED_SPACES = re.compile(r" {2,}")


def build_cache_point(block: Body, *, is_allowed: bool) -> list[Body]:
    """Return a list with the cache point that ends the cached part.

    The list is empty if ``block`` has no cache control, or if the model supports no cache points (``is_allowed``).
    """
    cache_control = block.get("cache_control")
    if not is_allowed or not isinstance(cache_control, dict):
        return []
    ttl = {"ttl": cache_control["ttl"]} if cache_control.get("ttl") == "1h" else {}
    return [{"cachePoint": {"type": "default"} | ttl}]


def _fit_call_id(call_id: str) -> str:
    """Return a tool call id of permitted length. A digest at the end of a shortened id keeps ids distinct."""
    return call_id if len(call_id) <= MAX_NAME_CHARS else build_call_id(f":{call_id}")


class BlockWriter:
    """Writes the blocks of one request.

    Attributes:
        takes_cache_points: whether the model is Claude or Nova. Only these support cache points and the status of
            failed tool results.
        called_names: names of the tools that earlier turns called.
    """

    def __init__(self, *, takes_cache_points: bool) -> None:
        self.takes_cache_points = takes_cache_points
        self.called_names: dict[str, None] = {}
        self._document_names: set[str] = set()

    def build_turn(self, turn: Body) -> Body:
        """Build a message. A text is added to a message that has a document but no text, as the API requires.

        Raises ``InvalidRequest`` for an image or file by URL.
        """
        content = self.build_blocks(turn["content"])
        if any("document" in block for block in content) and not any("text" in block for block in content):
            content.append({"text": OPENING_TEXT})
        return {"role": turn["role"], "content": content}

    def build_blocks(self, content: str | list[Body]) -> list[Body]:
        """Build blocks, each with its cache point, if any, behind it.

        Raises ``InvalidRequest`` for an image or file by URL.
        """
        if isinstance(content, str):
            return [{"text": content}]
        blocks: list[Body] = []
        for block in content:
            blocks += [self._build_block(block), *build_cache_point(block, is_allowed=self.takes_cache_points)]
        return blocks

    def _build_block(self, block: Body) -> Body:
        match block["type"]:
            case "text":
                return {"text": block["text"]}
            case "image":
                return _build_image(block["source"])
            case "document":
                return self._build_document(block)
            case "tool_use":
                return self._build_call(block)
            case "tool_result":
                return self._build_result(block)
        return _build_reasoning(block)

    def _build_call(self, block: Body) -> Body:
        name = block["name"]
        self.called_names[name] = None
        return {"toolUse": {"toolUseId": _fit_call_id(block["id"]), "name": name, "input": block["input"]}}

    def _build_result(self, block: Body) -> Body:
        content = block.get("content", [])
        parts = [{"text": content}] if isinstance(content, str) else [self._build_block(part) for part in content]
        result: Body = {
            "toolUseId": _fit_call_id(block["tool_use_id"]),
            "content": parts or [{"text": EMPTY_RESULT_TEXT}],
        }
        if block.get("is_error") and self.takes_cache_points:
            result["status"] = "error"
        return {"toolResult": result}

    def _build_document(self, block: Body) -> Body:
        source = block["source"]
        document: Body = {"name": self._make_document_name(block.get("title"))}
        match source["type"]:
            case "base64":
                document |= {"format": "pdf", "source": {"bytes": source["data"]}}
            case "text":
                document |= {"format": "txt", "source": {"bytes": b64encode(source["data"].encode()).decode()}}
            case _:
                raise InvalidRequest("This provider accepts files only as data, not by address", param="messages")
        return {"document": document}

    def _make_document_name(self, title: str | None) -> str:
        plain_name = (
            _REPEATED_SPACES.sub(" ", _FORBIDDEN_CHARS.sub("-", title or "")).strip()[:_MAX_DOCUMENT_NAME_CHARS].strip()
        )
        name = plain_name or "document"
        number = 1
        while name in self._document_names:
            number += 1
            name = f"{plain_name or 'document'} {number}"
        self._document_names.add(name)
        return name


def _build_reasoning(block: Body) -> Body:
    if block["type"] == "redacted_thinking":
        return {"reasoningContent": {"redactedContent": block["data"]}}
    return {"reasoningContent": {"reasoningText": {"text": block["thinking"], "signature": block["signature"]}}}


def _build_image(source: Body) -> Body:
    if source["type"] != "base64":
        raise InvalidRequest("This provider accepts images only as data, not by address", param="messages")
    return {"image": {"format": source["media_type"].partition("/")[2], "source": {"bytes": source["data"]}}}
