"""The same faults in Bedrock's Converse API, whose streams are binary messages with checksums: core ones only."""

from binascii import crc32
from struct import pack

import orjson

from tests.support import converse_cassettes as converse
from tests.support.fault_scene import QUICK
from tests.support.format_scripts import FIRST, SECOND, cut_wholes
from tests.support.scripted_upstream import FIN, LAST_CHUNK, RST, SSE_HEAD, STALL, Flood, Script, Step, answer, chunk
from tests.support.upstream_scripts import PATIENT, STREAM, TEXT, Fault, bytewise

HEAD = SSE_HEAD.replace(b"text/event-stream", converse.STREAM_TYPE.encode())
FAILURE = orjson.dumps({"message": "The model is overloaded"})
BODY = orjson.dumps(
    {
        "output": {"message": {"role": "assistant", "content": [{"text": TEXT}]}},
        "stopReason": "end_turn",
        "usage": converse.usage(5, 7),
        "metrics": {"latencyMs": 9},
    }
)
BROKEN = converse.exception("modelStreamErrorException", "The model is overloaded")
NEVER = converse.words("never")
FALSE_SUM = NEVER[:-1] + bytes([NEVER[-1] ^ 1])
"""A message whose last checksum is wrong."""
_PRELUDE = pack(">II", 0x7FFFFFFF, 0)
ENDLESS = _PRELUDE + pack(">I", crc32(_PRELUDE)) + b"x" * 64
"""A message that says it is longer than any may be."""
STARTED: Script = [HEAD, chunk(converse.BEGIN + converse.words(FIRST)), 0.01, chunk(converse.words(SECOND)), 0.01]
WORDS = converse.BEGIN + converse.words(FIRST) + converse.words(SECOND)
SENT = WORDS + converse.stop() + converse.finish() + converse.metadata()

_BEGUN: list[Step] = [HEAD, chunk(converse.BEGIN), 0.01]
BEFORE = [
    *cut_wholes(BODY, FAILURE),
    Fault("U5 FIN", [*_BEGUN, FIN], streams=STREAM),
    Fault("U5 RST", [*_BEGUN, RST], streams=STREAM),
    Fault("U6 nothing at all", [HEAD, LAST_CHUNK], streams=STREAM),
    Fault("U6 half a message", [*_BEGUN, chunk(NEVER[:-1]), LAST_CHUNK], streams=STREAM),
    # Longer than a busy machine takes for the beginning, without which nothing was bought.
    Fault(
        "U8 begun, then silence", [*_BEGUN, STALL], "upstream_timeout", STREAM, QUICK | {"first_byte_timeout_s": 0.6}
    ),
    Fault("U15 an exception first", [HEAD, chunk(BROKEN), STALL], streams=STREAM, tries=2),  # as of a 503
    Fault("U15 an error object", [answer(FAILURE)], streams=STREAM, broken_off=STREAM),
    Fault("U16 a wrong checksum", [*_BEGUN, chunk(FALSE_SUM), STALL], streams=STREAM, broken_off=STREAM),
    Fault("U16 a length beyond all bounds", [HEAD, chunk(ENDLESS), STALL], streams=STREAM, broken_off=STREAM),
]
AFTER = [
    Fault("U5 FIN between messages", [*STARTED, FIN]),
    Fault("U5 RST", [*STARTED, RST]),
    Fault("U6 no end", [*STARTED, LAST_CHUNK]),
    Fault("U6 half a message", [*STARTED, chunk(converse.finish()[:-1]), LAST_CHUNK]),
    Fault("U8 silence", [*STARTED, STALL], "upstream_timeout", timers=QUICK),
    Fault("U9 a flood of empty events", [*STARTED, Flood(chunk(converse.event("ping", {}) * 100), 80), STALL],
          timers=PATIENT),
    Fault("U15 an exception", [*STARTED, chunk(BROKEN), STALL]),
    Fault("U15 an exception in pieces", [*STARTED, chunk(BROKEN[:9]), 0.01, chunk(BROKEN[9:]), STALL]),
    Fault("U16 a wrong checksum", [*STARTED, chunk(FALSE_SUM), STALL]),
    Fault("U16 a length beyond all bounds", [*STARTED, chunk(ENDLESS), STALL]),
]  # fmt: skip
FINE = [
    Fault("U16 byte by byte", [HEAD, *bytewise(SENT), LAST_CHUNK], "upstream", STREAM, begun=True),
    Fault(
        "U16 an event that is not known",
        [HEAD, chunk(converse.event("newThing", {"a": 1}) + SENT), LAST_CHUNK],
        "upstream",
        STREAM,
    ),
]
