"""A conversation, written for Anthropic."""

import re
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.chat.anthropic.model_features import DEFAULT_MAX_TOKENS
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.anthropic.request_reader import parse_chat_request
from gateway.formats.chat.anthropic.request_writer import build_body
from gateway.formats.chat.model import (
    GEMINI_PREFIX,
    ChatRequest,
    ForcedTool,
    MediaPart,
    Message,
    Part,
    ReasoningPart,
    ResponseFormat,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from gateway.formats.chat.valid_chat import OPENING_TEXT
from tests.support.table_rows import table_rows

OLD, NEW = "claude-sonnet-4-5", "claude-opus-5-5"
MODELS = (OLD, "claude-sonnet-4-6", "claude-opus-5", NEW, "kimi-k2")
EPHEMERAL = {"type": "ephemeral"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
IMAGE = MediaPart("image", "image/png", "AAAA")
HI = Message("user", (TextPart("hi"),))
HELLO = Message("assistant", (TextPart("hello"),))
TOOL = Tool("f", "does f", SCHEMA)


def write(*turns: Message, model: str = OLD, **body: Any) -> dict[str, Any]:
    return build_body(ChatRequest(turns or (HI,), **body), model, stream=False)


def refuse(*turns: Message, model: str = OLD, **body: Any) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        write(*turns, model=model, **body)
    return caught.value.param


def user(*parts: Part) -> Message:
    return Message("user", parts)


def assistant(*parts: Part) -> Message:
    return Message("assistant", parts)


def system(text: str, cache: Any = None) -> Message:
    return Message("system", (TextPart(text, cache),))


def test_the_least_there_is() -> None:
    assert write() == {"model": OLD, "max_tokens": DEFAULT_MAX_TOKENS, "messages": [{"role": "user", "content": "hi"}]}


def test_streaming_is_asked_for() -> None:
    assert build_body(ChatRequest((HI,)), OLD, stream=True)["stream"] is True


def test_every_system_turn_is_hoisted_in_order() -> None:
    body = write(system("a"), HI, system("b", EPHEMERAL), HELLO, user(TextPart("bye")))
    assert body["system"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": EPHEMERAL}]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]


def test_a_single_system_text_is_a_plain_string_unless_it_is_marked() -> None:
    assert write(system("a"), HI)["system"] == "a"
    assert write(system("a", EPHEMERAL), HI)["system"] == [{"type": "text", "text": "a", "cache_control": EPHEMERAL}]


def test_a_system_that_speaks_alone_is_answered_as_the_user() -> None:
    assert write(system("a"))["messages"] == [{"role": "user", "content": "a"}]
    body = write(system("a"), system("b"), user(TextPart(" ")))
    assert (body["system"], body["messages"]) == ("a", [{"role": "user", "content": "b"}])


def test_a_system_that_speaks_last_to_an_assistant_is_answered_as_the_user() -> None:
    body = write(system("a"), HI, HELLO, system("sum up"), model=NEW)
    assert body["system"] == "a"
    assert body["messages"][-1] == {"role": "user", "content": "sum up"}


def test_an_assistant_that_speaks_first_is_opened_by_the_user() -> None:
    assert [message["content"] for message in write(HELLO, HI)["messages"]] == [OPENING_TEXT, "hello", "hi"]


@table_rows("turns", [(user(),), (user(TextPart(" \n")),), (assistant(ReasoningPart("hm")),)])
def test_where_nothing_is_left_to_answer_it_is_refused(turns: tuple[Message, ...]) -> None:
    assert refuse(*turns) == "messages"


def test_turns_of_one_role_become_one_with_results_first_and_blanks_dropped() -> None:
    turns = (
        HI,
        assistant(TextPart(""), ToolCallPart("1", "f", "{}")),
        assistant(ToolCallPart("2", "f", '{"a": 1}')),
        user(TextPart("well")),
        user(ToolResultPart("1", (TextPart("ok"),))),
        user(ToolResultPart("2", (TextPart(""), IMAGE), failed=True)),
    )
    assert write(*turns)["messages"] == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "1", "name": "f", "input": {}},
                {"type": "tool_use", "id": "2", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "ok"},
                {
                    "type": "tool_result",
                    "tool_use_id": "2",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
                    ],
                    "is_error": True,
                },
                {"type": "text", "text": "well"},
            ],
        },
    ]


def test_a_result_without_words_has_no_content() -> None:
    turns = (HI, assistant(ToolCallPart("1", "f", "{}")), user(ToolResultPart("1", (TextPart(""),))))
    assert write(*turns)["messages"][-1]["content"] == [{"type": "tool_result", "tool_use_id": "1"}]


def test_thoughts_go_back_where_somebody_signed_them() -> None:
    thoughts = (
        ReasoningPart("hm", "s"),
        ReasoningPart("unsigned"),
        ReasoningPart(redacted_data="x"),
        TextPart("hello"),
    )
    assert write(HI, assistant(*thoughts), HI)["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "hello"},
    ]


def test_a_message_to_be_continued_ends_without_blanks() -> None:
    assert write(HI, assistant(TextPart("{ \n")))["messages"][-1]["content"] == "{"
    thought = write(HI, assistant(ReasoningPart("hm", "s"), TextPart("so ")))["messages"][-1]["content"]
    assert thought[-1] == {"type": "text", "text": "so"}


def test_a_model_that_continues_nothing_is_not_asked_to() -> None:
    assert refuse(HI, HELLO, model=NEW) == "messages"


@table_rows(
    ("arguments", "written"),
    [
        ("", {}),
        (" ", {}),
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("[1]", {"arguments": "[1]"}),
        ('{"a": ', {"arguments": '{"a": '}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ('{"a":' * 300 + "1" + "}" * 300, {"arguments": '{"a":' * 300 + "1" + "}" * 300}),
        ("[" * 5000, {"arguments": "[" * 5000}),
    ],
)
def test_arguments_are_an_object_whatever_the_model_wrote(arguments: str, written: Any) -> None:
    body = write(HI, assistant(ToolCallPart("1", "f", arguments)), user(ToolResultPart("1", ())))
    assert body["messages"][1]["content"][0]["input"] == written
    assert orjson.dumps(body)


@given(st.lists(st.text(max_size=60), min_size=2, max_size=4, unique=True))
def test_ids_keep_to_their_letters_and_use_and_result_stay_together(ids: list[str]) -> None:
    uses = assistant(*(ToolCallPart(id_, "f", "") for id_ in ids))
    _, body, answered = write(HI, uses, user(*(ToolResultPart(id_, ()) for id_ in ids)))["messages"]
    written = [block["id"] for block in body["content"]]
    assert all(re.fullmatch("[a-zA-Z0-9_-]+", id_) for id_ in written)
    assert len(set(written)) == len(ids)
    assert written == [block["tool_use_id"] for block in answered["content"]]


def test_a_good_id_stays_as_it_is() -> None:
    assert write(HI, assistant(ToolCallPart("call_1-x", "f", "")), HI)["messages"][1]["content"][0]["id"] == "call_1-x"


def test_tools_and_their_marks() -> None:
    tools = (attrs.evolve(TOOL, cache_control=EPHEMERAL, strict=False), Tool("g"))
    assert write(tools=tools)["tools"] == [
        {"name": "f", "description": "does f", "input_schema": SCHEMA, "cache_control": EPHEMERAL},
        {"name": "g", "input_schema": {"type": "object", "properties": {}}},
    ]


def test_a_strict_tool_is_strict_where_the_model_can_be() -> None:
    strict = attrs.evolve(TOOL, strict=True)
    (tool,) = write(tools=(strict,))["tools"]
    assert (tool["strict"], tool["input_schema"]) == (True, SCHEMA | {"additionalProperties": False})
    (tool,) = write(tools=(strict,), model="kimi-k2")["tools"]
    assert (tool.get("strict"), tool["input_schema"]) == (None, SCHEMA)


@table_rows(
    ("body", "written"),
    [
        ({}, None),
        ({"parallel_tools": True}, None),
        ({"parallel_tools": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "required", "parallel_tools": False}, {"type": "any", "disable_parallel_tool_use": True}),
        ({"tool_choice": ForcedTool("f")}, {"type": "tool", "name": "f"}),
        ({"tool_choice": "none", "parallel_tools": False}, {"type": "none"}),
    ],
)
def test_the_choice_of_a_tool(body: dict[str, Any], written: Any) -> None:
    assert write(tools=(TOOL,), **body).get("tool_choice") == written


def test_without_tools_there_is_no_choice() -> None:
    assert "tool_choice" not in write(tool_choice="none", parallel_tools=False)
    assert refuse(tool_choice="required") == "tool_choice"


def test_a_model_that_cannot_be_made_to_use_a_tool_is_not() -> None:
    assert refuse(tools=(TOOL,), tool_choice=ForcedTool("f"), model=NEW) == "tool_choice"
    assert refuse(tools=(TOOL,), tool_choice="required", model=NEW) == "tool_choice"


@table_rows(
    ("model", "thinks"),
    [
        ("claude-opus-4-5", False),
        ("claude-opus-4-6", False),
        ("claude-sonnet-4-6", False),
        ("claude-opus-4-7", False),
        ("claude-opus-4-8", True),
        ("claude-opus-5", True),
    ],
)
@table_rows("choice", ["required", ForcedTool("f")])
@table_rows("wish", [{"effort": "high"}, {"thinking_tokens": 2048}])
def test_before_a_forced_call_only_newer_models_think(model: str, thinks: bool, choice: Any, wish: Any) -> None:
    asked: Any = {"tools": (TOOL,), "model": model, "max_tokens": 9000, **wish}
    assert ("thinking" in write(tool_choice=choice, **asked)) is thinks
    assert "thinking" in write(**asked)


def test_where_thinking_is_counted_a_forced_tool_comes_before_a_thought() -> None:
    assert "thinking" not in write(tools=(TOOL,), tool_choice="required", effort="high")
    assert "thinking" in write(tools=(TOOL,), tool_choice="required", effort="high", model="claude-opus-5")


@table_rows(
    ("turns", "thinks"),
    [
        ((HI, assistant(ToolCallPart("1", "f", "")), user(ToolResultPart("1", ()))), False),
        ((HI, assistant(ReasoningPart("hm", "s"), ToolCallPart("1", "f", "")), user(ToolResultPart("1", ()))), True),
        (
            (HI, assistant(ToolCallPart("1", "f", "")), user(ToolResultPart("1", ())), assistant(TextPart("so")), HI),
            True,
        ),
        ((HI, assistant(ToolCallPart("1", "f", "")), user(ToolResultPart("1", ()), TextPart("and?"))), False),
        ((HI,), True),
    ],
)
def test_where_thinking_is_counted_a_turn_in_progress_has_to_have_begun_with_a_thought(
    turns: tuple[Message, ...], thinks: bool
) -> None:
    body = write(*turns, tools=(TOOL,), effort="low", temperature=0.5)
    assert ("thinking" in body, "temperature" in body) == (thinks, not thinks)


def test_a_schema_is_kept_to_where_the_model_can_and_beside_an_effort() -> None:
    body = write(format=ResponseFormat("schema", SCHEMA, name="a", strict=True), effort="low", model=NEW)
    schema = SCHEMA | {"additionalProperties": False}
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    assert "system" not in body


def test_any_json_is_a_sentence() -> None:
    body = write(format=ResponseFormat("json"))
    assert "JSON object" in body["system"]
    assert "output_config" not in body


def test_what_cannot_be_said_is_refused() -> None:
    assert refuse(n=2) == "n"
    assert refuse(user(MediaPart("audio", "audio/wav", "AAAA"))) == "messages"
    assert refuse(Message("system", (IMAGE,)), HI) == "messages"


def test_a_image_that_another_model_made_is_named_in_its_place() -> None:
    assert write(HI, assistant(TextPart("here"), IMAGE), HI)["messages"][1]["content"] == [
        {"type": "text", "text": "here"},
        {"type": "text", "text": "[image]"},
    ]


def test_a_thought_that_gemini_signed_is_not_given_back_to_another() -> None:
    thoughts = (ReasoningPart("hm", GEMINI_PREFIX + "c2ln"), TextPart("so"))
    assert write(HI, assistant(*thoughts), HI)["messages"][1]["content"] == "so"


def test_what_nobody_has_here_is_dropped() -> None:
    assert write(seed=1, presence_penalty=1.0, frequency_penalty=1.0) == write()


def test_the_user_is_named() -> None:
    assert write(user="me")["metadata"] == {"user_id": "me"}


# What the hub can say, and this language with it: what was written is read back as it was.

WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).map("w{}w".format)
IDS = st.from_regex(r"\A[a-zA-Z0-9_-]{1,8}\Z")
MARKS = st.none() | st.sampled_from([EPHEMERAL, {"type": "ephemeral", "ttl": "1h"}])
OBJECTS = st.dictionaries(WORDS, st.none() | st.booleans() | st.integers(-9, 9) | WORDS, max_size=2)
ARGUMENTS = OBJECTS.map(lambda value: orjson.dumps(value).decode())
TEXTS = st.builds(TextPart, WORDS, MARKS)
IMAGES = st.builds(MediaPart, st.just("image"), st.just("image/png"), st.just("AAAA"), cache_control=MARKS) | st.builds(
    MediaPart, st.just("image"), url=WORDS, cache_control=MARKS
)
FILES = st.builds(
    MediaPart,
    st.just("file"),
    st.just("application/pdf"),
    st.just("JVBERi0="),
    name=st.none() | WORDS,
    cache_control=MARKS,
)
MATTERS = st.lists(TEXTS | IMAGES | FILES, max_size=3).map(tuple)
RESULTS = st.builds(ToolResultPart, IDS, MATTERS, st.booleans(), MARKS)
THOUGHTS = st.builds(ReasoningPart, WORDS, WORDS) | st.builds(ReasoningPart, redacted_data=WORDS)
USES = st.builds(ToolCallPart, IDS, IDS, ARGUMENTS, cache_control=MARKS)
USERS = st.tuples(st.lists(RESULTS, max_size=2), st.lists(TEXTS | IMAGES | FILES, min_size=1, max_size=2)).map(
    lambda parts: Message("user", (*parts[0], *parts[1]))
)
ASSISTANTS = st.lists(THOUGHTS | TEXTS | USES, min_size=1, max_size=3).map(
    lambda parts: Message("assistant", tuple(parts))
)
SYSTEMS = st.lists(TEXTS, min_size=1, max_size=2).map(lambda parts: Message("system", tuple(parts)))
TURNS = st.tuples(
    st.lists(SYSTEMS, max_size=1), st.lists(st.tuples(USERS, ASSISTANTS), max_size=2), USERS
).map(lambda answer: (*answer[0], *(turn for pair in answer[1] for turn in pair), answer[2]))  # fmt: skip
SCHEMAS = st.just(SCHEMA | {"additionalProperties": False})
TOOLS = st.lists(
    st.builds(Tool, IDS, st.none() | WORDS, SCHEMAS, st.none() | st.just(value=True), MARKS), max_size=2
).map(tuple)
ANSWERED = st.builds(
    ChatRequest,
    TURNS,
    max_tokens=st.integers(1, 99_999),
    temperature=st.none() | st.floats(0, 1),
    top_k=st.none() | st.integers(0, 9),
    stop=st.lists(WORDS, max_size=2).map(tuple),
    tools=TOOLS,
    tool_choice=st.none(),
    parallel_tools=st.none(),
    format=st.none() | st.builds(ResponseFormat, st.just("schema"), SCHEMAS),
    thinking_tokens=st.none() | st.just(0),
    user=st.none() | WORDS,
)


@given(ANSWERED)
def test_what_both_can_say_comes_back_as_it_was(conversation: ChatRequest) -> None:
    body = build_body(conversation, OLD, stream=False)
    assert parse_chat_request(parse_messages_inference(orjson.loads(orjson.dumps(body))).body) == conversation


@given(st.sampled_from(["auto", "none", "required"]) | st.just(ForcedTool("f")), st.none() | st.just(value=False))
def test_so_does_a_choice_beside_tools(choice: Any, parallel: bool | None) -> None:
    answer = ChatRequest((HI,), max_tokens=1, tools=(TOOL,), tool_choice=choice, parallel_tools=parallel)
    expected = attrs.evolve(answer, parallel_tools=None) if choice == "none" else answer
    assert parse_chat_request(build_body(answer, OLD, stream=False)) == expected


# And whatever the hub says, what is written keeps to the rules.

ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
ANY_TEXTS = st.builds(TextPart, ANY_TEXT | st.sampled_from(["", " ", "\n"]), MARKS)
ANY_BLOBS = st.builds(
    MediaPart,
    st.sampled_from(["image", "image", "file", "audio"]),
    st.none() | st.sampled_from(["image/png", "application/pdf", "text/plain", "x/y"]),
    st.none() | st.sampled_from(["AAAA", "JVBERi0=", "d29yZHM=", "é"]),
    st.none() | st.just("https://x/y"),
)
ANY_PARTS = (
    ANY_TEXTS
    | ANY_BLOBS
    | st.builds(ReasoningPart, ANY_TEXT, st.none() | ANY_TEXT, st.none() | ANY_TEXT)
    | st.builds(ToolCallPart, ANY_TEXT, ANY_TEXT, ANY_TEXT | ARGUMENTS)
    | st.builds(ToolResultPart, ANY_TEXT, st.lists(ANY_TEXTS | ANY_BLOBS, max_size=2).map(tuple), st.booleans())
)
ANY_TURNS = st.lists(
    st.builds(
        Message,
        st.sampled_from(["system", "user", "user", "assistant"]),
        st.lists(ANY_TEXTS | ANY_TEXTS | ANY_PARTS, max_size=3).map(tuple),
    ),
    max_size=5,
).map(tuple)
ANYTHING = st.builds(
    ChatRequest,
    ANY_TURNS,
    max_tokens=st.none() | st.integers(1, 99_999),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    stop=st.lists(ANY_TEXT, max_size=2).map(tuple),
    tools=TOOLS,
    tool_choice=st.none() | st.sampled_from(["auto", "none", "required"]),
    parallel_tools=st.none() | st.booleans(),
    format=st.none() | st.builds(ResponseFormat, st.sampled_from(["json", "schema"]), st.none() | OBJECTS),
    thinking_tokens=st.none() | st.integers(0, 99_999),
    effort=st.none() | st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
    user=st.none() | ANY_TEXT,
)


@given(ANYTHING, st.sampled_from(MODELS))
def test_whatever_is_said_is_refused_by_name_or_written_by_the_rules(conversation: ChatRequest, model: str) -> None:
    try:
        body = build_body(conversation, model, stream=False)
    except InvalidRequest as refused:
        assert refused.param in {"messages", "tool_choice"}  # noqa: PT017 - either way is right
        return
    parse_messages_inference(orjson.loads(orjson.dumps(body)))
    roles = [message["role"] for message in body["messages"]]
    assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
    for message in body["messages"]:
        check_content(message["content"])
    thinking = body.get("thinking", {})
    if thinking.get("type") == "enabled":
        assert 1024 <= thinking["budget_tokens"] < body["max_tokens"]
    if thinking.get("type") in {"enabled", "adaptive"} or model in {"claude-opus-5", NEW}:
        assert "temperature" not in body
    if model == NEW:
        assert roles[-1] == "user"
        assert thinking.get("type") in {None, "adaptive"}


def check_content(content: Any) -> None:
    if isinstance(content, str):
        assert content.strip()
        return
    assert content
    kinds = [block["type"] for block in content]
    assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result")
    for block in content:
        assert block["type"] != "text" or block["text"].strip()
