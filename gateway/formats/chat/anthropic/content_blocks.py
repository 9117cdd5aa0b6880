"""Build the content blocks of Anthropic's Messages API from events, for a stream or for an unstreamed message.

Delta types: platform.claude.com/docs/en/build-with-claude/streaming.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from gateway.formats.chat import model as chat

ID_PREFIX = "msg_"
_BLOCK_BYTES = 1_024
_DELTA_BYTES = 256
_FRAGMENT_BYTES = 64
"""Approximate memory of a block, of a delta and of a piece of arguments, without their texts."""
_DELTA_HEAD = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{%b'
_DELTA_FIELDS: Mapping[str, bytes] = {
    "text": b'"type":"text_delta","text":',
    "thinking": b'"type":"thinking_delta","thinking":',
    "tool_use": b'"type":"input_json_delta","partial_json":',
}


@attrs.define(eq=False)
class Block:
    """One content block under construction.

    Attributes:
        start: the block as written at its start.
        deltas: deltas that the writer has not taken yet.
        is_started: whether the writer has written ``start``.
        pending_bytes: approximate bytes of ``deltas``.
        block_bytes: approximate bytes of the block with its ``arguments``.
    """

    start: dict[str, Any]
    deltas: list[dict[str, Any]] = attrs.Factory(list)
    arguments: list[str] = attrs.Factory(list)
    is_complete: bool = False
    is_started: bool = False
    pending_bytes: int = 0
    block_bytes: int = 0

    @property
    def kind(self) -> object:
        return self.start["type"]


class ContentBlockBuilder:
    """Builds consecutive content blocks from events.

    The OpenAI API format may interleave tool calls; this format does not allow that. A block is therefore complete when
    another begins, but a tool call only if its arguments are complete by then. Otherwise it ends with the answer.

    Attributes:
        blocks: in the order of their starts; the writer removes them from the left.
        delta_head: the beginning of a delta event, up to its text; empty unless the only block is open and its start
            has been written.
        held_bytes: approximate bytes of ``blocks``.
    """

    __slots__ = ("_calls", "_id_suffix", "_signature", "blocks", "delta_head", "has_calls", "held_bytes")

    def __init__(self, message_id: str) -> None:
        self._id_suffix = message_id.removeprefix(ID_PREFIX)
        self._calls: dict[int, Block] = {}
        self._signature: str | None = None  # the last signature; None if there was no reasoning
        self.blocks: deque[Block] = deque()
        self.has_calls = False
        self.delta_head = b""
        self.held_bytes = 0

    def add_event(self, event: chat.Event) -> None:
        """Add ``event`` to its block, a new one if needed. Events of all answers but the first are ignored."""
        self.delta_head = b""
        match event:
            case chat.TextDelta(choice=0) | chat.RefusalDelta(choice=0) if event.text:
                block = self._find_block({"type": "text", "text": ""})
                self._add_delta(block, {"type": "text_delta", "text": event.text}, event.text)
            case chat.ReasoningDelta(choice=0) if event.text:
                block = self._find_thinking_block()
                self._add_delta(block, {"type": "thinking_delta", "thinking": event.text}, event.text)
            case chat.ReasoningSignature(choice=0):
                self._add_signature(event.signature)
            case chat.RedactedReasoning(choice=0):
                self._open_block(Block({"type": "redacted_thinking", "data": event.data}, is_complete=True))
            case chat.ToolCallStart(choice=0):
                self._open_call(event)
            case chat.ToolCallDelta(choice=0) if event.arguments:
                self._add_arguments(event)

    def mark_shown(self, index: int) -> None:
        """Record that the stream's writer has written the first block, at ``index``, with all deltas so far."""
        if len(self.blocks) == 1:
            self.delta_head = _DELTA_HEAD % (index, _DELTA_FIELDS[self.blocks[0].start["type"]])

    def take_added_text(self, event: chat.Event) -> str:
        """Return the text that ``event`` adds to the only block, whose start is written; "" for any other event.

        The arguments of a tool call are recorded, too.
        """
        block = self.blocks[0]
        if type(event) is chat.TextDelta:
            return event.text if event.choice == 0 and block.start["type"] == "text" else ""
        if type(event) is chat.ReasoningDelta:
            return event.text if event.choice == 0 and block.start["type"] == "thinking" else ""
        if type(event) is not chat.ToolCallDelta or event.choice or self._calls.get(event.index) is not block:
            return ""
        self._record_arguments(block, event.arguments)
        return event.arguments

    def take_deltas(self, block: Block) -> list[dict[str, Any]]:
        self.held_bytes -= block.pending_bytes
        block.pending_bytes = 0
        deltas, block.deltas = block.deltas, []
        return deltas

    def remove_first(self) -> None:
        block = self.blocks.popleft()
        self.held_bytes -= block.pending_bytes + block.block_bytes

    def complete_blocks(self) -> None:
        self.delta_head = b""
        for block in self.blocks:
            block.is_complete = True
        self._calls.clear()

    def _add_delta(self, block: Block, delta: dict[str, Any], text: str) -> None:
        block.deltas.append(delta)
        block.pending_bytes += _DELTA_BYTES + len(text)
        self.held_bytes += _DELTA_BYTES + len(text)

    def _find_thinking_block(self) -> Block:
        # ``signature`` is a required field of the block, but its delta may never arrive.
        self._signature = self._signature or ""
        return self._find_block({"type": "thinking", "thinking": "", "signature": ""})

    def _add_signature(self, signature: str) -> None:
        block = self._find_thinking_block()
        self._add_delta(block, {"type": "signature_delta", "signature": signature}, signature)
        block.is_complete = True
        self._signature = signature

    def _find_block(self, start: dict[str, Any]) -> Block:
        if self.blocks:
            last_block = self.blocks[-1]
            if last_block.kind == start["type"] and not last_block.is_complete:
                return last_block
        return self._open_block(Block(start))

    def _open_block(self, block: Block) -> Block:
        if self.blocks:
            last_block = self.blocks[-1]
            last_block.is_complete = last_block.kind != "tool_use" or _is_valid_json(last_block.arguments)
        self.blocks.append(block)
        block.block_bytes += _BLOCK_BYTES + len(block.start.get("data", ""))
        self.held_bytes += block.block_bytes
        return block

    def _open_call(self, event: chat.ToolCallStart) -> None:
        # Gemini signs tool calls, which have no signature here. If the answer has reasoning, a further thinking block
        # carries the call's signature.
        signature = chat.GEMINI_PREFIX + (event.signature or "")
        if event.signature and self._signature is not None and signature != self._signature:
            self._add_signature(signature)
        call_id = event.id or f"toolu_{self._id_suffix}_{event.index}"
        self._calls[event.index] = self._open_block(
            Block({"type": "tool_use", "id": call_id, "name": event.name, "input": {}})
        )
        self.has_calls = True

    def _add_arguments(self, event: chat.ToolCallDelta) -> None:
        block = self._calls.get(event.index)
        if block is not None and not block.is_complete:
            self._record_arguments(block, event.arguments)
            self._add_delta(block, {"type": "input_json_delta", "partial_json": event.arguments}, event.arguments)

    def _record_arguments(self, block: Block, arguments: str) -> None:
        if arguments:
            block.arguments.append(arguments)
            block.block_bytes += _FRAGMENT_BYTES + len(arguments)
            self.held_bytes += _FRAGMENT_BYTES + len(arguments)


def _is_valid_json(arguments: list[str]) -> bool:
    try:
        orjson.loads("".join(arguments))
    except orjson.JSONDecodeError:
        return False
    return True
