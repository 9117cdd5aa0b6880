"""Events of realtime sessions as they are kept: no audio, no secret wherever events cut it, and every event whole."""

import base64
import hashlib
import re
import tracemalloc
from typing import Any

import orjson
import pytest

from gateway.domain.keep_rule import RedactedKind
from gateway.formats.realtime.event_log import EventLog
from gateway.formats.redaction.body import redact_stream
from gateway.formats.redaction.event_texts import parse_event, split_events
from gateway.formats.redaction.redactor import Redactor
from tests.support.secret_samples import PERSONAL, SECRETS

KINDS: frozenset[RedactedKind] = frozenset({"secrets", "cards", "ibans", "mails"})
SAMPLES = {**SECRETS, **{kind: PERSONAL[kind][0] for kind in ("cards", "ibans", "mails")}}
TEXT_DELTAS = (
    "response.output_text.delta",
    "response.output_audio_transcript.delta",
    "response.audio_transcript.delta",
    "response.function_call_arguments.delta",
)
APPEND = "input_audio_buffer.append"


def write(*events: dict[str, Any] | bytes, keeps_media: bool = False) -> tuple[list[Any], bytes, tuple[int, ...]]:
    """The data of the events that are kept, their bytes and their times."""
    log = EventLog("output", keeps_media=keeps_media)
    for number, event in enumerate(events):
        log.add([(number * 10, event if isinstance(event, bytes) else orjson.dumps(event))])
    content, times_ms = log.build()
    return [parse_event(raw).data for raw in split_events(content)], content, times_ms


def delta(kind: str, piece: str, number: int) -> dict[str, Any]:
    return {"type": kind, "event_id": f"event_{number}", "response_id": "r", "item_id": "i", "output_index": 0,
            "content_index": 0, "delta": piece}  # fmt: skip


def sound(data: bytes, kind: str = "response.output_audio.delta", item: str = "i") -> dict[str, Any]:
    field = "audio" if kind == APPEND else "delta"
    return {"type": kind, "item_id": item, field: base64.b64encode(data).decode()}


@pytest.mark.parametrize("name", SAMPLES)
def test_no_cut_between_events_hides_a_secret(name: str) -> None:
    text, mark = f"It is {SAMPLES[name]} now", "secret" if name in SECRETS else name[:-1]
    for cut in range(len(text) + 1):
        kind = TEXT_DELTAS[cut % len(TEXT_DELTAS)]
        _, content, _ = write(*(delta(kind, piece, number) for number, piece in enumerate((text[:cut], text[cut:]))))
        kept = redact_stream(content, Redactor(KINDS))
        pieces = [parse_event(raw).data for raw in split_events(kept)]
        assert "".join(piece["delta"] for piece in pieces) == f"It is [{mark} 1] now", cut
        assert [piece["event_id"] for piece in pieces] == ["event_0", "event_1"]


@pytest.mark.parametrize("name", SAMPLES)
def test_events_of_a_client_are_redacted(name: str) -> None:
    secret = SAMPLES[name]
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"Mine: {secret}"}]}
    settings = {"instructions": f"The key: {secret}"}
    events = ({"type": "session.update", "session": settings}, {"type": "conversation.item.create", "item": item})
    broken = f'{{"type": "x", "note": "{secret}'.encode()
    _, content, _ = write(*events, broken)
    kept = redact_stream(content, Redactor(KINDS))
    for form in (secret.encode(), orjson.dumps(secret)[1:-1]):
        assert form not in kept
    assert len(re.findall(rb"\[\w+ \d\]", kept)) == 3


def test_a_sound_is_one_event_with_its_size_and_digest() -> None:
    pieces = [bytes([number]) * 700 for number in range(5)]
    events: list[dict[str, Any]] = []
    for number, piece in enumerate(pieces):
        events += [sound(piece), delta(TEXT_DELTAS[1], f"word{number} ", number)]
    events += [{"type": "response.output_audio.done", "item_id": "i"}, sound(b"abc", item="j")]
    data, _, times_ms = write(*events)
    assert [event["type"] for event in data] == [
        *[TEXT_DELTAS[1]] * 5, "response.output_audio.delta", "response.output_audio.done",
        "response.output_audio.delta",
    ]  # fmt: skip
    digest = hashlib.sha256(b"".join(pieces)).hexdigest()
    assert data[5]["delta"] == f"[media audio, 5 events, 3,500 bytes, SHA-256 {digest}]"
    assert data[7]["delta"].startswith("[media audio, 1 events, 3 bytes")
    assert times_ms == (10, 30, 50, 70, 90, 80, 100, 110)


@pytest.mark.parametrize(
    "session", [{"output_audio_format": "g711_ulaw"}, {"audio": {"output": {"format": {"type": "audio/pcmu"}}}}]
)
def test_the_format_of_a_sound_is_named(session: dict[str, Any]) -> None:
    names = {"g711_ulaw", "audio/pcmu"}
    data, _, _ = write({"type": "session.created", "session": session}, sound(b"abc"))
    assert data[1]["delta"].removeprefix("[media ").partition(",")[0] in names


@pytest.mark.parametrize("keeps_media", [False, True])
def test_audio_and_images_of_items_are_left_out(keeps_media: bool) -> None:
    audio, image = base64.b64encode(bytes(200)).decode(), base64.b64encode(bytes(3000)).decode()
    content = [
        {"type": "input_audio", "audio": audio},
        {"type": "input_image", "image_url": f"data:image/png;base64,{image}"},
    ]
    item = {"type": "conversation.item.create", "item": {"content": content}}
    (event,), raw, _ = write(item, keeps_media=keeps_media)
    kept_audio, kept_image = event["item"]["content"]
    assert kept_audio["audio"].startswith("[media audio, 200 bytes, SHA-256 ")
    assert kept_image["image_url"].startswith("data:image" if keeps_media else "[media image/png, 3,000 bytes")
    assert (image.encode() in raw) == keeps_media


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"x","a":1.0}',
        b'{\n  "type": "x",\r\n  "a": [1,\n2]\n}',
        b"no json",
        b"[1,\r2]",
        b'{"type":"audio","audio":"echo"}',
        b'{"type":"response.audio.delta","delta":"no base64!"}',
        b'{"type":["response.audio.delta"],"delta":"YWJj"}',
    ],
)
def test_other_events_are_kept_as_they_came(raw: bytes) -> None:
    (data,), content, _ = write(raw)
    if raw.startswith(b"{"):
        assert data == orjson.loads(raw)
    assert content.replace(b"data: ", b"").split() == raw.split()


def test_sounds_without_number_hold_little() -> None:
    log = EventLog("output", keeps_media=False)
    for number in range(200):
        log.add([(0, orjson.dumps(sound(bytes(3000), item=f"i{number}")))])
    assert log.received_bytes > 800_000
    content, times_ms = log.build()
    assert len(times_ms) == len(split_events(content)) == 200
    assert log.stored_bytes < log.text_bytes < 60_000


def test_what_waits_of_sounds_is_small_and_everything_else_is_counted() -> None:
    """Up to 16 sounds wait for further pieces: no client may hold its frames there, outside the bound of memory."""
    log = EventLog("input", keeps_media=False)
    data = b"sound" * 40_000
    tracemalloc.start()
    try:
        for number in range(16):
            log.add([(number, orjson.dumps(sound(data, APPEND, f"i{number}")))])
        assert tracemalloc.get_traced_memory()[0] < len(data)
    finally:
        tracemalloc.stop()
    assert (log.text_bytes, log.stored_bytes) == (0, 0)
    junk = "".join(map(hex, range(10_000)))
    log.add([(17, orjson.dumps({**sound(data, APPEND, "large"), "junk": junk}))])
    assert log.text_bytes > len(junk) > 50_000
    assert log.stored_bytes > 10_000
    content, times_ms = log.build()
    events = [parse_event(raw).data for raw in split_events(content)]
    assert [event["item_id"] for event in events] == [*(f"i{number}" for number in range(16)), "large"]
    assert all(hashlib.sha256(data).hexdigest() in event["audio"] for event in events)
    assert (events[-1]["junk"], len(times_ms)) == (junk, 17)
