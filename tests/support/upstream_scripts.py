"""What a provider of the convention does wrong, as scripts: before its first event, and after it."""

import gzip
import zlib
from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from gateway.formats.wire.sse import BOM
from tests.support.fault_scene import QUICK
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    FIN,
    LAST_CHUNK,
    RST,
    SSE_HEAD,
    SSE_HEAD_UNTIL_CLOSE,
    STALL,
    Flood,
    Script,
    Step,
    answer,
    chunk,
    delta,
    event,
    usage_frame,
)

HEADLESS = frozenset(
    {
        "U4 garbage status line",
        "U4 two lengths",
        "U4 length and chunked",
        "U4 NUL in a header",
        "U4 20 KB header",
        "U4 5,000 headers",
        "U11 unknown encoding",
        "U11 double encoding",
    }
)
BOTH, STREAM, WHOLE = (False, True), (True,), (False,)


@attrs.frozen
class Fault:
    """A fault of ``number``; ``streams`` says for which calls it is one, ``timers`` how patient its channel is.

    ``begun``: a whole answer's body has begun when it happens. That of a stream is on the other list then.
    ``broken_off``: for which calls it ``is_broken_off``, if its number does not say it. ``tries``: over a channel
    alone, if that is not what its number says.
    """

    name: str
    script: Script
    code: str = "upstream_error"
    streams: tuple[bool, ...] = BOTH
    timers: Mapping[str, float] = {}
    begun: bool = False
    broken_off: tuple[bool, ...] | None = None
    tries: int | None = None

    def is_broken_off(self, *, stream: bool) -> bool:
        """Whether the provider had accepted the call, and did not say that it failed: its prompt is paid for."""
        if self.broken_off is not None:
            return stream in self.broken_off
        return self.number in {"U5", "U8", "U9", "U10"} or (self.number == "U6" and stream)

    @property
    def number(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def attempts(self) -> int:
        """That are made over a channel alone: where nothing came but what is no head, one more."""
        return self.tries or (2 if self.number == "U2" or self.name in HEADLESS else 1)


def drip(piece: bytes, times: int = 1_000) -> list[Any]:
    return [step for _ in range(times) for step in (piece, 0.02)]


MB = 1024 * 1024
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
JSON_HEAD = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
HTML = b"<!DOCTYPE html><html><body>Sign in to the portal</body></html>"
COMMENT_LINE = b": ping\n\n"
COMMENT = chunk(COMMENT_LINE)
SOON = {**QUICK, "total_timeout_s": 0.15}
PATIENT = {"first_byte_timeout_s": 30, "idle_timeout_s": 30, "total_timeout_s": 30}
"""Where something else than a timer is to end the scene, on a slow machine too."""
ERROR = b'data: {"error": {"message": "no GPU is free", "code": 503}}\n\n'
OVERLOAD = b'data: {"error": {"message": "slow down", "type": "rate_limit_error", "code": 429}}\n\n'
FLAT_ERROR = b'event: error\ndata: {"message": "boom"}\n\n'
PAGE_HEAD = SSE_HEAD.replace(b"event-stream", b"html")
NAMED_PING = chunk(b"event: ping\n\n")
NO_GZIP = answer(b"not gzip", Content_Encoding="gzip", content_type="text/event-stream")
CUT_GZIP = answer(gzip.compress(b'{"choices": []}')[:-14], Content_Encoding="gzip", content_type="text/event-stream")
ENDLESS = Flood(chunk(b"x" * MB), 20)
ENDLESS_BODY = Flood(chunk(b"[" * MB), 66)
"""Each more than the gateway ever keeps of one."""
NOISES = {
    "comments": Flood(chunk((b": " + b"x" * 60 + b"\n\n") * 100), 80),
    "line ends": Flood(chunk(b"\n" * 8_000), 60),
    "empty data": Flood(chunk(b"data:\n\n" * 1_000), 70),
    "names": Flood(chunk(b"event: ping\nid: 7\n\n" * 400), 80),
}
"""More than may come between two events, and nothing in it."""
NOT_UTF8 = chunk(event(delta("HERE")).replace(b"HERE", b"caf\xe9"))
NOT_JSON = chunk(event(delta("cut"))[:-12] + b"\n\n")

BEFORE = [
    Fault("U2 FIN", [FIN]),
    Fault("U2 RST", [RST]),
    Fault("U2 half a status line, FIN", [b"HTTP/1.1 2", FIN]),
    Fault("U2 half a header, FIN", [HEAD[:30], FIN]),
    Fault("U2 half a header, RST", [HEAD[:30], 0.01, RST]),
    Fault("U4 garbage status line", [b"WHAT 200 OK\r\n\r\n", STALL]),
    Fault("U4 two lengths", [HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", STALL]),
    Fault("U4 length and chunked", [HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}", STALL]),
    Fault("U4 NUL in a header", [HEAD + b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}", STALL]),
    Fault("U4 20 KB header", [HEAD + b"X: " + b"x" * 20_000 + b"\r\n\r\n", STALL]),
    Fault("U4 5,000 headers", [HEAD + b"X: y\r\n" * 5_000 + b"\r\n", STALL]),
    Fault("U4 bad chunk size with the headers", [SSE_HEAD + b"zz\r\n{}\r\n", STALL], broken_off=BOTH),
    Fault("U4 bad chunk size after the headers", [SSE_HEAD, 0.02, b"zz\r\n{}\r\n", STALL], broken_off=BOTH),
    Fault("U4 bad chunk size in a whole body", [JSON_HEAD, chunk(b'{"a":'), 0.01, b"zz\r\n1}\r\n", STALL],
          streams=WHOLE, begun=True, broken_off=BOTH),
    Fault("U4 endless 1xx", drip(b"HTTP/1.1 100 Continue\r\n\r\n"), "upstream_timeout", timers=SOON,
          broken_off=BOTH),
    Fault("U5 short length", [answer(b'{"choices": []}')[:-3], FIN], begun=True),
    Fault("U5 short length, RST", [answer(b'{"choices": []}')[:-3], 0.01, RST], begun=True),
    Fault("U5 cut chunk", [SSE_HEAD, b"ff\r\ndata: ", FIN], begun=True),
    Fault("U5 FIN after the headers", [answer(b"{}")[:-2], 0.02, FIN]),
    Fault("U5 RST after the headers", [SSE_HEAD, 0.02, RST]),
    Fault("U6 nothing at all, chunked", [SSE_HEAD, LAST_CHUNK]),
    Fault("U6 nothing at all, until close", [SSE_HEAD_UNTIL_CLOSE, FIN]),
    Fault("U6 half an event", [SSE_HEAD, chunk(event(delta("half"))[:-1]), LAST_CHUNK], begun=True),
    Fault("U6 half a body", [JSON_HEAD, chunk(b'{"choices": [{"index": 0'), LAST_CHUNK], streams=WHOLE, begun=True),
    Fault("U6 comments only, then the end", [SSE_HEAD, COMMENT, COMMENT, LAST_CHUNK], begun=True),
    Fault("U8 silence before the headers", [STALL], "upstream_timeout", timers=SOON),
    Fault("U8 silence after half the headers", [HEAD, STALL], "upstream_timeout", timers=SOON),
    Fault("U8 silence before the first event", [SSE_HEAD, STALL], "upstream_timeout", STREAM, QUICK),
    Fault("U8 silence in a whole body", [answer(b"{}")[:-1], STALL], "upstream_timeout", WHOLE, SOON, begun=True),
    Fault("U8 total time before the first event", [SSE_HEAD, STALL], "upstream_timeout", STREAM,
          {"total_timeout_s": 0.15}),
    Fault("U8 silence in the body of an error", [answer(b"{}", 500)[:-1], STALL], "upstream_timeout", timers=SOON,
          broken_off=()),
    Fault("U8 silence in a page", [PAGE_HEAD, STALL], "upstream_timeout", STREAM, SOON),
    Fault("U9 trickle", [SSE_HEAD, *drip(chunk(b"d"))], "upstream_timeout", STREAM, QUICK),
    Fault("U9 trickle of headers", [HEAD, *drip(b"X: y\r\n")], "upstream_timeout", timers=SOON),
    Fault("U9 trickle of a whole body", [SSE_HEAD, *drip(chunk(b"{"))], "upstream_timeout", WHOLE, SOON, begun=True),
    Fault("U9 comments for ever", [SSE_HEAD, *drip(COMMENT)], "upstream_timeout", STREAM, QUICK),
    Fault("U9 named pings without data", [SSE_HEAD, *drip(NAMED_PING)], "upstream_timeout", STREAM, QUICK),
    Fault("U9 pings with empty data", [SSE_HEAD, *drip(chunk(b"data:\n\n"))], "upstream_timeout", STREAM, QUICK),
    *(Fault(f"U9 a flood of {name}", [SSE_HEAD, noise, STALL], streams=STREAM, timers=PATIENT)
      for name, noise in NOISES.items()),
    Fault("U10 an event without end", [SSE_HEAD, chunk(b"data: "), ENDLESS, STALL], streams=STREAM, timers=PATIENT),
    Fault("U10 a body without end", [SSE_HEAD, ENDLESS_BODY, STALL], streams=WHOLE, timers=PATIENT, begun=True),
    Fault("U11 unknown encoding", [answer(b"{}", Content_Encoding="br")]),
    Fault("U11 double encoding", [answer(gzip.compress(gzip.compress(b"{}")), Content_Encoding="gzip, gzip")]),
    Fault("U11 not encoded as it says", [NO_GZIP], broken_off=BOTH),
    Fault("U11 cut inside", [CUT_GZIP], begun=True, broken_off=BOTH),
    Fault("U12 an overload as the first event", [SSE_HEAD, chunk(OVERLOAD), STALL], streams=STREAM),
    Fault("U13 301", [answer(b"", 301, Location="http://127.0.0.1:9/elsewhere")]),
    Fault("U13 303", [answer(b"", 303, Location="/v1/models")]),
    Fault("U13 307", [answer(b"", 307, Location="//127.0.0.1:9/elsewhere")]),
    Fault("U13 308 without a location", [answer(b"", 308)]),
    Fault("U15 HTML", [answer(HTML, content_type="text/html")]),
    Fault("U15 HTML that says it is a stream", [answer(HTML, content_type="text/event-stream")], broken_off=STREAM),
    Fault("U15 no content", [b"HTTP/1.1 204 No Content\r\n\r\n"], broken_off=STREAM),
    Fault("U15 an error object", [answer({"error": {"message": "out of memory"}})]),
    Fault("U15 an error word", [answer({"error": "out of memory"})]),
    Fault("U15 an error in a list", [answer([{"error": {"message": "out of memory"}}])]),
    Fault("U15 an array", [answer([1])]),
    Fault("U15 an error event first", [SSE_HEAD, chunk(ERROR), STALL], streams=STREAM),
    Fault("U15 a named error event first", [SSE_HEAD, chunk(b"event: error\n" + ERROR), STALL], streams=STREAM),
    Fault("U15 a flat error event first", [SSE_HEAD, chunk(FLAT_ERROR), STALL], streams=STREAM),
    Fault("U15 an error event after a comment", [SSE_HEAD, COMMENT, chunk(ERROR), STALL], streams=STREAM),
    Fault("U15 an event that was cut inside", [SSE_HEAD, NOT_JSON, STALL], streams=STREAM, broken_off=STREAM),
    Fault("U16 an event that is not UTF-8", [SSE_HEAD, NOT_UTF8, STALL], streams=STREAM, broken_off=STREAM),
    Fault("U16 a body that is not UTF-8", [answer(b'{"choices": [], "id": "\xff"}')], streams=WHOLE),
    Fault("U15 an error event in one piece with the first", [SSE_HEAD, chunk(event(delta("a")) + ERROR), STALL],
          streams=STREAM),
]  # fmt: skip
"""Nothing of these reaches the caller: another channel may do better."""

ONE, TWO = event(delta("Once upon a time")), event(delta(" there was a king"))
TEXT = "Once upon a time there was a king"
STARTED: list[Step] = [SSE_HEAD, chunk(ONE), 0.01, chunk(TWO), 0.01]
"""Two events, each of which has reached the caller."""
STARTED_UNTIL_CLOSE: list[Step] = [SSE_HEAD_UNTIL_CLOSE, ONE, 0.01, TWO, 0.01]
STARTED_OF_LENGTH: list[Step] = [
    SSE_HEAD_UNTIL_CLOSE.replace(b"Connection: close", b"Content-Length: 9999"),
    *STARTED_UNTIL_CLOSE[1:],
]
SPACED_ERROR = b'data: { "error" : { "message" : "no GPU is free" } }\r\n\r\n'
_packer = zlib.compressobj(wbits=31)
PACKED = _packer.compress(ONE + TWO) + _packer.flush(zlib.Z_SYNC_FLUSH)
STARTED_PACKED: list[Step] = [SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"), chunk(PACKED), 0.01]
LOUD = {"total_timeout_s": 0.2}

AFTER = [
    Fault("U4 bad chunk size", [*STARTED, b"zz\r\nwhat\r\n", STALL]),
    Fault("U5 FIN between chunks", [*STARTED, FIN]),
    Fault("U5 RST", [*STARTED, RST]),
    Fault("U5 cut chunk", [*STARTED, b"ff\r\ndata: {", FIN]),
    Fault("U5 short length, FIN", [*STARTED_OF_LENGTH, FIN]),
    Fault("U5 short length, RST", [*STARTED_OF_LENGTH, RST]),
    Fault("U6 chunked", [*STARTED, LAST_CHUNK]),
    Fault("U6 until close", [*STARTED_UNTIL_CLOSE, FIN]),
    Fault("U6 half an event", [*STARTED, chunk(event(delta("never"))[:-1]), LAST_CHUNK]),
    Fault("U6 half an end mark", [*STARTED, chunk(b"data: [DON"), LAST_CHUNK]),
    Fault("U8 silence", [*STARTED, STALL], "upstream_timeout", timers=QUICK),
    Fault("U8 total time", [*STARTED, STALL], "upstream_timeout", timers=LOUD),
    Fault("U8 total time under steady comments", [*STARTED, *drip(COMMENT)], "upstream_timeout", timers=LOUD),
    Fault("U9 trickle", [*STARTED, *drip(chunk(b"d"))], "upstream_timeout", timers=QUICK),
    Fault("U9 comments for ever", [*STARTED, *drip(COMMENT)], "upstream_timeout", timers=QUICK),
    Fault("U9 named pings without data", [*STARTED, *drip(NAMED_PING)], "upstream_timeout", timers=QUICK),
    *(Fault(f"U9 a flood of {name}", [*STARTED, noise, STALL], timers=PATIENT) for name, noise in NOISES.items()),
    Fault("U10 an event without end", [*STARTED, chunk(b"data: "), ENDLESS, STALL], timers=PATIENT),
    Fault("U11 not encoded as it says", [*STARTED_PACKED, chunk(b"\x00" * 64), STALL]),
    Fault("U12 an overload in mid-stream", [*STARTED, chunk(OVERLOAD), STALL]),
    Fault("U15 an error event", [*STARTED, chunk(ERROR), STALL]),
    Fault("U15 a named error event", [*STARTED, chunk(b"event: error\n" + ERROR), STALL]),
    Fault("U15 an error event, other spacing", [*STARTED, chunk(SPACED_ERROR), STALL]),
    Fault("U15 an error word", [*STARTED, chunk(b'data: {"error": "no GPU is free"}\n\n'), STALL]),
    Fault("U15 an event that was cut inside", [*STARTED, NOT_JSON, STALL]),
    Fault("U16 an event that is not UTF-8", [*STARTED, NOT_UTF8, STALL]),
    Fault("U16 an event that is not UTF-8, in pieces", [*STARTED, NOT_UTF8[:-4], 0.01, NOT_UTF8[-4:], STALL]),
    Fault("U15 an error event and then the end mark", [*STARTED, chunk(ERROR + DONE), LAST_CHUNK]),
    Fault("U15 an error event in pieces",
          [*STARTED, chunk(ERROR[:9]), 0.01, chunk(ERROR[9:-1]), 0.01, chunk(b"\n"), STALL]),
]  # fmt: skip
"""Streams that break when the caller has heard of them: no other channel may go on."""

STRANGE_USAGE = {**usage_frame(), "usage": {"prompt_tokens": -5, "completion_tokens": 1e12}}
USAGE_WITH_TEXT = event({**delta(TEXT), "usage": {"prompt_tokens": "5"}})
WORDS = event(delta(TEXT)) + event(delta("", "stop"))
BODY = orjson.dumps(
    {
        **COMPLETION,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
    }
)
LATE = event(delta("late"))


def bytewise(raw: bytes) -> list[bytes]:
    return [chunk(raw[index : index + 1]) for index in range(len(raw))]


FINE = [
    Fault("U7 bytes after the end", [SSE_HEAD, chunk(WORDS + DONE + LATE), STALL], "estimate", STREAM, begun=True),
    Fault("U7 bytes after the end", [answer(BODY) + answer(b'{"late": 1}')], "upstream", streams=WHOLE, begun=True),
    Fault("U14 strange usage first", [SSE_HEAD, chunk(USAGE_WITH_TEXT + event(delta("", "stop")) + DONE), LAST_CHUNK],
          "estimate", streams=STREAM),
    Fault("U14 strange usage last", [SSE_HEAD, chunk(WORDS + event(STRANGE_USAGE) + DONE), LAST_CHUNK], "estimate",
          streams=STREAM, begun=True),
    Fault("U14 strange usage", [answer({**orjson.loads(BODY), "usage": {"prompt_tokens": True}})], "estimate",
          streams=WHOLE, begun=True),
    Fault("U16 BOM, CRLF", [SSE_HEAD, chunk(BOM + (COMMENT_LINE + WORDS + DONE).replace(b"\n", b"\r\n")), LAST_CHUNK],
          "estimate", streams=STREAM),
    Fault("U16 byte by byte, CR", [SSE_HEAD, *bytewise((WORDS + event(usage_frame()) + DONE).replace(b"\n", b"\r")),
          LAST_CHUNK], "upstream", STREAM, begun=True),
    Fault("U16 a second end mark, data after it", [SSE_HEAD, chunk(WORDS + DONE + DONE + LATE), LAST_CHUNK], "estimate",
          streams=STREAM, begun=True),
    Fault("U16 byte by byte", [JSON_HEAD, *bytewise(BODY), LAST_CHUNK], "upstream", WHOLE, begun=True),
]  # fmt: skip
"""Strange, and an answer all the same. ``code`` says whose count of the tokens is believed."""
