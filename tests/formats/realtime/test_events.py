"""What is read from the events of realtime sessions, and the events that the gateway sends itself."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import Usage, UsageDetails
from gateway.errors import InvalidRequest, RateLimited
from gateway.formats.realtime import events as wire
from tests.support.table_rows import table_rows

USAGE = {
    "total_tokens": 30,
    "input_tokens": 20,
    "output_tokens": 10,
    "input_token_details": {
        "text_tokens": 12,
        "audio_tokens": 8,
        "cached_tokens": 6,
        "cached_tokens_details": {"text_tokens": 4, "audio_tokens": 2},
    },
    "output_token_details": {"text_tokens": 3, "audio_tokens": 7},
}
SECOND = base64.b64encode(bytes(48_000)).decode()
ADDED = wire.RealtimeConversation().estimate_prompt()


def append(sound: str) -> dict[str, str]:
    return {"type": "input_audio_buffer.append", "audio": sound}


def test_the_usage_of_a_response_has_its_audio() -> None:
    assert wire.parse_realtime_usage(USAGE) == Usage(20, 10, 6, "upstream", details=UsageDetails(8, 2, 7))


@table_rows("raw", [None, [], {}, {"input_tokens": 5}, {"input_tokens": -1, "output_tokens": 1}])
def test_usage_that_is_missing_or_impossible_is_none(raw: object) -> None:
    assert wire.parse_realtime_usage(raw) is None


def test_a_transcript_may_be_paid_by_the_second() -> None:
    assert wire.parse_realtime_usage({"type": "duration", "seconds": 1.5}) == Usage(
        duration_ms=1_500, source="upstream"
    )


def test_the_end_of_a_response_tells_its_failure() -> None:
    response = {"id": "r", "status": "failed", "status_details": {"error": {"message": "Broken."}}, "usage": None}
    assert wire.parse_response_end({"response": response}) == wire.ResponseEnd(
        "r", "failed", None, "Broken.", is_complete=False
    )


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["type", "response", "session", "usage", "audio", "input", "format", "item", "content", "error", "delta", "id"]
    ), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip
KINDS = st.sampled_from(
    ["session.update", "session.updated", "response.done", "conversation.item.create", "input_audio_buffer.append"]
)


@given(st.dictionaries(st.sampled_from(["response", "session", "item", "audio", "error", "usage"]), JSON), KINDS)
def test_no_event_is_a_bug(event: dict[str, Any], kind: str) -> None:
    event["type"] = kind
    conversation = wire.RealtimeConversation()
    conversation.note_client(event)
    conversation.note_provider(event)
    conversation.note_output(event, wire.OutputMeter())
    end = wire.parse_response_end(event)
    conversation.note_end(conversation.mark_prompt(event), end, end.usage or wire.estimate_transcript(event, 5))
    assert ADDED <= conversation.estimate_prompt(event) <= conversation.bound_prompt(event)
    assert 0 < conversation.find_output_limit(event) <= wire.MAX_RESPONSE_TOKENS
    wire.find_cause(event)


def test_audio_and_text_that_the_client_adds_are_estimated() -> None:
    conversation = wire.RealtimeConversation()
    conversation.note_client(append(SECOND))
    assert conversation.estimate_prompt() == ADDED + 10
    conversation.note_client(
        {"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}}
    )
    conversation.note_client(append(SECOND))
    assert conversation.estimate_prompt() == ADDED + 10 + 60
    conversation.note_client({"type": "conversation.item.create", "item": {"content": [{"text": "x" * 400}]}})
    assert ADDED + 170 <= conversation.estimate_prompt() < ADDED + 190


ITEM = {"type": "conversation.item.create", "item": {"content": [{"text": "x" * 400}]}}
CREATE = {"type": "response.create"}
DONE = {"response": {"status": "completed", "usage": USAGE}}


def end(conversation: wire.RealtimeConversation, mark: wire.PromptMark, **response: Any) -> None:
    done = wire.parse_response_end({"response": DONE["response"] | response})
    conversation.note_end(mark, done, done.usage or Usage(9, 5))


def test_what_a_response_has_used_is_the_next_ones_prompt() -> None:
    conversation = wire.RealtimeConversation()
    conversation.note_client(append(SECOND))
    conversation.note_client(ITEM)
    end(conversation, conversation.mark_prompt(CREATE))
    assert conversation.estimate_prompt() == ADDED + 30


@table_rows(
    ("asked", "response", "added"),
    [
        (CREATE | {"response": {"conversation": "none"}}, {}, 10), (CREATE | {"response": {"input": []}}, {}, 10),
        (CREATE | {"response": {"instructions": ""}}, {}, 10), (CREATE | {"response": {"prompt": None}}, {}, 10),
        (CREATE, {"conversation_id": None}, 10), (CREATE, {"status": "cancelled"}, 10),
        (CREATE, {"status": "failed"}, 10), (CREATE, {"usage": None}, 5),
    ],
)  # fmt: skip
def test_a_response_that_has_not_read_the_conversation_does_not_say_its_size(
    asked: dict[str, Any], response: dict[str, Any], added: int
) -> None:
    conversation = wire.RealtimeConversation()
    conversation.note_client(append(SECOND))
    conversation.note_client(ITEM)
    before = conversation.estimate_prompt()
    end(conversation, conversation.mark_prompt(asked), **response)
    assert conversation.estimate_prompt() == before + added


def test_what_is_added_while_a_response_runs_is_not_in_its_usage() -> None:
    conversation = wire.RealtimeConversation()
    mark = conversation.mark_prompt(CREATE)
    image = {"type": "conversation.item.create", "item": {"content": [{"image_url": "https://up/x.png"}]}}
    for event in (ITEM, append(SECOND), image):
        conversation.note_client(event)
    before = conversation.estimate_prompt()
    end(conversation, mark)
    assert conversation.estimate_prompt() == before + 30
    assert conversation.reads_more
    begun = conversation.mark_prompt(None)  # by the provider: whether it has read the items is not known
    end(conversation, begun)
    assert conversation.estimate_prompt() == before + 30 - 10
    assert conversation.reads_more
    end(conversation, conversation.mark_prompt(CREATE))
    assert (conversation.estimate_prompt(), conversation.reads_more) == (ADDED + 30, False)


def test_settings_count_for_less_only_when_they_are_confirmed() -> None:
    conversation = wire.RealtimeConversation()
    long: dict[str, Any] = {"instructions": "x" * 4_000, "audio": {"input": {"format": {"type": "audio/pcmu"}}}}
    long["audio"]["input"]["transcription"] = {"model": "dear"}
    conversation.note_provider({"type": "session.updated", "session": long})
    before = conversation.estimate_prompt()
    assert before > ADDED + 1_000
    less: dict[str, Any] = {"instructions": "", "tools": [], "audio": {"input": {"format": {"type": "audio/pcm"}}}}
    less["audio"]["input"]["transcription"] = {"model": "cheap"}
    conversation.note_client({"type": "session.update", "session": less})
    conversation.note_client({"type": "input_audio_buffer.commit"})
    conversation.note_client(append(SECOND))
    conversation.note_client({"type": "input_audio_buffer.clear"})  # of what is not committed
    assert (conversation.estimate_prompt(), conversation.transcriber) == (before + 1 + 60, "dear")
    conversation.note_provider({"type": "session.updated", "session": less})
    assert (conversation.estimate_prompt(), conversation.transcriber) == (ADDED + 2 + 60, "cheap")


@table_rows("text", ["\U0001f9d1\u200d\U0001f680", "\u6f22", "\u0e01", "a"])
def test_no_token_is_shorter_than_a_byte(text: str) -> None:
    conversation = wire.RealtimeConversation()
    conversation.note_client({"type": "conversation.item.create", "item": {"content": [{"text": text * 900}]}})
    assert conversation.bound_prompt() >= 900 * len(text.encode())


@table_rows(
    ("session", "own", "limit"),
    [
        ({}, {}, 4_096),
        ({"max_output_tokens": 50}, {}, 50),
        ({"max_response_output_tokens": 60}, {}, 60),
        ({"max_output_tokens": 50}, {"max_output_tokens": "inf"}, 4_096),
        ({}, {"max_output_tokens": 70}, 70),
    ],
)
def test_the_output_is_limited_by_the_response_before_the_session(
    session: dict[str, Any], own: dict[str, Any], limit: int
) -> None:
    conversation = wire.RealtimeConversation()
    conversation.note_provider({"type": "session.updated", "session": session})
    assert conversation.find_output_limit({"type": "response.create", "response": own}) == limit


@table_rows(
    "session",
    [{"input_audio_transcription": {"model": "scribe"}}, {"audio": {"input": {"transcription": {"model": "scribe"}}}}],
)
def test_the_transcriber_is_found_in_both_versions(session: dict[str, Any]) -> None:
    assert [model for model, _ in wire.list_transcribers(session)] == ["scribe"]


def test_an_error_event_names_the_cause_and_the_request() -> None:
    event = orjson.loads(wire.build_error_event(RateLimited("Too many"), "req_1", "mine"))
    assert event["type"] == "error"
    assert event["error"] == {
        "type": "new_api_error",
        "code": "rate_limit_exceeded",
        "message": "Too many (request id: req_1)",
        "param": None,
        "event_id": "mine",
    }


@table_rows("model", [None, "", "x" * 257, "a\nb"])
def test_a_session_names_its_model(model: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        wire.build_session_inference(model)
    assert refused.value.param == "model"
