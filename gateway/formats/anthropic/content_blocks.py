"""The content blocks of Anthropic's Messages API, made from events: for a stream one after another, or all for a whole.

Shapes: platform.claude.com/docs/en/api/messages (ContentBlock) and /docs/en/build-with-claude/streaming (delta types).
"""

from collections import deque
from typing import Any

import attrs
import orjson

from gateway.formats.chat import (
    Event,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)

ID_BEGINS = "msg_"
_BLOCK_BYTES = 1_024
_DELTA_BYTES = 256
_PIECE_BYTES = 64
"""What a block, a delta in it and a piece of arguments take, besides their texts."""


@attrs.define(eq=False)
class Block:
    """One content block in the making.

    Attributes:
        start: the block as it begins.
        deltas: what follows, as far as nobody has taken it yet.
        arguments: of a tool call, all of them.
        over: nothing more belongs to it.
        shown: a stream has begun it.
        waiting: bytes, about, that ``deltas`` take.
        kept: the same of ``arguments``.
    """

    start: dict[str, Any]
    deltas: list[dict[str, Any]] = attrs.Factory(list)
    arguments: list[str] = attrs.Factory(list)
    over: bool = False
    shown: bool = False
    waiting: int = 0
    kept: int = 0

    @property
    def kind(self) -> object:
        """Its type."""
        return self.start["type"]


class ContentBlockBuilder:
    """Events in, content blocks out, one after another.

    The convention may mix what this dialect may not: a tool call goes on while the next has begun. So a block that was
    begun is not over before it has been followed, and a tool call not before its arguments are whole, or all is.

    Attributes:
        blocks: in the order in which they began. Whoever writes them takes them from the left.
        called: there was a tool call.
        held: bytes, about, of what is in the blocks and nobody has taken yet.
    """

    __slots__ = ("_calls", "_name", "blocks", "called", "held")

    def __init__(self, message_id: str) -> None:
        self._name = message_id.removeprefix(ID_BEGINS)
        self._calls: dict[int, Block] = {}
        self.blocks: deque[Block] = deque()
        self.called = False
        self.held = 0

    def place(self, event: Event) -> None:
        """Put what ``event`` says into the block it belongs to. What is not of the first answer is left out."""
        match event:
            case TextDelta(choice=0) | RefusalDelta(choice=0) if event.text:
                block = self._continue({"type": "text", "text": ""})
                self._say(block, {"type": "text_delta", "text": event.text}, event.text)
            case ReasoningDelta(choice=0) if event.text:
                block = self._continue_thought()
                self._say(block, {"type": "thinking_delta", "thinking": event.text}, event.text)
            case ReasoningSignature(choice=0):
                block = self._continue_thought()
                self._say(block, {"type": "signature_delta", "signature": event.signature}, event.signature)
                block.over = True
            case RedactedReasoning(choice=0):
                self._begin(Block({"type": "redacted_thinking", "data": event.data}, over=True))
            case ToolCallStart(choice=0):
                self._call(event)
            case ToolCallDelta(choice=0) if event.arguments:
                self._add_arguments(event)

    def take(self, block: Block) -> list[dict[str, Any]]:
        """The deltas of ``block``, which it then no longer has."""
        self.held -= block.waiting
        block.waiting = 0
        taken, block.deltas = block.deltas, []
        return taken

    def drop(self) -> None:
        """The first block is done with."""
        block = self.blocks.popleft()
        self.held -= block.waiting + block.kept

    def close(self) -> None:
        """The answer is complete."""
        for block in self.blocks:
            block.over = True
        self._calls.clear()

    def _say(self, block: Block, delta: dict[str, Any], text: str) -> None:
        block.deltas.append(delta)
        block.waiting += _DELTA_BYTES + len(text)
        self.held += _DELTA_BYTES + len(text)

    def _continue_thought(self) -> Block:
        # The signature is a required field of the block, and no delta has to bring one.
        return self._continue({"type": "thinking", "thinking": "", "signature": ""})

    def _continue(self, start: dict[str, Any]) -> Block:
        if self.blocks:
            last = self.blocks[-1]
            if last.kind == start["type"] and not last.over:
                return last
        return self._begin(Block(start))

    def _begin(self, block: Block) -> Block:
        if self.blocks:
            last = self.blocks[-1]
            last.over = last.kind != "tool_use" or _is_whole(last.arguments)
        self.blocks.append(block)
        block.kept += _BLOCK_BYTES + len(block.start.get("data", ""))
        self.held += block.kept
        return block

    def _call(self, event: ToolCallStart) -> None:
        name = event.id or f"toolu_{self._name}_{event.index}"
        self._calls[event.index] = self._begin(Block({"type": "tool_use", "id": name, "name": event.name, "input": {}}))
        self.called = True

    def _add_arguments(self, event: ToolCallDelta) -> None:
        block = self._calls.get(event.index)
        if block is not None and not block.over:
            block.arguments.append(event.arguments)
            block.kept += _PIECE_BYTES + len(event.arguments)
            self.held += _PIECE_BYTES + len(event.arguments)
            self._say(block, {"type": "input_json_delta", "partial_json": event.arguments}, event.arguments)


def _is_whole(arguments: list[str]) -> bool:
    try:
        orjson.loads("".join(arguments))
    except orjson.JSONDecodeError:
        return False
    return True
