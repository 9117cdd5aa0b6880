"""The same faults in the languages that are translated on their way: Anthropic's and Gemini's, core ones only."""

import orjson

from gateway.formats.sse import BOM
from tests.support import anthropic_cassettes as claude
from tests.support import gemini_cassettes as gemini
from tests.support.fault_scene import QUICK
from tests.support.scripted_upstream import FIN, LAST_CHUNK, RST, SSE_HEAD, STALL, Script, answer, chunk
from tests.support.upstream_scripts import (
    COMMENT,
    HTML,
    JSON_HEAD,
    NOISES,
    PATIENT,
    SOON,
    STREAM,
    TEXT,
    WHOLE,
    Scene,
    bytewise,
    drip,
)

PAGE = answer(HTML, content_type="text/html")
FALSE_STREAM = answer(HTML, content_type="text/event-stream")
NOT_TEXT = b'event: content_block_delta\ndata: {"type": "content_block_delta", "delta": "\xff"}\n\n'
FIRST, SECOND = "Once upon a time", " there was a king"


def cut_wholes(body: bytes, error: bytes) -> list[Scene]:
    """The faults of a whole answer, which are the same whatever is in it."""
    late = "upstream_timeout"
    return [
        Scene("U5 short length", [answer(body)[:-3], FIN], streams=WHOLE, begun=True),
        Scene("U5 short length, RST", [answer(body)[:-3], 0.01, RST], streams=WHOLE, begun=True),
        Scene("U5 FIN before the body", [answer(body)[: -len(body)], 0.01, FIN], streams=WHOLE),
        Scene("U6 half a body", [JSON_HEAD, chunk(body[: len(body) // 2]), LAST_CHUNK], streams=WHOLE, begun=True),
        Scene("U6 no body", [JSON_HEAD, LAST_CHUNK], streams=WHOLE),
        Scene("U8 silence", [STALL], late, WHOLE, SOON),
        Scene("U8 silence in a body", [answer(body)[:-1], STALL], late, WHOLE, SOON, begun=True),
        Scene("U15 an error object", [answer(error)], streams=WHOLE),
        Scene("U15 something else", [answer([1])], streams=WHOLE),
        Scene("U15 a page", [PAGE], streams=WHOLE),
    ]


def cut_streams(begun: bytes, error: bytes) -> list[Scene]:
    """The faults of a stream that has begun, and not yet said a word; ``begun`` says that it has."""
    late, head = "upstream_timeout", [SSE_HEAD, chunk(begun), 0.01]
    return [
        Scene("U5 FIN", [*head, FIN], streams=STREAM),
        Scene("U5 RST", [*head, RST], streams=STREAM),
        Scene("U5 cut chunk", [*head, b"ff\r\ndata: ", FIN], streams=STREAM),
        Scene("U6 nothing at all", [SSE_HEAD, LAST_CHUNK], streams=STREAM),
        Scene("U6 begun, then the end", [*head, LAST_CHUNK], streams=STREAM),
        Scene("U8 silence", [SSE_HEAD, STALL], late, STREAM, QUICK),
        Scene("U8 begun, then silence", [*head, STALL], late, STREAM, QUICK),
        Scene("U8 begun, then comments for ever", [*head, *drip(COMMENT)], late, STREAM, QUICK),
        Scene("U9 begun, then a flood of comments", [*head, NOISES["comments"], STALL], streams=STREAM, timers=PATIENT),
        Scene("U9 a flood of empty data", [SSE_HEAD, NOISES["empty data"], STALL], streams=STREAM, timers=PATIENT),
        Scene("U16 an event that is not UTF-8", [SSE_HEAD, chunk(NOT_TEXT), STALL], streams=STREAM, broken_off=STREAM),
        Scene("U15 a page", [PAGE], streams=STREAM),
        Scene("U15 a page that says it is a stream", [FALSE_STREAM], streams=STREAM, broken_off=STREAM),
        Scene("U15 an error object", [answer(error)], streams=STREAM),
        Scene(
            "U15 an event that is no JSON", [SSE_HEAD, chunk(b"data: {\n\n"), STALL], streams=STREAM, broken_off=STREAM
        ),
    ]


def broken_streams(told: Script, error: bytes, half: bytes) -> list[Scene]:
    """The faults of a stream that has said two words; ``half`` is half an event of it."""
    late = "upstream_timeout"
    return [
        Scene("U5 FIN between chunks", [*told, FIN]),
        Scene("U5 RST", [*told, RST]),
        Scene("U5 cut chunk", [*told, b"ff\r\ndata: {", FIN]),
        Scene("U6 no end mark", [*told, LAST_CHUNK]),
        Scene("U6 half an event", [*told, chunk(half), LAST_CHUNK]),
        Scene("U8 silence", [*told, STALL], late, timers=QUICK),
        Scene("U8 comments for ever", [*told, *drip(COMMENT)], late, timers=QUICK),
        Scene("U9 a flood of comments", [*told, NOISES["comments"], STALL], timers=PATIENT),
        Scene("U9 a flood of line ends", [*told, NOISES["line ends"], STALL], timers=PATIENT),
        Scene("U16 an event that is not UTF-8", [*told, chunk(NOT_TEXT), STALL]),
        Scene("U15 an error event", [*told, chunk(error), STALL]),
        Scene("U15 an error event in pieces", [*told, chunk(error[:9]), 0.01, chunk(error[9:]), STALL]),
        Scene("U15 an event that is no JSON", [*told, chunk(b"data: {\n\n"), STALL]),
        Scene("U15 an event that makes no sense", [*told, chunk(b"data: [1]\n\n"), STALL]),
    ]


def strange_streams(sent: bytes, body: bytes) -> list[Scene]:
    """One good stream with every line end, in single bytes, behind a mark and a comment; and a good whole answer."""
    plain = sent.replace(b"\r\n", b"\n")
    ends = {"LF": b"\n", "CR": b"\r", "CRLF": b"\r\n"}
    scenes = [
        Scene(
            f"U16 byte by byte, {name}",
            [SSE_HEAD, *bytewise(plain.replace(b"\n", end)), LAST_CHUNK],
            "upstream",
            STREAM,
            begun=True,
        )
        for name, end in ends.items()
    ]
    marked = BOM + b": hello\n\n" + plain
    return [
        *scenes,
        Scene("U16 BOM and a comment", [SSE_HEAD, chunk(marked), LAST_CHUNK], "upstream", STREAM),
        Scene("U16 byte by byte", [JSON_HEAD, *bytewise(body), LAST_CHUNK], "upstream", WHOLE, begun=True),
    ]


CLAUDE_BEGIN = claude.begin("msg_1", {"input_tokens": 5, "output_tokens": 1})
CLAUDE_WORDS = claude.start(0, "text", text="") + claude.text(0, FIRST), claude.text(0, SECOND)
CLAUDE_END = claude.stop(0) + claude.finish("end_turn", output_tokens=7) + claude.STOP
CLAUDE_TOLD: Script = [SSE_HEAD, chunk(CLAUDE_BEGIN + CLAUDE_WORDS[0]), 0.01, chunk(CLAUDE_WORDS[1]), 0.01]
CLAUDE_STREAM = CLAUDE_BEGIN + b"".join(CLAUDE_WORDS) + CLAUDE_END
CLAUDE_ERROR = orjson.dumps({"type": "error", "error": {"type": "api_error", "message": "out of memory"}})
CLAUDE_BODY = orjson.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": claude.MODEL,
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }
)
LATE_CLAUDE = [SSE_HEAD, chunk(CLAUDE_STREAM + claude.STOP + claude.text(0, "late")), LAST_CHUNK]

CLAUDE_BEFORE = [
    *cut_wholes(CLAUDE_BODY, CLAUDE_ERROR),
    *cut_streams(CLAUDE_BEGIN + claude.PING, CLAUDE_ERROR),
    Scene("U8 begun, then pings for ever", [SSE_HEAD, chunk(CLAUDE_BEGIN), *drip(chunk(claude.PING))],
          "upstream_timeout", STREAM, QUICK),
    Scene("U15 an error event first", [SSE_HEAD, chunk(claude.OVERLOADED), STALL], streams=STREAM),
    Scene("U15 an error event after its beginning", [SSE_HEAD, chunk(CLAUDE_BEGIN), 0.01, chunk(claude.OVERLOADED),
          STALL], streams=STREAM),
]  # fmt: skip
CLAUDE_AFTER = [
    *broken_streams(CLAUDE_TOLD, claude.OVERLOADED, claude.text(0, "never")[:-1]),
    Scene("U6 a block that was not closed", [*CLAUDE_TOLD, chunk(claude.finish("end_turn")), LAST_CHUNK]),
    Scene("U6 half an end mark", [*CLAUDE_TOLD, chunk(claude.stop(0) + b"event: message_st"), LAST_CHUNK]),
    Scene("U8 pings for ever", [*CLAUDE_TOLD, *drip(chunk(claude.PING))], "upstream_timeout", timers=QUICK),
]  # fmt: skip
CLAUDE_FINE = [
    *strange_streams(CLAUDE_STREAM, CLAUDE_BODY),
    Scene("U16 a second end mark, data after it", LATE_CLAUDE, "upstream", STREAM, begun=True),
]

GEMINI_BEGIN = gemini.stream(gemini.chunk(used=gemini.usage(5)))
GEMINI_WORDS = [gemini.stream(gemini.chunk({"text": word})) for word in (FIRST, SECOND)]
GEMINI_TOLD: Script = [SSE_HEAD, chunk(GEMINI_WORDS[0]), 0.01, chunk(GEMINI_WORDS[1]), 0.01]
GEMINI_LAST = gemini.chunk({"text": ""}, reason="STOP", used=gemini.usage(5, 7))
GEMINI_STREAM = b"".join(GEMINI_WORDS) + gemini.stream(GEMINI_LAST)
GEMINI_FAILURE = {"error": {"code": 503, "message": "The model is overloaded", "status": "UNAVAILABLE"}}
GEMINI_ERROR = orjson.dumps(GEMINI_FAILURE)
GEMINI_BODY = orjson.dumps(gemini.chunk({"text": TEXT}, reason="STOP", used=gemini.usage(5, 7)))
BARE_ERROR = b"\r\n" + orjson.dumps([GEMINI_FAILURE]) + b"\r\n\r\n"

GEMINI_BEFORE = [
    *cut_wholes(GEMINI_BODY, GEMINI_ERROR),
    *cut_streams(GEMINI_BEGIN, GEMINI_ERROR),
    Scene("U15 an error event first", [SSE_HEAD, chunk(gemini.stream(GEMINI_FAILURE)), STALL], streams=STREAM),
    Scene("U15 a bare error first", [SSE_HEAD, chunk(BARE_ERROR), LAST_CHUNK], streams=STREAM),
]
GEMINI_AFTER = [
    *broken_streams(GEMINI_TOLD, gemini.stream(GEMINI_FAILURE), gemini.stream(GEMINI_LAST)[:9]),
    Scene("U15 a bare error behind the last event", [*GEMINI_TOLD, chunk(BARE_ERROR), LAST_CHUNK]),
]
GEMINI_FINE = strange_streams(GEMINI_STREAM, GEMINI_BODY)
