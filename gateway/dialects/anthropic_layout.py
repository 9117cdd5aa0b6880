"""The content blocks of Anthropic's Messages API, made from events: for a stream one after another, or all for a whole.

Shapes: platform.claude.com/docs/en/api/messages (ContentBlock) and /docs/en/build-with-claude/streaming (delta types).
"""

from collections import deque
from typing import Any

import attrs
import orjson

from gateway.dialects.hub import (
    Event,
    RefusalDelta,
    TextDelta,
    ThoughtDelta,
    ThoughtRedacted,
    ThoughtSigned,
    ToolDelta,
    ToolStarted,
)

ID_BEGINS = "msg_"


@attrs.define(eq=False)
class Block:
    """One content block in the making.

    Attributes:
        start: the block as it begins.
        deltas: what follows, as far as nobody has taken it yet.
        arguments: of a tool call, all of them.
        over: nothing more belongs to it.
        shown: a stream has begun it.
    """

    start: dict[str, Any]
    deltas: list[dict[str, Any]] = attrs.Factory(list)
    arguments: list[str] = attrs.Factory(list)
    over: bool = False
    shown: bool = False

    @property
    def kind(self) -> object:
        """Its type."""
        return self.start["type"]


class Layout:
    """Events in, content blocks out, one after another.

    The convention may mix what this dialect may not: a tool call goes on while the next has begun. So a block that was
    begun is not over before it has been followed, and a tool call not before its arguments are whole, or all is.

    Attributes:
        blocks: in the order in which they began. Whoever writes them takes them from the left.
        called: there was a tool call.
    """

    __slots__ = ("_calls", "_name", "blocks", "called")

    def __init__(self, message_id: str) -> None:
        self._name = message_id.removeprefix(ID_BEGINS)
        self._calls: dict[int, Block] = {}
        self.blocks: deque[Block] = deque()
        self.called = False

    def place(self, event: Event) -> None:
        """Put what ``event`` says into the block it belongs to. What is not of the first answer is left out."""
        match event:
            case TextDelta(choice=0) | RefusalDelta(choice=0) if event.text:
                block = self._continue({"type": "text", "text": ""})
                block.deltas.append({"type": "text_delta", "text": event.text})
            case ThoughtDelta(choice=0) if event.text:
                block = self._continue_thought()
                block.deltas.append({"type": "thinking_delta", "thinking": event.text})
            case ThoughtSigned(choice=0):
                block = self._continue_thought()
                block.deltas.append({"type": "signature_delta", "signature": event.signature})
                block.over = True
            case ThoughtRedacted(choice=0):
                self._begin(Block({"type": "redacted_thinking", "data": event.data}, over=True))
            case ToolStarted(choice=0):
                self._call(event)
            case ToolDelta(choice=0) if event.arguments:
                self._add_arguments(event)

    def close(self) -> None:
        """The answer is complete."""
        for block in self.blocks:
            block.over = True
        self._calls.clear()

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
        return block

    def _call(self, event: ToolStarted) -> None:
        name = event.id or f"toolu_{self._name}_{event.index}"
        self._calls[event.index] = self._begin(Block({"type": "tool_use", "id": name, "name": event.name, "input": {}}))
        self.called = True

    def _add_arguments(self, event: ToolDelta) -> None:
        block = self._calls.get(event.index)
        if block is not None and not block.over:
            block.arguments.append(event.arguments)
            block.deltas.append({"type": "input_json_delta", "partial_json": event.arguments})


def _is_whole(arguments: list[str]) -> bool:
    try:
        orjson.loads("".join(arguments))
    except orjson.JSONDecodeError:
        return False
    return True
