"""A chat that any client may have sent, made valid for each format of providers."""

import json
import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.chat.anthropic import request_writer as anthropic
from gateway.formats.chat.bedrock import request_writer as bedrock
from gateway.formats.chat.gemini import request_writer as gemini
from gateway.formats.chat.model import (
    ChatRequest,
    ForcedTool,
    MediaPart,
    Message,
    Part,
    ResponseFormat,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from gateway.formats.chat.valid_chat import ANSWER_TOOL, CHAT_RULES, ChatRules, find_chat_rules, make_valid
from tests.support.table_rows import table_rows

RULES = {
    "chat": CHAT_RULES,
    "claude": anthropic.find_rules("claude-sonnet-4-5"),
    "claude-old": anthropic.find_rules("claude-opus-4-1"),
    "converse": bedrock.find_rules("anthropic.claude-sonnet-4-6"),
    "gemini": gemini.find_rules("gemini-3-pro"),
    "gemini-old": gemini.find_rules("gemini-2.5-flash"),
}
LONG = "mcp__plugin_chrome-devtools-mcp_chrome-devtools__get_console_message"
OBJECT = {"type": "object", "properties": {}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}

OPEN_INSIDE = SCHEMA | {"properties": {"a": {"type": "object"}}}


def user(*parts: Any) -> Message:
    return Message("user", tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


def assistant(*parts: Any) -> Message:
    return attrs.evolve(user(*parts), role="assistant")


def system(text: str) -> Message:
    return Message("system", (TextPart(text),))


def call(call_id: str, name: str = "f", arguments: str = "{}") -> ToolCallPart:
    return ToolCallPart(call_id, name, arguments)


def result(call_id: str, text: str = "ok") -> ToolResultPart:
    return ToolResultPart(call_id, (TextPart(text),))


HI, ONE, TWO = user("hi"), call("c1"), call("c2")
NO_CALL = TextPart("[Called the tool f with {}; there is no result.]")


def valid(*turns: Message, rules: ChatRules = CHAT_RULES, model: str = "m", **fields: Any) -> ChatRequest:
    return make_valid(ChatRequest(turns or (HI,), **fields), rules, model).request


@table_rows(
    ("turns", "expected"),
    [
        ((HI, system("s")), (system("s"), HI)),
        ((system("a"), HI, system("b"), assistant("so")), (system("a"), system("b"), HI, assistant("so"))),
        ((HI, assistant(ONE), system("s"), user(result("c1"))), (system("s"), HI, assistant(ONE), user(result("c1")))),
        (
            (HI, assistant(ONE), user(result("c1")), assistant(TWO), system("s"), user(result("c2"))),
            (HI, assistant(ONE), user(result("c1")), assistant(TWO), user(result("c2"), "s")),
        ),
        ((HI, assistant("so"), HI, system("s")), (HI, assistant("so"), user("hi", "s"))),
    ],
    ids=["behind the user", "two", "behind a call", "later", "at the end"],
)  # fmt: skip
def test_a_system_message_leads_where_a_template_wants_that(
    turns: tuple[Message, ...], expected: tuple[Message, ...]
) -> None:
    for model in ("qwen3", "mistral-large", "gpt-oss-120b"):
        assert valid(*turns, rules=find_chat_rules(model)).messages == expected
    for model in ("gpt-5-mini", "openai/gpt-4o", "o3"):
        assert find_chat_rules(model) == CHAT_RULES


@table_rows(
    ("turns", "expected", "adapted"),
    [
        (
            (HI, assistant(ONE), system("s"), user(result("c1"))),
            (HI, system("s"), assistant(ONE), user(result("c1"))),
            (),
        ),
        (
            (HI, assistant(ONE), user("wait"), assistant("yes"), user(result("c1"), "go")),
            (HI, assistant(ONE), user(result("c1"), "wait"), assistant("yes"), user("go")),
            (),
        ),
        (
            (HI, assistant(ONE), system("s"), assistant(TWO), user(result("c2")), user(result("c1"))),
            (HI, system("s"), assistant(ONE, TWO), user(result("c2"), result("c1"))),
            (),
        ),
        ((HI, assistant("so", ONE), user("stop")), (HI, assistant("so", NO_CALL), user("stop")), ("tool_call",)),
        ((HI, assistant(ONE)), (HI, assistant(NO_CALL), user(".")), ("tool_call",)),
        ((HI, assistant(ONE), user()), (HI, assistant(NO_CALL), user(".")), ("tool_call",)),
        ((HI, assistant(ONE), system("s")), (HI, system("s"), assistant(NO_CALL), user(".")), ("tool_call",)),
        ((HI, assistant("so")), (HI, assistant("so")), ()),
        ((HI, assistant("so"), user()), (HI, assistant("so"), user(".")), ()),
        ((HI, assistant("so"), user(" \n", "")), (HI, assistant("so"), user(".")), ()),
        ((HI, assistant("so"), user(" ", "go")), (HI, assistant("so"), user(" ", "go")), ()),
        ((user(" "),), (user(" "),), ()),
        (
            (user(result("c1", "sun"), "and?"),),
            (user("[Result of an earlier tool call: sun]", "and?"),),
            ("tool_result",),
        ),
        (
            (HI, assistant(ONE), user(result("c1")), assistant(ONE), user(result("c1", "again"))),
            (HI, assistant(ONE), user(result("c1")), assistant(call("c1_2")), user(result("c1_2", "again"))),
            (),
        ),
        (
            (HI, assistant(ONE, ONE), user(result("c1", "a"), result("c1", "b"))),
            (HI, assistant(ONE, call("c1_2")), user(result("c1", "a"), result("c1_2", "b"))),
            (),
        ),
        ((HI, assistant(call("c1", "f", "")), user(result("c1"))), (HI, assistant(ONE), user(result("c1"))), ()),
        (
            (HI, assistant(call("c1", "f", '{"path": "a.t')), user(result("c1"))),
            (HI, assistant(call("c1", "f", r'{"arguments": "{\"path\": \"a.t"}')), user(result("c1"))),
            ("arguments",),
        ),
        (
            (HI, assistant(call("c1", "f", "[1]")), user(result("c1"))),
            (HI, assistant(call("c1", "f", '{"arguments": "[1]"}')), user(result("c1"))),
            ("arguments",),
        ),
        ((HI, Message("assistant", ()), HI), (user("hi", "hi"),), ()),
    ],
    ids=["system between", "user between", "calls apart", "no result", "last", "then nothing", "then a system message",
         "begun", "nothing said", "blanks said", "something said", "blank alone", "no call", "id again", "id twice",
         "no arguments", "broken", "a list", "empty"],
)  # fmt: skip
def test_a_history_is_put_right(
    turns: tuple[Message, ...], expected: tuple[Message, ...], adapted: tuple[str, ...]
) -> None:
    request = valid(*turns)
    assert (request.messages, request.adapted) == (expected, adapted)


@table_rows(
    ("name", "fits"),
    [
        ("get_weather-2", {"chat", "claude", "converse", "gemini"}),
        (LONG, {"claude", "gemini"}),
        ("clock.now:utc", {"gemini"}),
        ("2nd", {"chat", "claude", "converse"}),
        ("x" * 129, set()),
        ("é", set()),
        ("", set()),
    ],
)
@table_rows("wire", ["chat", "claude", "converse", "gemini"])
def test_a_name_that_is_too_long_is_another_one_there_and_known_again(name: str, fits: set[str], wire: str) -> None:
    history = (HI, assistant(call("c1", name)), user(result("c1")))
    tools = (Tool(name, None, OBJECT), Tool("other", None, OBJECT))
    made = make_valid(ChatRequest(history, tools=tools, tool_choice=ForcedTool(name)), RULES[wire], "m")
    sent = made.request.tools[0].name
    assert (sent == name) == (wire in fits)
    assert RULES[wire].name.fullmatch(sent)
    assert made.request.tool_choice == ForcedTool(sent)
    assert made.request.messages[1].parts == (call("c1", sent),)
    assert made.names == ({} if sent == name else {sent: name})


@table_rows(
    ("schema", "strict", "sent"),
    [
        ({"type": "object"}, None, (OBJECT, None)),
        ({}, None, (OBJECT, None)),
        ({"anyOf": [OBJECT]}, None, ({"type": "object", "anyOf": [OBJECT]}, None)),
        (SCHEMA, True, (SCHEMA, True)),
        (SCHEMA | {"required": []}, True, (SCHEMA | {"required": []}, None)),
        (OPEN_INSIDE, True, (OPEN_INSIDE, None)),
        (SCHEMA | {"required": []}, False, (SCHEMA | {"required": []}, False)),
        (None, None, (None, None)),
    ],
)  # fmt: skip
def test_a_tool_has_properties_and_is_strict_where_it_can_be(schema: Any, strict: Any, sent: Any) -> None:
    request = valid(tools=(Tool("f", None, schema, strict), Tool("f", "again")))
    assert [(tool.schema, tool.strict) for tool in request.tools] == [sent]
    assert ("tools.strict" in request.adapted) == (strict is True and sent[1] is None)
    assert "tools" in request.adapted


@table_rows(
    ("fields", "model", "tokens"),
    [({"max_tokens": 32_000}, "gpt-4o", 16_384), ({"max_tokens": 9}, "gpt-4o", 9), ({}, "gpt-4o", None),
     ({"max_tokens": 32_000}, "m", 32_000)],
)  # fmt: skip
def test_a_limit_over_the_models_is_lowered(fields: Any, model: str, tokens: int | None) -> None:
    request = valid(model=model, **fields)
    assert (request.max_tokens, request.adapted) == (tokens, ("max_tokens",) if tokens == 16_384 else ())


def test_any_json_names_json_once_at_openai() -> None:
    form = ResponseFormat("json")
    (reported, asked) = valid(format=form).messages
    assert ("JSON" in reported.parts[0].text, reported.role, asked) == (True, "system", HI)  # type: ignore[union-attr]
    assert valid(user("as Json"), format=form).messages == (user("as Json"),)


def test_a_schema_without_a_field_for_it_is_a_tool_or_a_sentence() -> None:
    strict, tool = ResponseFormat("schema", SCHEMA, "a", strict=True), Tool("f", None, OBJECT)
    alone = valid(rules=RULES["claude-old"], format=strict)
    assert [(one.name, one.schema) for one in alone.tools] == [(ANSWER_TOOL, SCHEMA)]
    assert (alone.tool_choice, alone.format, alone.adapted) == (ForcedTool(ANSWER_TOOL), None, ("response_format",))
    beside = valid(rules=RULES["claude-old"], format=strict, tools=(tool,))
    assert ([one.name for one in beside.tools], beside.tool_choice) == (["f", ANSWER_TOOL], "required")
    wish = valid(system("s"), HI, rules=RULES["claude-old"], format=attrs.evolve(strict, strict=None))
    assert (wish.tools, wish.format, '"required":["a"]' in str(wish.messages[0])) == ((), None, True)
    assert valid(rules=RULES["gemini-old"], format=strict).format == strict
    reported = valid(rules=RULES["gemini-old"], format=strict, tools=(tool,))
    assert (reported.format, reported.tools, '"required":["a"]' in str(reported.messages[0])) == (None, (tool,), True)
    for native in ("chat", "claude", "gemini"):
        assert valid(rules=RULES[native], format=strict, tools=(tool,)).format == strict


def test_what_is_only_wished_is_left_out_and_what_the_answer_needs_is_refused() -> None:
    claude = RULES["claude"]
    request = valid(rules=claude, top_logprobs=2)
    assert (request.top_logprobs, request.adapted) == (None, ("logprobs",))
    assert valid(top_logprobs=2).top_logprobs == 2
    assert valid(stop=("\n",)).stop == ("\n",)
    with pytest.raises(InvalidRequest) as caught:
        valid(rules=claude, stop=("END", "\n"))
    assert caught.value.param == "stop"


@table_rows(
    ("model", "prefills"),
    [("gemini-2.5-flash", True), ("gemini-3-pro-preview", True), ("gemini-3.1-pro", True), ("gemini-pro-latest", True),
     ("gemini-3.5-flash", False), ("models/gemini-3.6-flash", False), ("gemini-4-pro", False), ("own-name", True)],
)  # fmt: skip
def test_a_begun_answer_is_refused_where_the_model_does_not_continue_it(model: str, prefills: bool) -> None:
    rules = gemini.find_rules(model)
    assert valid(HI, assistant(ONE), rules=rules).messages[-1] == user(".")
    if prefills:
        assert valid(HI, assistant("so"), rules=rules).messages == (HI, assistant("so"))
        return
    with pytest.raises(InvalidRequest) as caught:
        valid(HI, assistant("so"), rules=rules)
    assert caught.value.param == "messages"


IDS = st.sampled_from(["c1", "c2", "", "c1_2"])
NAMES = st.sampled_from(["f", LONG, "clock.now", "", "é"])
PARTS = (
    st.builds(TextPart, st.sampled_from(["a", "b"]))
    | st.builds(ToolCallPart, IDS, NAMES, st.sampled_from(["{}", "", "{", '{"a":1}']))
    | st.builds(result, IDS)
)
ROLES: dict[Any, tuple[type[Part], ...]] = {
    "assistant": (TextPart, ToolCallPart),
    "user": (TextPart, ToolResultPart),
    "system": (TextPart,),
}


@st.composite
def turns(draw: Any) -> Message:
    role = draw(st.sampled_from([*ROLES]))
    return Message(role, tuple(part for part in draw(st.lists(PARTS, max_size=4)) if isinstance(part, ROLES[role])))


REQUESTS = st.builds(
    ChatRequest,
    st.lists(turns(), max_size=7).map(tuple),
    tools=st.lists(st.builds(Tool, NAMES, st.none(), st.sampled_from([None, {}, OBJECT, SCHEMA]), st.booleans())).map(
        tuple
    ),
    format=st.none() | st.builds(ResponseFormat, st.just("schema"), st.just(SCHEMA), st.none(), st.booleans()),
)


def find_problems(messages: tuple[Message, ...]) -> Iterator[str]:
    """What a provider's rules of order and completeness refuse."""
    seen: set[str] = set()
    for number, message in enumerate(messages):
        calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
        following = messages[number + 1] if number + 1 < len(messages) else Message("system", ())
        answered = [part.id for part in following.parts if isinstance(part, ToolResultPart)]
        results = [part.id for part in message.parts if isinstance(part, ToolResultPart)]
        before = messages[number - 1].parts if number else ()
        if calls and sorted(answered) != sorted(part.id for part in calls):
            yield "a call has no result behind it"
        if results and set(results) != {part.id for part in before if isinstance(part, ToolCallPart)}:
            yield "a result has no call before it"
        if results and not all(isinstance(part, ToolResultPart) for part in message.parts[: len(results)]):
            yield "a result is not first"
        if not all(isinstance(json.loads(part.arguments), dict) for part in calls):
            yield "arguments are no object"
        if seen & {part.id for part in calls} or not all(part.id for part in calls):
            yield "an id is not unique"
        seen |= {part.id for part in calls}
        if not message.parts or (message.role != "system" and number and messages[number - 1].role == message.role):
            yield "roles do not alternate"


@pytest.mark.parametrize("wire", RULES)
@given(request=REQUESTS)
def test_whatever_was_said_is_valid_everywhere_and_stays_so(wire: str, request: ChatRequest) -> None:
    rules = RULES[wire]
    made = make_valid(request, rules, "m")
    assert list(find_problems(made.request.messages)) == []
    names = [tool.name for tool in made.request.tools]
    assert len(set(names)) == len(names)
    called = [part.name for one in made.request.messages for part in one.parts if isinstance(part, ToolCallPart)]
    assert all(rules.name.fullmatch(name) for name in names + called)
    assert all(re.fullmatch(r"[\w-]*", name) or wire.startswith("gemini") for name in names)
    assert make_valid(made.request, rules, "m").request == made.request


@table_rows("rules", ["chat", "claude", "converse", "gemini"])
def test_a_file_of_an_earlier_turn_is_text_where_the_format_cannot_have_it(rules: str) -> None:
    film, image = MediaPart("file", "video/mp4", "AAAA"), MediaPart("image", "image/png", "AAAA")
    sound = MediaPart("audio", "audio/wav", "AAAA")
    result = ToolResultPart("c", (sound,))
    messages = (user(film, image), assistant(ToolCallPart("c", "f", "{}")), user(result), assistant("Yes"), user(film))
    valid = make_valid(ChatRequest(messages), RULES[rules], "m").request
    parts = [part for message in valid.messages for part in message.parts]
    lost = rules in {"claude", "converse"}
    assert valid.adapted == (("file", "audio") if lost else ())
    assert parts[0] == (TextPart("[file: a file that this model cannot read]") if lost else film)
    assert (parts[1], parts[-1]) == (image, film)
    heard = TextPart("[audio: a file that this model cannot read]") if lost else sound
    assert parts[3] == ToolResultPart("c", (heard,))
