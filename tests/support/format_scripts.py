"""The same faults in the languages that are translated on their way: Anthropic's and Gemini's, core ones only."""

import orjson

from gateway.formats.wire.sse import BOM
from tests.support import anthropic_cassettes as claude
from tests.support import gemini_cassettes as gemini
from tests.support.fault_scene import QUICK
from tests.support.scripted_upstream import FIN, LAST_CHUNK, RST, SSE_HEAD, STALL, Script, Step, answer, chunk
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
    Fault,
    bytewise,
    drip,
)

PAGE = answer(HTML, content_type="text/html")
FALSE_STREAM = answer(HTML, content_type="text/event-stream")
NOT_TEXT = b'event: content_block_delta\ndata: {"type": "content_block_delta", "delta": "\xff"}\n\n'
FIRST, SECOND = "Once upon a time", " there was a king"


def cut_wholes(body: bytes, error: bytes) -> list[Fault]:
    """The faults of a whole answer, which are the same whatever is in it."""
    late = "upstream_timeout"
    return [
        Fault("U5 short length", [answer(body)[:-3], FIN], streams=WHOLE, begun=True),
        Fault("U5 short length, RST", [answer(body)[:-3], 0.01, RST], streams=WHOLE, begun=True),
        Fault("U5 FIN before the body", [answer(body)[: -len(body)], 0.01, FIN], streams=WHOLE),
        Fault("U6 half a body", [JSON_HEAD, chunk(body[: len(body) // 2]), LAST_CHUNK], streams=WHOLE, begun=True),
        Fault("U6 no body", [JSON_HEAD, LAST_CHUNK], streams=WHOLE),
        Fault("U8 silence", [STALL], late, WHOLE, SOON),
        Fault("U8 silence in a body", [answer(body)[:-1], STALL], late, WHOLE, SOON, begun=True),
        Fault("U15 an error object", [answer(error)], streams=WHOLE),
        Fault("U15 something else", [answer([1])], streams=WHOLE),
        Fault("U15 a page", [PAGE], streams=WHOLE),
    ]


def cut_streams(begun: bytes, error: bytes) -> list[Fault]:
    """The faults of a stream that has begun, and not yet said a word; ``begun`` says that it has."""
    late = "upstream_timeout"
    head: list[Step] = [SSE_HEAD, chunk(begun), 0.01]
    return [
        Fault("U5 FIN", [*head, FIN], streams=STREAM),
        Fault("U5 RST", [*head, RST], streams=STREAM),
        Fault("U5 cut chunk", [*head, b"ff\r\ndata: ", FIN], streams=STREAM),
        Fault("U6 nothing at all", [SSE_HEAD, LAST_CHUNK], streams=STREAM),
        Fault("U6 begun, then the end", [*head, LAST_CHUNK], streams=STREAM),
        Fault("U8 silence", [SSE_HEAD, STALL], late, STREAM, QUICK),
        Fault("U8 begun, then silence", [*head, STALL], late, STREAM, QUICK),
        Fault("U8 begun, then comments for ever", [*head, *drip(COMMENT)], late, STREAM, QUICK),
        Fault("U9 begun, then a flood of comments", [*head, NOISES["comments"], STALL], streams=STREAM, timers=PATIENT),
        Fault("U9 a flood of empty data", [SSE_HEAD, NOISES["empty data"], STALL], streams=STREAM, timers=PATIENT),
        Fault("U16 an event that is not UTF-8", [SSE_HEAD, chunk(NOT_TEXT), STALL], streams=STREAM, broken_off=STREAM),
        Fault("U15 a page", [PAGE], streams=STREAM),
        Fault("U15 a page that says it is a stream", [FALSE_STREAM], streams=STREAM, broken_off=STREAM),
        Fault("U15 an error object", [answer(error)], streams=STREAM),
        Fault(
            "U15 an event that is no JSON", [SSE_HEAD, chunk(b"data: {\n\n"), STALL], streams=STREAM, broken_off=STREAM
        ),
    ]


def broken_streams(started: Script, error: bytes, half: bytes) -> list[Fault]:
    """The faults of a stream that has said two words; ``half`` is half an event of it."""
    late = "upstream_timeout"
    return [
        Fault("U5 FIN between chunks", [*started, FIN]),
        Fault("U5 RST", [*started, RST]),
        Fault("U5 cut chunk", [*started, b"ff\r\ndata: {", FIN]),
        Fault("U6 no end mark", [*started, LAST_CHUNK]),
        Fault("U6 half an event", [*started, chunk(half), LAST_CHUNK]),
        Fault("U8 silence", [*started, STALL], late, timers=QUICK),
        Fault("U8 comments for ever", [*started, *drip(COMMENT)], late, timers=QUICK),
        Fault("U9 a flood of comments", [*started, NOISES["comments"], STALL], timers=PATIENT),
        Fault("U9 a flood of line ends", [*started, NOISES["line ends"], STALL], timers=PATIENT),
        Fault("U16 an event that is not UTF-8", [*started, chunk(NOT_TEXT), STALL]),
        Fault("U15 an error event", [*started, chunk(error), STALL]),
        Fault("U15 an error event in pieces", [*started, chunk(error[:9]), 0.01, chunk(error[9:]), STALL]),
        Fault("U15 an event that is no JSON", [*started, chunk(b"data: {\n\n"), STALL]),
        Fault("U15 an event that makes no sense", [*started, chunk(b"data: [1]\n\n"), STALL]),
    ]


def strange_streams(sent: bytes, body: bytes) -> list[Fault]:
    """One good stream with every line end, in single bytes, behind a mark and a comment; and a good whole answer."""
    plain = sent.replace(b"\r\n", b"\n")
    ends = {"LF": b"\n", "CR": b"\r", "CRLF": b"\r\n"}
    scenes = [
        Fault(
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
        Fault("U16 BOM and a comment", [SSE_HEAD, chunk(marked), LAST_CHUNK], "upstream", STREAM),
        Fault("U16 byte by byte", [JSON_HEAD, *bytewise(body), LAST_CHUNK], "upstream", WHOLE, begun=True),
    ]


CLAUDE_BEGIN = claude.begin("msg_1", {"input_tokens": 5, "output_tokens": 1})
CLAUDE_WORDS = claude.start(0, "text", text="") + claude.text(0, FIRST), claude.text(0, SECOND)
CLAUDE_END = claude.stop(0) + claude.finish("end_turn", output_tokens=7) + claude.STOP
CLAUDE_STARTED: Script = [SSE_HEAD, chunk(CLAUDE_BEGIN + CLAUDE_WORDS[0]), 0.01, chunk(CLAUDE_WORDS[1]), 0.01]
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
    Fault("U8 begun, then pings for ever", [SSE_HEAD, chunk(CLAUDE_BEGIN), *drip(chunk(claude.PING))],
          "upstream_timeout", STREAM, QUICK),
    Fault("U15 an error event first", [SSE_HEAD, chunk(claude.OVERLOADED), STALL], streams=STREAM),
    Fault("U15 an error event after its beginning", [SSE_HEAD, chunk(CLAUDE_BEGIN), 0.01, chunk(claude.OVERLOADED),
          STALL], streams=STREAM),
]  # fmt: skip
CLAUDE_AFTER = [
    *broken_streams(CLAUDE_STARTED, claude.OVERLOADED, claude.text(0, "never")[:-1]),
    Fault("U6 a block that was not closed", [*CLAUDE_STARTED, chunk(claude.finish("end_turn")), LAST_CHUNK]),
    Fault("U6 half an end mark", [*CLAUDE_STARTED, chunk(claude.stop(0) + b"event: message_st"), LAST_CHUNK]),
    Fault("U8 pings for ever", [*CLAUDE_STARTED, *drip(chunk(claude.PING))], "upstream_timeout", timers=QUICK),
]  # fmt: skip
CLAUDE_FINE = [
    *strange_streams(CLAUDE_STREAM, CLAUDE_BODY),
    Fault("U16 a second end mark, data after it", LATE_CLAUDE, "upstream", STREAM, begun=True),
]

GEMINI_BEGIN = gemini.stream(gemini.chunk(used=gemini.usage(5)))
GEMINI_WORDS = [gemini.stream(gemini.chunk({"text": word})) for word in (FIRST, SECOND)]
GEMINI_STARTED: Script = [SSE_HEAD, chunk(GEMINI_WORDS[0]), 0.01, chunk(GEMINI_WORDS[1]), 0.01]
GEMINI_LAST = gemini.chunk({"text": ""}, reason="STOP", used=gemini.usage(5, 7))
GEMINI_STREAM = b"".join(GEMINI_WORDS) + gemini.stream(GEMINI_LAST)
GEMINI_FAILURE = {"error": {"code": 503, "message": "The model is overloaded", "status": "UNAVAILABLE"}}
GEMINI_ERROR = orjson.dumps(GEMINI_FAILURE)
GEMINI_BODY = orjson.dumps(gemini.chunk({"text": TEXT}, reason="STOP", used=gemini.usage(5, 7)))
BARE_ERROR = b"\r\n" + orjson.dumps([GEMINI_FAILURE]) + b"\r\n\r\n"

GEMINI_BEFORE = [
    *cut_wholes(GEMINI_BODY, GEMINI_ERROR),
    *cut_streams(GEMINI_BEGIN, GEMINI_ERROR),
    Fault("U15 an error event first", [SSE_HEAD, chunk(gemini.stream(GEMINI_FAILURE)), STALL], streams=STREAM),
    Fault("U15 a bare error first", [SSE_HEAD, chunk(BARE_ERROR), LAST_CHUNK], streams=STREAM),
]
GEMINI_AFTER = [
    *broken_streams(GEMINI_STARTED, gemini.stream(GEMINI_FAILURE), gemini.stream(GEMINI_LAST)[:9]),
    Fault("U15 a bare error behind the last event", [*GEMINI_STARTED, chunk(BARE_ERROR), LAST_CHUNK]),
]
GEMINI_FINE = strange_streams(GEMINI_STREAM, GEMINI_BODY)
