"""What the demo says is decided by the request alone."""

import contextlib
import itertools
import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from gateway.demo import chat as talk
from gateway.demo import requests as asks
from gateway.demo import text as words
from gateway.demo.schemas import fill
from tests.support.json_strategies import json_values
from tests.support.table_rows import table_rows

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer"},
        "hourly": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "extra": {"type": "object"},
        "unasked": {"type": "string"},
    },
    "required": ["city", "unit", "days", "hourly", "tags", "extra"],
}

schema_words = st.sampled_from(["type", "properties", "required", "enum", "const", "anyOf", "$ref", "object", "#/a"])
schemas = st.dictionaries(schema_words, st.recursive(schema_words | json_values, st.lists, max_leaves=3), max_size=5)

LEAVES = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("integer")},
        optional={
            "minimum": st.integers(-50, 10),
            "maximum": st.integers(10, 90),
            "multipleOf": st.sampled_from([1, 2]),
        },
    ),
    st.fixed_dictionaries({"type": st.just("number"), "exclusiveMinimum": st.integers(-9, 9)}),
    st.fixed_dictionaries({"type": st.just("number"), "exclusiveMaximum": st.integers(-9, 9)}),
    st.fixed_dictionaries({"type": st.just("number"), "exclusiveMinimum": st.just(1), "exclusiveMaximum": st.just(2)}),
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"minLength": st.integers(0, 40), "maxLength": st.integers(40, 60)}
    ),
    st.fixed_dictionaries(
        {"type": st.just("string"), "format": st.sampled_from(["date", "email", "uuid", "ipv4", "ipv6", "made-up"])}
    ),
    st.sampled_from([{"type": "boolean"}, {"type": ["null", "string"]}, {"const": [1]}, {"enum": ["x", 2]}, {}, True]),
)
fitting = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text("abc", min_size=1), inner, max_size=3).map(
            lambda known: {
                "type": "object",
                "properties": known,
                "required": list(known),
                "additionalProperties": False,
            }
        ),
        st.dictionaries(st.text("abc", min_size=1), inner, max_size=3).map(lambda known: {"properties": known}),
        st.builds(lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, st.integers(0, 3)),
        st.builds(lambda items, most: {"items": items, "maxItems": most}, inner, st.integers(0, 3)),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=8,
).filter(lambda schema: isinstance(schema, dict))
NOTHING: Any = contextlib.nullcontext()


def body(text: Any = "Hello", **fields: Any) -> dict[str, Any]:
    return {"model": "demo-chat", "messages": [{"role": "user", "content": text}], **fields}


def function(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {}}}


def answered(body: dict[str, Any], index: int = 0) -> talk.DemoAnswer:
    return talk.build_answer(asks.parse_chat(body), index)


def text(body: dict[str, Any], index: int = 0) -> str:
    return "".join(answered(body, index).pieces)


def called(body: dict[str, Any]) -> list[str]:
    return [call.name for call in answered(body).calls]


def cosine(one: str, other: str) -> float:
    return sum(a * b for a, b in zip(vector_of(one), vector_of(other), strict=True))


def vector_of(text: str, dimensions: int = 256) -> list[float]:
    return words.build_vector(words.list_words(text), dimensions)


@given(st.text())
def test_the_pieces_of_any_text_join_to_that_text(whole: str) -> None:
    assert "".join(words.split_pieces(whole)) == whole


@given(st.text(), st.integers(1, 120))
def test_a_limit_keeps_the_beginning_and_never_more_tokens_than_it_says(question: str, limit: int) -> None:
    whole, cut = answered(body(question)), answered(body(question, max_tokens=limit))
    assert cut.pieces == whole.pieces[:limit]
    assert cut.finish_reason == ("stop" if whole.tokens <= limit else "length")


def test_the_newer_limit_wins_over_the_older() -> None:
    assert answered(body(max_completion_tokens=3, max_tokens=7)).tokens == 3


def test_a_reply_echoes_the_question_and_says_how_to_add_a_provider() -> None:
    answer = text(body("Why is the sky blue?"))
    for part in ("Why is the sky blue?", "built-in demo model", "gateway channels add openai", "console"):
        assert part in answer


@pytest.mark.parametrize(
    ("prompt", "quoted"),
    [
        ("<system-reminder>\nToday is Monday.\n</system-reminder>\n\nSay hello", "Say hello"),
        ("<user_instructions>a</user_instructions>\n<environment_context>b</environment_context>Hello", "Hello"),
        ("<system-reminder>only this</system-reminder>", "<system-reminder>only this</system-reminder>"),
        ("<system-reminder>never closed, hello", "<system-reminder>never closed, hello"),
        ("<b>bold</b> words", "<b>bold</b> words"),
    ],
)
def test_the_context_that_a_coding_agent_puts_first_is_not_quoted(prompt: str, quoted: str) -> None:
    assert f'You asked: "{quoted}".' in text(body(prompt))


def test_the_last_user_message_is_the_one_answered() -> None:
    messages = [
        {"role": "user", "content": "First question"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "Second question"},
        {"role": "assistant", "content": "Hm."},
    ]
    answer = text(body(messages=messages))
    assert "Second question" in answer
    assert "First question" not in answer


@table_rows(("count", "phrase"), [(1, "1 image,"), (2, "2 images,")])
def test_images_are_counted_and_cost_tokens(count: int, phrase: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    text = [{"type": "text", "text": "What is this?"}]
    seen = asks.parse_chat(body(text + [image] * count))
    assert phrase in "".join(talk.build_answer(seen, 0).pieces)
    assert talk.count_prompt_tokens(seen) == talk.count_prompt_tokens(asks.parse_chat(body(text))) + 85 * count


def test_a_very_long_question_is_quoted_only_in_part() -> None:
    assert len(text(body("word " * 10_000))) < 2_000


@table_rows("stop", ["demo", ["nowhere to be found", "demo"], ["model", "demo"]])
def test_the_reply_ends_before_the_first_stop_string(stop: str | list[str]) -> None:
    whole = text(body())
    cut = answered(body(stop=stop))
    assert "".join(cut.pieces) == whole[: whole.index("demo")]
    assert cut.finish_reason == "stop"


def test_choices_greet_differently_and_each_is_the_same_every_time() -> None:
    assert text(body(), 0) != text(body(), 1)
    assert text(body(), 1) == text(body(), 1)


@table_rows(
    ("prompt", "names"),
    [
        ("What's the WEATHER in Paris?", ["get_weather"]),
        ("Please run get-time now", ["get-time"]),
        ("Use get_weather and tell me the time", ["get_weather"]),
        ("weather and time, please", ["get_weather", "get-time"]),
        ("How do I get to Rome?", []),
    ],
)
def test_the_tools_called_are_those_the_user_names(prompt: str, names: list[str]) -> None:
    tools = [function("get_weather"), function("get-time")]
    assert called(body(prompt, tools=tools)) == names


@table_rows(
    ("choice", "names"),
    [
        ("auto", []),
        ("none", []),
        ("required", ["alpha"]),
        ({"type": "function", "function": {"name": "beta"}}, ["beta"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("beta")]}}, ["beta"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("beta")]}}, []),
    ],
)
def test_the_tool_choice_decides_when_the_words_do_not(choice: Any, names: list[str]) -> None:
    assert called(body("Hello", tools=[function("alpha"), function("beta")], tool_choice=choice)) == names


def test_a_forbidden_tool_is_not_called_even_when_named() -> None:
    assert called(body("alpha", tools=[function("alpha")], tool_choice="none")) == []


def test_one_call_at_a_time_when_parallel_calls_are_off() -> None:
    tools = [function("alpha"), function("beta")]
    assert called(body("alpha beta", tools=tools, parallel_tool_calls=False)) == ["alpha"]


def test_arguments_hold_what_the_schema_requires_and_nothing_else() -> None:
    answer = answered(body("What's the weather in Paris?", tools=[function("get_weather", WEATHER)]))
    assert answer.finish_reason == "tool_calls"
    assert len(answer.calls[0].fragments) > 1
    assert orjson.loads("".join(answer.calls[0].fragments)) == {
        "city": "Paris",
        "unit": "celsius",
        "days": 1,
        "hourly": True,
        "tags": ["weather"],
        "extra": {},
    }


def test_a_limit_cuts_the_arguments_of_calls_too() -> None:
    tools = [function("alpha", WEATHER), function("beta", WEATHER)]
    whole, cut = answered(body("alpha beta", tools=tools)), answered(body("alpha beta", tools=tools, max_tokens=2))
    assert (cut.tokens, cut.finish_reason) == (2, "length")
    assert [call.fragments for call in cut.calls] == [whole.calls[0].fragments[:2]]


def test_every_tool_result_is_quoted_in_the_order_given() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "18 degrees"},
        {"role": "tool", "tool_call_id": "d", "content": [{"type": "text", "text": "windy"}]},
    ]
    answer = answered(body(messages=messages, tools=[function("weather")], tool_choice="required"))
    assert not answer.calls
    assert '"18 degrees" and "windy"' in "".join(answer.pieces)


def test_a_json_schema_reply_is_an_object_that_fits_it() -> None:
    schema = {
        "type": "object",
        "properties": {
            "event": {"$ref": "#/$defs/Event"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "maybe": {"type": ["null", "number"]},
            "kind": {"const": "party"},
        },
        "required": ["event", "note", "maybe", "kind"],
        "$defs": {"Event": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
    }
    form = {"type": "json_schema", "json_schema": {"name": "event", "schema": schema}}
    answer = orjson.loads(text(body("Invite Alice to Berlin", response_format=form)))
    assert answer == {"event": {"name": "Alice"}, "note": "Berlin", "maybe": 1, "kind": "party"}


def test_a_json_object_reply_is_an_object_around_the_usual_words() -> None:
    answer = orjson.loads(text(body("Tell me", response_format={"type": "json_object"})))
    assert "Tell me" in answer["answer"]


def test_a_schema_that_contains_itself_still_gets_an_answer() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    value, depth = fill(schema, "go"), 0
    while value:
        value, depth = value["next"], depth + 1
    assert 1 <= depth <= 20


def test_a_schema_that_contains_itself_many_times_over_is_refused_at_once() -> None:
    names = [f"n{number}" for number in range(30)]
    schema = {"properties": {name: {"$ref": "#"} for name in names}, "required": names}
    for form in (schema, {"type": "array", "minItems": 10**9, "items": {}}, {"minLength": 2**60}):
        with pytest.raises(asks.RequestError, match="2000") if form.get("type") or form.get("required") else NOTHING:
            assert len(fill(form, "go")) <= 2_100


@given(fitting, st.text())
def test_what_is_filled_in_fits_the_schema(schema: dict[str, Any], prompt: str) -> None:
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(fill(schema, prompt))


def test_schemas_that_stand_together_are_all_followed() -> None:
    base = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    schema = {
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}],
        "$defs": {"Base": base},
    }
    assert fill(schema, "go") == {"a": 1, "b": True}


@given(schemas, st.text())
def test_no_schema_however_odd_breaks_the_filling(schema: dict[str, Any], prompt: str) -> None:
    orjson.dumps(fill(schema, prompt))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tools": st.lists(json_values | st.just(function("a")), max_size=3) | json_values,
            "tool_choice": json_values | st.builds(lambda inner: {"allowed_tools": {"tools": inner}}, json_values),
            "messages": st.lists(st.fixed_dictionaries({"role": json_values, "content": json_values}), max_size=2),
            "response_format": json_values
            | st.builds(lambda v: {"type": "json_schema", "json_schema": v}, json_values),
            "stream_options": json_values,
            "stop": json_values,
            "n": json_values,
            "stream": json_values,
        },
    )
)
def test_a_chat_request_is_read_or_refused_but_never_a_crash(fields: dict[str, Any]) -> None:
    """Whatever is not refused is answered to its end; any other exception fails this test."""
    with contextlib.suppress(asks.RequestError):
        assert answered({**body(), **fields}).finish_reason in {"stop", "tool_calls"}


@table_rows(
    ("wrong", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
        ({"stop": [1]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [function("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}}, "tool_choice"),
        ({"model": ""}, "model"),
    ],
)
def test_a_wrong_field_is_named_in_the_refusal(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(asks.RequestError) as caught:
        asks.parse_chat({**body(), **wrong})
    assert caught.value.status == 400
    assert caught.value.body["error"]["param"] == param


def test_a_schema_too_deep_to_write_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"a": deep}
    with pytest.raises(asks.RequestError, match="too deep"):
        talk.count_prompt_tokens(asks.parse_chat(body(tools=[function("a", deep)])))


@given(st.text(), st.integers(1, 2048))
def test_any_text_has_a_unit_vector_of_the_size_asked(words: str, dimensions: int) -> None:
    vector = vector_of(words, dimensions)
    assert len(vector) == dimensions
    assert math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-9)


def test_words_that_cancel_out_still_have_a_unit_vector() -> None:
    """Over every pair of a few dozen words on one coordinate, many pull it equally far both ways."""
    pairs = itertools.combinations(map(str, range(40)), 2)
    assert {abs(words.build_vector(pair, 1)[0]) for pair in pairs} == {1.0}


def test_texts_that_share_words_are_more_similar() -> None:
    assert cosine("the cat sat on the mat", "the cat lay on the mat") > 0.5
    assert cosine("the cat sat on the mat", "quarterly revenue grew strongly") < 0.4


def test_case_and_punctuation_make_no_difference() -> None:
    assert vector_of("Hello, World!") == vector_of("hello world")


@table_rows(
    ("given_input", "count", "tokens"),
    [("two words", 1, 2), (["one", "two words"], 2, 3), ([5, 6, 7], 1, 3), ([[5, 6], [7]], 2, 3)],
)
def test_input_comes_in_four_shapes(given_input: Any, count: int, tokens: int) -> None:
    embedding_request = asks.parse_embedding({"model": "demo-embedding", "input": given_input})
    assert (
        len(embedding_request.inputs),
        embedding_request.tokens,
        embedding_request.dimensions,
        embedding_request.base64,
    ) == (count, tokens, 256, False)


@table_rows(
    ("wrong", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "x " * 70_000}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 2049}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_a_wrong_embedding_field_is_named_in_the_refusal(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(asks.RequestError) as caught:
        asks.parse_embedding({"model": "demo-embedding", "input": "x", **wrong})
    assert caught.value.body["error"]["param"] == param
