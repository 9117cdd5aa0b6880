"""A conversation is compacted by any model: the request for a summary, the item with it, and its way back."""

from typing import Any

import orjson
import pytest

from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.responses.compact_call import (
    build_compact_body,
    parse_compact_answer,
    parse_compact_inference,
)
from gateway.formats.chat.responses.compaction import PROMPT, SUMMARY_PREFIX
from gateway.formats.chat.responses.compaction_writer import build_answer
from gateway.formats.chat.responses.request_reader import parse_chat_request
from gateway.formats.chat.responses.responses import build_responses_body, parse_responses_inference
from gateway.formats.translator import ResponseIdentity
from tests.support.table_rows import table_rows

IDENTITY = ResponseIdentity("0123456789abcdef01234567", "m", 1_750_000_000)
USER = {"role": "user", "content": "Earlier"}
ANSWER = {"role": "assistant", "content": "Yes"}
TRIGGER = {"type": "compaction_trigger"}
OWN = {"type": "compaction", "encrypted_content": f"{SUMMARY_PREFIX}A door."}
THEIRS = {"type": "compaction", "encrypted_content": "gAAAA"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
FORM = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
TEXT = "Summary of the conversation before this point, written by the assistant:\n\nA door."


def read(*items: dict[str, Any], **more: Any) -> tuple[list[str], tuple[str, ...]]:
    request = parse_chat_request(parse_responses_inference({"model": "m", "input": list(items), **more}).body)
    texts = [part.text for one in request.messages for part in one.parts if isinstance(part, chat.TextPart)]
    return [PROMPT if text is PROMPT else text for text in texts], request.adapted


@table_rows(
    ("items", "texts", "adapted"),
    [
        ([USER, ANSWER, TRIGGER], ["Earlier", "Yes", PROMPT], ("compaction_trigger",)),
        ([USER, OWN, USER], ["Earlier", TEXT, "Earlier"], ()),
        ([USER, {**OWN, "type": "context_compaction"}, USER], ["Earlier", TEXT, "Earlier"], ()),
        ([USER, THEIRS, USER], ["Earlier", "Earlier"], ("compaction",)),
        ([{**THEIRS, "type": "context_compaction"}, USER], ["Earlier"], ("context_compaction",)),
        ([USER, ANSWER, TRIGGER, OWN, USER], ["Earlier", TEXT, "Earlier"], ()),
        ([USER, ANSWER, TRIGGER, OWN, ANSWER, TRIGGER], ["Earlier", TEXT, "Yes", PROMPT], ("compaction_trigger",)),
        ([USER, TRIGGER, ANSWER, USER], ["Earlier", "Yes", "Earlier"], ("compaction_trigger",)),
        ([USER, {"type": "compaction", "encrypted_content": None}, USER], ["Earlier"] * 2, ("compaction",)),
    ],
)
def test_a_summary_is_asked_for_and_replaces_what_it_summarizes(
    items: list[dict[str, Any]], texts: list[str], adapted: tuple[str, ...]
) -> None:
    assert read(*items) == (texts, adapted)


def test_a_summary_is_text_whatever_the_request_asks_of_answers() -> None:
    body = {"model": "m", "input": [USER, TRIGGER], "tools": [FUNCTION], "tool_choice": "required", "text": FORM}
    request = parse_chat_request(parse_responses_inference(body).body)
    assert (request.tool_choice, request.format, len(request.tools)) == ("none", None, 1)
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request(parse_responses_inference({"model": "m", "input": [TRIGGER]}).body)
    assert caught.value.param == "input"


def test_another_provider_gets_the_gateways_summary_as_a_message() -> None:
    inference = parse_responses_inference({"model": "m", "input": [USER, OWN, THEIRS, {"type": ["compaction"]}]})
    message = {"type": "message", "role": "user", "content": TEXT}
    assert build_responses_body(inference, "theirs")["input"] == [USER, message, THEIRS, {"type": ["compaction"]}]


def test_a_summary_counts_as_text_and_what_is_sealed_as_longer_than_its_text() -> None:
    def measure(content: str) -> int:
        return parse_responses_inference(
            {"model": "m", "input": [{"type": "compaction", "encrypted_content": content}]}
        ).max_prompt_tokens

    assert measure(SUMMARY_PREFIX + "汉" * 1000) > measure("x" * 1000) + 1000


def ask(*events: chat.Event, compact: bool) -> Any:
    last = {"role": "user", "content": [{"type": "input_text", "text": "B"}]}
    inference = parse_compact_inference({"model": "m", "input": [USER, ANSWER, last]})
    if not compact:
        inference = parse_responses_inference({"model": "m", "input": [USER, TRIGGER]})
    begun = chat.MessageStart("i", "theirs")
    return orjson.loads(
        build_answer((begun, *events, chat.ChoiceFinished("stop"), chat.STREAM_END), inference, IDENTITY)
    )


@table_rows("compact", [False, True])
def test_the_answers_text_is_one_item(compact: bool) -> None:
    events = (chat.ReasoningDelta("hm"), chat.TextDelta("A "), chat.TextDelta("door.\n"))
    made = ask(*events, compact=compact)
    item = {"type": "compaction", "id": f"cmp_{IDENTITY.id}_0", "encrypted_content": f"{SUMMARY_PREFIX}A door."}
    assert made["object"] == ("response.compaction" if compact else "response")
    assert made["output"][-1] == item
    kept = [(one["role"], one["content"][0]["text"]) for one in made["output"][:-1]]
    assert kept == ([("user", "Earlier"), ("user", "B")] if compact else [])
    assert [one["role"] for one in read_messages(made["output"])] == ["user"] * (3 if compact else 1)


def read_messages(output: list[Any]) -> list[dict[str, str]]:
    request = parse_chat_request(parse_responses_inference({"model": "m", "input": output}).body)
    return [{"role": one.role} for one in request.messages]


@table_rows("compact", [False, True])
def test_an_answer_without_a_text_is_the_providers_error(compact: bool) -> None:
    with pytest.raises(ProviderBadResponse, match="no summary"):
        ask(chat.TextDelta(" \n"), compact=compact)


@table_rows(
    ("asked", "sent"),
    [
        ({"input": [USER], "instructions": "Brief"}, {"input": [USER], "instructions": "Brief"}),
        ({"input": "Hi"}, {"input": [{"type": "message", "role": "user", "content": "Hi"}]}),
        ({"previous_response_id": "r", "store": True, "stream": False}, {"previous_response_id": "r"}),
        ({"input": [USER, OWN]}, {"input": [USER, {"type": "message", "role": "user", "content": TEXT}]}),
    ],
)
def test_a_provider_with_the_endpoint_gets_what_was_asked(asked: dict[str, Any], sent: dict[str, Any]) -> None:
    inference = parse_compact_inference({"model": "m", **asked})
    assert build_compact_body(inference, "theirs") == {"model": "theirs", **sent}


@table_rows(
    ("asked", "param"),
    [({"input": "Hi", "stream": True}, "stream"), ({"input": 5}, "input"), ({"input": [5]}, "input[0]"),
     ({"input": "Hi", "model": None}, "model")],
)  # fmt: skip
def test_what_cannot_be_compacted_is_refused_by_name(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_compact_inference({"model": "m", **asked})
    assert caught.value.param == param


def test_a_providers_compacted_conversation_is_counted() -> None:
    inference = parse_compact_inference({"model": "m", "input": "Hi"})
    usage = {"input_tokens": 42, "output_tokens": 7, "total_tokens": 49}
    whole = {"object": "response.compaction", "id": "r", "output": [THEIRS], "usage": usage}
    found = parse_compact_answer(orjson.dumps(whole), inference)
    assert (found.prompt_tokens, found.completion_tokens) == (42, 7)
    with pytest.raises(ProviderBadResponse):
        parse_compact_answer(orjson.dumps({**whole, "object": "response"}), inference)
