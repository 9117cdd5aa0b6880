"""Streams and messages of Anthropic's Messages API in the shapes its documentation records, and what they say.

platform.claude.com/docs/en/build-with-claude/streaming (text, tool use, thinking, web search, errors),
/docs/en/build-with-claude/extended-thinking (sealed thoughts), /docs/en/build-with-claude/prompt-caching (usage),
/docs/en/build-with-claude/handling-stop-reasons.
"""

from typing import Any

import orjson

from gateway.domain.usage import Usage, UsageDetails
from gateway.formats.chat.model import (
    STREAM_END,
    ChoiceFinished,
    Event,
    MessageStart,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageReport,
)

MODEL = "claude-sonnet-4-5"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"             }\n\n'
OVERLOADED = (
    b"event: error\n"
    b'data: {"type": "error", "error": {"details": null, "type": "overloaded_error", "message": "Overloaded"},'
    b' "request_id": "req_011CT"}\n\n'
)


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def begin(message_id: str, usage: Any = None) -> bytes:
    counted = {"input_tokens": 25, "output_tokens": 1} if usage is None else usage
    message: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": MODEL,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": counted,
    }
    return event("message_start", message=message)


def start(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def change(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def text(index: int, words: str) -> bytes:
    return change(index, "text_delta", text=words)


def arguments(index: int, *pieces: str) -> bytes:
    return b"".join(change(index, "input_json_delta", partial_json=piece) for piece in pieces)


def stop(index: int) -> bytes:
    return event("content_block_stop", index=index)


def finish(reason: str | None, sequence: str | None = None, **usage: Any) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": sequence}, usage=usage)


def words(*pieces: str) -> bytes:
    """The first block, of text."""
    return start(0, "text", text="") + b"".join(text(0, piece) for piece in pieces) + stop(0)


def begun(message_id: str, prompt: int = 25, completion: int = 1) -> MessageStart:
    return MessageStart(message_id, MODEL, usage=Usage(prompt, completion, 0, "upstream"))


def used(prompt: int, completion: int) -> UsageReport:
    return UsageReport(Usage(prompt, completion, 0, "upstream"))


HELLO = (
    begin("msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyY")
    + start(0, "text", text="")
    + PING
    + text(0, "Hello")
    + text(0, "!")
    + stop(0)
    + finish("end_turn", output_tokens=15)
    + STOP
)
TOOL = (
    begin("msg_014p7gG3wDgGV9EUtLvnow3U", {"input_tokens": 472, "output_tokens": 2})
    + PING
    + words("Okay", ", let's check:")
    + start(1, "tool_use", id="toolu_01T1x1fJ34qAmk2tNTrN7Up6", name="get_weather", input={})
    + arguments(1, "", '{"location":', ' "San', ' Francisco, CA"', "}")
    + stop(1)
    + finish("tool_use", output_tokens=89)
    + STOP
)
PARALLEL = (
    begin("msg_P")
    + start(0, "tool_use", id="toolu_1", name="get_time", input={})
    + arguments(0, "", '{"zone": "PST"}')
    + stop(0)
    + start(1, "tool_use", id="toolu_2", name="now", input={})
    + stop(1)
    + start(2, "tool_use", id="toolu_3", name="add", input={"a": 1, "b": [2]})
    + stop(2)
    + finish("tool_use", output_tokens=40)
    + STOP
)
THINKING = (
    begin("msg_01")
    + start(0, "thinking", thinking="", signature="")
    + change(0, "thinking_delta", thinking="I need the GCD")
    + change(0, "thinking_delta", thinking=" of 1071 and 462")
    + change(0, "signature_delta", signature="EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk")
    + stop(0)
    + start(1, "text", text="")
    + text(1, "The greatest common divisor is **21**.")
    + stop(1)
    + event(
        "message_delta",
        delta={"stop_reason": "end_turn", "stop_sequence": None},
        usage={"output_tokens": 60, "output_tokens_details": {"thinking_tokens": 44}},
    )
    + STOP
)
SEALED = (
    begin("msg_02")
    + start(0, "redacted_thinking", data="EmwKAhgBEgy3va3pzix/LafPsn4a")
    + stop(0)
    + start(1, "thinking", thinking="", signature="")
    + change(1, "signature_delta", signature="EosnCkYICxIM")
    + stop(1)
    + start(2, "text", text="")
    + text(2, "Based on my analysis")
    + stop(2)
    + finish("end_turn", output_tokens=12)
    + STOP
)
SEARCH = (
    begin(
        "msg_01G",
        {"input_tokens": 2679, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 3},
    )
    + words("I'll check")
    + start(1, "server_tool_use", id="srvtoolu_014hJH82Qum7Td6UV8gDXThB", name="web_search", input={})
    + arguments(1, "", '{"query', '":', ' "weather NYC"}')
    + stop(1)
    + start(
        2,
        "web_search_tool_result",
        tool_use_id="srvtoolu_014hJH82Qum7Td6UV8gDXThB",
        content=[{"type": "web_search_result", "title": "NYC", "url": "https://e.com", "encrypted_content": "Ers"}],
    )
    + stop(2)
    + start(3, "text", text="", citations=[])
    + change(3, "citations_delta", citation={"type": "web_search_result_location", "url": "https://e.com"})
    + text(3, "Sunny, 20 °C")
    + stop(3)
    + finish(
        "end_turn",
        input_tokens=10682,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=0,
        output_tokens=510,
        server_tool_use={"web_search_requests": 1},
    )
    + STOP
)
CACHED = (
    begin(
        "msg_03",
        {
            "input_tokens": 21,
            "cache_creation_input_tokens": 188,
            "cache_read_input_tokens": 1800,
            "cache_creation": {"ephemeral_5m_input_tokens": 88, "ephemeral_1h_input_tokens": 100},
            "output_tokens": 1,
            "service_tier": "standard",
        },
    )
    + words("日本語")
    + finish("end_turn", output_tokens=393)
    + STOP
)
TOO_LONG = begin("msg_04") + words("and then") + finish("max_tokens", output_tokens=2) + STOP
SEQUENCE = begin("msg_05") + words("one two") + finish("stop_sequence", "three", output_tokens=3) + STOP
REFUSED = begin("msg_06") + words("I") + finish("refusal", output_tokens=4) + STOP
PAUSED = begin("msg_07") + words("Let me look") + finish("pause_turn", output_tokens=5) + STOP
EMPTY = begin("msg_08") + finish("end_turn", output_tokens=1) + STOP
NEWER = (
    begin("msg_09")
    + event("message_mood", mood="good")
    + start(0, "hologram", data={"deep": [1]})
    + change(0, "hologram_delta", light="blue")
    + stop(0)
    + start(1, "text", text="He")
    + text(1, "y")
    + stop(1)
    + finish("of_tomorrow", output_tokens=6)
    + STOP
)
TRICKY = (
    begin("msg_10")
    + words('an "error" and "message_stop" and \n\nevent: error\ndata: {"type":"error"} in a text')
    + finish("end_turn", output_tokens=7)
    + STOP
)

ANSWERED: dict[str, tuple[bytes, list[Event]]] = {
    "hello": (
        HELLO,
        [
            begun("msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyY"),
            TextDelta("Hello"),
            TextDelta("!"),
            ChoiceFinished("stop"),
            used(25, 15),
            STREAM_END,
        ],
    ),
    "tool": (
        TOOL,
        [
            begun("msg_014p7gG3wDgGV9EUtLvnow3U", 472, 2),
            TextDelta("Okay"),
            TextDelta(", let's check:"),
            ToolCallStart(0, "toolu_01T1x1fJ34qAmk2tNTrN7Up6", "get_weather"),
            ToolCallDelta(0, '{"location":'),
            ToolCallDelta(0, ' "San'),
            ToolCallDelta(0, ' Francisco, CA"'),
            ToolCallDelta(0, "}"),
            ChoiceFinished("tool_calls"),
            used(472, 89),
            STREAM_END,
        ],
    ),
    "parallel": (
        PARALLEL,
        [
            begun("msg_P"),
            ToolCallStart(0, "toolu_1", "get_time"),
            ToolCallDelta(0, '{"zone": "PST"}'),
            ToolCallStart(1, "toolu_2", "now"),
            ToolCallDelta(1, "{}"),
            ToolCallStart(2, "toolu_3", "add"),
            ToolCallDelta(2, '{"a":1,"b":[2]}'),
            ChoiceFinished("tool_calls"),
            used(25, 40),
            STREAM_END,
        ],
    ),
    "thinking": (
        THINKING,
        [
            begun("msg_01"),
            ReasoningDelta("I need the GCD"),
            ReasoningDelta(" of 1071 and 462"),
            ReasoningSignature("EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk"),
            TextDelta("The greatest common divisor is **21**."),
            ChoiceFinished("stop"),
            UsageReport(Usage(25, 60, 0, "upstream"), 44),
            STREAM_END,
        ],
    ),
    "sealed": (
        SEALED,
        [
            begun("msg_02"),
            RedactedReasoning("EmwKAhgBEgy3va3pzix/LafPsn4a"),
            ReasoningSignature("EosnCkYICxIM"),
            TextDelta("Based on my analysis"),
            ChoiceFinished("stop"),
            used(25, 12),
            STREAM_END,
        ],
    ),
    "search": (
        SEARCH,
        [
            begun("msg_01G", 2679, 3),
            TextDelta("I'll check"),
            TextDelta("Sunny, 20 °C"),
            ChoiceFinished("stop"),
            UsageReport(Usage(10682, 510, 0, "upstream", details=UsageDetails(searches=1))),
            STREAM_END,
        ],
    ),
    "cached": (
        CACHED,
        [
            MessageStart("msg_03", MODEL, usage=Usage(2009, 1, 1800, "upstream", 0, 0, 188, 100)),
            TextDelta("日本語"),
            ChoiceFinished("stop"),
            UsageReport(Usage(2009, 393, 1800, "upstream", 0, 0, 188, 100)),
            STREAM_END,
        ],
    ),
    "too long": (TOO_LONG, [begun("msg_04"), TextDelta("and then"), ChoiceFinished("length"), used(25, 2), STREAM_END]),
    "sequence": (
        SEQUENCE,
        [begun("msg_05"), TextDelta("one two"), ChoiceFinished("stop", 0, "three"), used(25, 3), STREAM_END],
    ),
    "refused": (REFUSED, [begun("msg_06"), TextDelta("I"), ChoiceFinished("content_filter"), used(25, 4), STREAM_END]),
    "paused": (PAUSED, [begun("msg_07"), TextDelta("Let me look"), ChoiceFinished("stop"), used(25, 5), STREAM_END]),
    "empty": (EMPTY, [begun("msg_08"), ChoiceFinished("stop"), used(25, 1), STREAM_END]),
    "newer": (
        NEWER,
        [begun("msg_09"), TextDelta("He"), TextDelta("y"), ChoiceFinished("stop"), used(25, 6), STREAM_END],
    ),
    "tricky": (
        TRICKY,
        [
            begun("msg_10"),
            TextDelta('an "error" and "message_stop" and \n\nevent: error\ndata: {"type":"error"} in a text'),
            ChoiceFinished("stop"),
            used(25, 7),
            STREAM_END,
        ],
    ),
}
"""Name -> a whole stream, and the events it is read as."""

MESSAGE: dict[str, Any] = {
    "id": "msg_013Zva2CMHLNnXjNJJKqJ2EF",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [
        {"type": "thinking", "thinking": "Let me see", "signature": "WaUjzkypQ2mUEVM36O2TxuC06KN8xyfbJwyem2dw3URve"},
        {"type": "redacted_thinking", "data": "EmwKAhgB"},
        {"type": "text", "text": "Hi! My name is Claude.", "citations": None},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "tool_use", "id": "toolu_01A09q90qw90lq917835lq9", "name": "get_weather", "input": {"city": "SF"}},
        {"type": "tool_use", "id": "toolu_02", "name": "now", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 2095,
        "cache_creation_input_tokens": 50,
        "cache_read_input_tokens": 5,
        "cache_creation": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 503,
        "output_tokens_details": {"thinking_tokens": 17},
    },
}
