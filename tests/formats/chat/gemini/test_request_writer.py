"""A conversation as Gemini takes it."""

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.gemini.request_writer import (
    DUMMY_SIGNATURE,
    build_body,
    build_count_body,
    find_rules,
    parse_count_answer,
)
from gateway.formats.chat.gemini.response import parse_answer
from gateway.formats.chat.model import (
    GEMINI_PREFIX,
    ChatRequest,
    ForcedTool,
    MediaPart,
    Message,
    Part,
    ReasoningPart,
    ReasoningSignature,
    TextPart,
    Tool,
    ToolCallDelta,
    ToolCallPart,
    ToolCallStart,
    ToolResultPart,
)
from gateway.formats.chat.valid_chat import make_valid
from tests.support.gemini_cassettes import SIGNATURE, TOOLS
from tests.support.table_rows import table_rows

OLD, NEW = "gemini-2.5-flash", "gemini-3.1-pro-preview"
HELLO = Message("user", (TextPart("Hello"),))
WEATHER = Tool("weather", "Of a city", {"type": "object", "properties": {"city": {"type": "string"}}})
Json = dict[str, Any]


def write(*turns: Message, model: str = OLD, **options: Any) -> Json:
    body = build_body(ChatRequest(turns, **options), model)
    orjson.dumps(body)  # what is no JSON cannot be sent
    return body


def contents(*turns: Message, model: str = OLD) -> list[Json]:
    written: list[Json] = write(*turns, model=model)["contents"]
    return written


def parts(*given_parts: Part, model: str = OLD) -> list[Json]:
    (content,) = contents(Message("user", given_parts), model=model)
    written: list[Json] = content["parts"]
    return written


def refuse(*turns: Message, **options: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        write(*turns, **options)
    return caught.value


def test_a_plain_question_is_only_its_contents() -> None:
    assert write(HELLO) == {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}


def test_instructions_stand_apart_in_their_order() -> None:
    body = write(Message("system", (TextPart("a"),)), HELLO, Message("system", (TextPart(""), TextPart("b"))))
    assert body["systemInstruction"] == {"parts": [{"text": "a"}, {"text": "b"}]}
    assert body["contents"] == write(HELLO)["contents"]


def test_instructions_alone_are_sent_as_a_turn() -> None:
    assert write(Message("system", (TextPart("Say hello"),))) == {
        "contents": [{"role": "user", "parts": [{"text": "Say hello"}]}]
    }


def test_the_user_begins() -> None:
    begun = {"role": "user", "parts": [{"text": "."}]}
    answer = Message("assistant", (TextPart("Yes"),))
    assert contents(answer, HELLO) == [begun, {"role": "model", "parts": [{"text": "Yes"}]}, *contents(HELLO)]
    ruled = write(Message("system", (TextPart("rule"),)), answer, HELLO, model=NEW)
    assert ruled == write(answer, HELLO, model=NEW) | {"systemInstruction": {"parts": [{"text": "rule"}]}}
    called = Message("assistant", (ToolCallPart("c1", "weather", "{}"),))
    answered = Message("user", (ToolResultPart("c1", (TextPart("sun"),)),))
    assert [content["role"] for content in contents(called, answered)] == ["user", "model", "user"]


def test_turns_of_one_side_in_a_row_are_one_and_empty_ones_none() -> None:
    assert contents(
        HELLO,
        Message("assistant", (ReasoningPart("hm"),)),
        Message("user", (TextPart("again"),)),
        Message("assistant", (TextPart("Hi"),)),
        Message("system", (TextPart("rule"),)),
        Message("assistant", (TextPart(""), TextPart("there"))),
    ) == [
        {"role": "user", "parts": [{"text": "Hello"}, {"text": "again"}]},
        {"role": "model", "parts": [{"text": "Hi"}, {"text": "there"}]},
    ]


def test_a_call_and_its_result_share_id_and_name() -> None:
    assert contents(
        HELLO,
        Message("assistant", (ToolCallPart("c1", "weather", '{"city":"Paris"}'), ToolCallPart("c2", "now", "{}"))),
        Message("user", (ToolResultPart("c2", (TextPart("noon"), TextPart("sharp"))),)),
        Message("user", (ToolResultPart("c1", (TextPart("no such city"),), failed=True), TextPart("and?"))),
    )[1:] == [
        {
            "role": "model",
            "parts": [
                {"functionCall": {"id": "c1", "name": "weather", "args": {"city": "Paris"}}},
                {"functionCall": {"id": "c2", "name": "now", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c2", "name": "now", "response": {"output": "noon\nsharp"}}},
                {"functionResponse": {"id": "c1", "name": "weather", "response": {"error": "no such city"}}},
            ],
        },
        {"role": "user", "parts": [{"text": "and?"}]},
    ]


def test_what_tools_answered_stands_first_and_alone() -> None:
    image = MediaPart("image", "image/png", "AA==")
    written = contents(
        HELLO,
        Message("assistant", (A, B)),
        Message(
            "user",
            (TextPart("note"), ToolResultPart("a", (TextPart("1"), image)), ToolResultPart("b", (TextPart("2"),))),
        ),
        Message("user", (TextPart("go on"),)),
    )
    kinds = [(content["role"], [key for part in content["parts"] for key in part]) for content in written[2:]]
    assert kinds == [("user", ["functionResponse"] * 2), ("user", ["text", "inlineData", "text"])]
    assert [part["functionResponse"]["id"] for part in written[2]["parts"]] == ["a", "b"]


def test_where_the_system_speaks_last_after_the_model_the_user_says_it() -> None:
    asked = Message("system", (TextPart("Now sum it up"),))
    body = write(Message("system", (TextPart("Be brief"),)), HELLO, Message("assistant", (TextPart("Hi"),)), asked)
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief"}]}
    assert body["contents"][-1] == {"role": "user", "parts": [{"text": "Now sum it up"}]}
    after_user = write(HELLO, asked)
    assert after_user["systemInstruction"] == {"parts": [{"text": "Now sum it up"}]}
    assert len(after_user["contents"]) == 1


def sign(*model_parts: Part, model: str) -> list[str | None]:
    """The signatures of the calls in a turn of the model."""
    written = contents(HELLO, Message("assistant", model_parts), model=model)[1]["parts"]
    return [part.get("thoughtSignature") for part in written if "functionCall" in part]


A, B = ToolCallPart("a", "f", "{}"), ToolCallPart("b", "f", "{}")
SIGNED = ToolCallPart("s", "f", "{}", signature="c2ln")


@table_rows(
    ("model_parts", "old", "new"),
    [
        ((A, B), [None, None], [DUMMY_SIGNATURE, None]),
        ((SIGNED, B), ["c2ln", None], ["c2ln", None]),
        ((A, SIGNED), [None, "c2ln"], [DUMMY_SIGNATURE, "c2ln"]),
        ((ReasoningPart("hm", GEMINI_PREFIX + "dGh0"), TextPart("so"), A, B), ["dGh0", None], ["dGh0", None]),
        ((ReasoningPart("hm", GEMINI_PREFIX + "dGh0"), SIGNED), ["c2ln"], ["c2ln"]),
        ((ReasoningPart("hm", "of another provider"), A), [None], [DUMMY_SIGNATURE]),
        ((ReasoningPart(redacted_data="sealed"), A), [None], [DUMMY_SIGNATURE]),
    ],
)
def test_a_call_has_its_own_signature_its_thoughts_or_the_one_for_none(
    model_parts: tuple[Part, ...], old: list[str | None], new: list[str | None]
) -> None:
    assert sign(*model_parts, model=OLD) == old
    assert sign(*model_parts, model=NEW) == new


def test_every_step_has_a_signature_of_its_own() -> None:
    turns = [
        turn
        for number in range(3)
        for turn in (
            Message("assistant", (ToolCallPart(f"c{number}", "f", "{}"),)),
            Message("user", (ToolResultPart(f"c{number}", (TextPart("ok"),)),)),
        )
    ]
    written = contents(HELLO, *turns, model=NEW)
    assert [content["parts"][0].get("thoughtSignature") for content in written] == [None, *[DUMMY_SIGNATURE, None] * 3]


def test_calls_of_gemini_come_back_as_they_were_made() -> None:
    answer = {"candidates": [{"content": {"parts": TOOLS[1]["candidates"][0]["content"]["parts"]}}]}
    events = parse_answer(orjson.dumps(answer), answer_id="r", model=NEW)
    arguments = {event.index: event.arguments for event in events if isinstance(event, ToolCallDelta)}
    calls = [
        ToolCallPart(event.id, event.name, arguments[event.index], event.signature)
        for event in events
        if isinstance(event, ToolCallStart)
    ]
    written = contents(HELLO, Message("assistant", tuple(calls)), model=NEW)[1]["parts"]
    theirs = answer["candidates"][0]["content"]["parts"]
    assert written[0] == theirs[0]
    assert written[1]["functionCall"] == theirs[1]["functionCall"] | {"id": "call_r_0_1"}


def test_a_signature_that_left_as_a_thoughts_comes_back_as_the_calls() -> None:
    parts_ = [{"text": "hm", "thought": True}, *TOOLS[1]["candidates"][0]["content"]["parts"][:1]]
    events = parse_answer(orjson.dumps({"candidates": [{"content": {"parts": parts_}}]}), answer_id="r", model=NEW)
    (signed,) = [event for event in events if isinstance(event, ReasoningSignature)]
    assert sign(ReasoningPart("hm", signed.signature), A, model=NEW) == [SIGNATURE]


@table_rows(
    ("blob", "expected"),
    [
        (MediaPart("image", "image/png", "AA=="), {"inlineData": {"mimeType": "image/png", "data": "AA=="}}),
        (MediaPart("audio", "audio/wav", "AA=="), {"inlineData": {"mimeType": "audio/wav", "data": "AA=="}}),
        (
            MediaPart("file", "application/pdf", "AA==", name="a.pdf"),
            {"inlineData": {"mimeType": "application/pdf", "data": "AA=="}},
        ),
        (
            MediaPart("image", url="https://x.org/a.JPG?s=1.png"),
            {"fileData": {"fileUri": "https://x.org/a.JPG?s=1.png", "mimeType": "image/jpeg"}},
        ),
        (MediaPart("image", url="http://x.org/a"), {"fileData": {"fileUri": "http://x.org/a"}}),
        (
            MediaPart("file", "text/csv", url="https://x.org/a.pdf"),
            {"fileData": {"fileUri": "https://x.org/a.pdf", "mimeType": "text/csv"}},
        ),
    ],
)
def test_what_is_not_text_goes_inline_or_by_its_address(blob: MediaPart, expected: Json) -> None:
    assert parts(TextPart("see"), blob) == [{"text": "see"}, expected]


@table_rows(
    "blob",
    [
        MediaPart("image", data="AA=="),
        MediaPart("file", name="file-id"),
        MediaPart("image", url="ftp://x.org/a.png"),
        MediaPart("image", url="gs://bucket/a.png"),
        MediaPart("image", url="//[x"),
        MediaPart("image", url=""),
    ],
)
def test_what_gemini_cannot_be_given_is_refused(blob: MediaPart) -> None:
    assert refuse(Message("user", (blob,))).param == "messages"


def test_a_image_in_a_result_is_inside_it_from_gemini_3_on_and_behind_it_before() -> None:
    def last(model: str, *results: TextPart | MediaPart) -> list[Json]:
        turns = (
            HELLO,
            Message("assistant", (A,)),
            Message("user", (ToolResultPart("a", (TextPart("see"), *results)),)),
        )
        return [part for content in contents(*turns, model=model)[2:] for part in content["parts"]]

    png, wav = MediaPart("image", "image/png", "AA=="), MediaPart("audio", "audio/wav", "AA==")
    link = MediaPart("image", url="https://x.org/a.png")
    inside = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    response = {"id": "a", "name": "f", "response": {"output": "see"}}
    assert last(OLD, png) == [{"functionResponse": response}, inside]
    assert last(NEW, png) == [{"functionResponse": response | {"parts": [inside]}}]
    assert [[*part] for part in last(NEW, png, wav, link)] == [["functionResponse"], ["inlineData"], ["fileData"]]


@table_rows(
    "turns",
    [(), (Message("user", (TextPart(""),)),), (Message("system", (MediaPart("image", "image/png", "AA=="),)), HELLO)],
)
def test_messages_that_cannot_be_said_are_refused(turns: tuple[Message, ...]) -> None:
    assert refuse(*turns).param == "messages"


def test_a_tool_is_declared_with_its_json_schema() -> None:
    body = write(HELLO, tools=(WEATHER, Tool("now"), Tool("noop", schema={"type": "object", "properties": {}})))
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {"name": "weather", "description": "Of a city", "parametersJsonSchema": WEATHER.schema},
                {"name": "now"},
                {"name": "noop"},
            ]
        }
    ]
    assert "toolConfig" not in body


@table_rows(
    ("choice", "expected"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        (ForcedTool("weather"), {"mode": "ANY", "allowedFunctionNames": ["weather"]}),
    ],
)
def test_a_choice_of_tools_is_a_mode(choice: Any, expected: Json) -> None:
    body = write(HELLO, tools=(WEATHER,), tool_choice=choice)
    assert body["toolConfig"] == {"functionCallingConfig": expected}


def test_a_choice_without_tools_is_dropped_or_refused() -> None:
    assert "toolConfig" not in write(HELLO, tool_choice="none")
    assert "toolConfig" not in write(HELLO, tool_choice="auto")
    assert refuse(HELLO, tool_choice="required").param == "tool_choice"
    assert refuse(HELLO, tool_choice=ForcedTool("weather")).param == "tool_choice"
    assert refuse(HELLO, tool_choice=ForcedTool("other"), tools=(WEATHER,)).param == "tool_choice"


def test_whom_a_call_is_for_stays_here() -> None:
    body = write(HELLO, user="someone", parallel_tools=False)
    assert body == write(HELLO)


def test_what_is_counted_is_the_prompt_with_its_instructions_and_tools() -> None:
    conversation = ChatRequest((Message("system", (TextPart("s"),)), HELLO), max_tokens=5, tools=(WEATHER,))
    body = build_body(conversation, OLD)
    assert body.pop("generationConfig") == {"maxOutputTokens": 5}
    assert build_count_body(conversation, OLD) == {"generateContentRequest": {"model": f"models/{OLD}", **body}}


def test_a_count_is_read() -> None:
    assert parse_count_answer(b'{"totalTokens": 31, "promptTokensDetails": []}') == 31


@table_rows(
    "raw", [b"", b"[]", b"{}", b'{"totalTokens":"31"}', b'{"totalTokens":-1}', b'{"totalTokens":1.5}', b'{"error":"x"}']
)
def test_what_is_no_count_is_a_fault(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_count_answer(raw)


TEXTS = st.text(max_size=8)
BLOBS = st.builds(
    MediaPart,
    st.sampled_from(["image", "audio", "file"]),
    st.none() | st.sampled_from(["image/png", "audio/wav"]),
    st.none() | st.just("AA=="),
    st.none() | st.sampled_from(["https://x.org/a.png", "//[", "data:image/png;base64,AA=="]) | TEXTS,
)
IDS = st.sampled_from(["a", "b", ""])
ARGUMENTS = st.sampled_from(["", "{}", '{"a":1}']) | TEXTS
PARTS: st.SearchStrategy[Part] = (
    st.builds(TextPart, TEXTS)
    | BLOBS
    | st.builds(ReasoningPart, TEXTS, st.none() | st.sampled_from(["x", GEMINI_PREFIX, GEMINI_PREFIX + "x"]))
    | st.builds(ToolCallPart, IDS, TEXTS, ARGUMENTS, st.none() | TEXTS)
    | st.builds(ToolResultPart, IDS, st.lists(st.builds(TextPart, TEXTS) | BLOBS, max_size=2).map(tuple), st.booleans())
)
TURNS = st.builds(Message, st.sampled_from(["system", "user", "assistant"]), st.lists(PARTS, max_size=3).map(tuple))


@given(st.lists(TURNS, max_size=5), st.sampled_from([OLD, NEW, "gemma-3-27b-it"]))
def test_any_conversation_is_a_body_or_refused(turns: list[Message], model: str) -> None:
    try:
        body = build_body(make_valid(ChatRequest(tuple(turns)), find_rules(model), model).request, model)
    except InvalidRequest:
        return
    contents = body["contents"]
    assert contents
    for first, second in itertools.pairwise(contents):
        # Only tools' answers stand apart from what else the same side says.
        assert first["role"] != second["role"] or all("functionResponse" in part for part in first["parts"])
    assert all(content["parts"] for content in body["contents"])
