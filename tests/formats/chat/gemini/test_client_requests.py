"""Requests of Gemini's clients: one spelling, the checks, the bound of the prompt, and the common model."""

from typing import Any

import orjson
import pytest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.gemini.field_names import unify_names
from gateway.formats.chat.gemini.openapi_schema import build_json_schema
from gateway.formats.chat.gemini.passthrough_body import build_passed_body
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.gemini.request_reader import parse_chat_request
from gateway.formats.chat.gemini.request_writer import DUMMY_SIGNATURE, build_body
from gateway.formats.chat.gemini.signatures import build_foreign, build_redacted, is_foreign, parse_foreign
from gateway.formats.usage.prompt_tokens import estimate_prompt
from tests.support.json_strategies import json_values
from tests.support.table_rows import table_rows

MODEL = "gemini-2.5-flash"
USER: dict[str, Any] = {"role": "user", "parts": [{"text": "Hi"}]}
OWN = {"some_key": {"other_key": 1}, "Contents": 2}


def read(**body: Any) -> InferenceRequest:
    return parse_generate_inference({"contents": [USER], **body}, model="m")


def read_chat(**body: Any) -> chat.ChatRequest:
    return parse_chat_request(read(**body).body)


# Spelling.


def test_snake_case_and_single_objects_are_what_camel_case_and_arrays_are() -> None:
    schema = {"type": "OBJECT", "properties": {"first_name": {"type": "STRING", "maxLength": 5}}}
    snake = schema | {"properties": {"first_name": {"type": "STRING", "max_length": 5}}}
    assert unify_names(
        {
            "contents": {"parts": {"function_response": {"name": "f", "response": OWN}}},
            "system_instruction": {"parts": {"text": "Be kind"}},
            "tools": {"function_declarations": [{"name": "f", "parameters": snake, "parameters_json_schema": OWN}]},
            "generation_config": {"max_output_tokens": 5, "response_json_schema": OWN},
        }
    ) == {
        "contents": [{"parts": [{"functionResponse": {"name": "f", "response": OWN}}]}],
        "systemInstruction": {"parts": [{"text": "Be kind"}]},
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": schema, "parametersJsonSchema": OWN}]}],
        "generationConfig": {"maxOutputTokens": 5, "responseJsonSchema": OWN},
    }


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=4))
def test_a_body_in_one_spelling_stays_as_it_is(body: dict[str, Any]) -> None:
    try:
        once = unify_names(body)
    except InvalidRequest:
        return
    assert unify_names(once) == once


@table_rows(
    ("body", "field"),
    [
        ({"tools": [], "Tools": []}, "Tools"),
        ({"GENERATIONCONFIG": {}}, "GENERATIONCONFIG"),
        ({"generationConfig": {"max_output_tokens": 1, "maxOutputTokens": 1}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"maxoutputtokens": 1}}, "generationConfig.maxoutputtokens"),
        ({"candidateCount": 2}, "candidateCount"),
    ],
)
def test_a_field_that_bounds_a_request_has_one_spelling(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**body)
    assert caught.value.param == field


# The request.


def test_what_is_reserved_and_routed_by() -> None:
    config = {"maxOutputTokens": 9_000.0, "candidateCount": 2, "topK": 40.0}
    inference = read(generationConfig=config, cachedContent="cachedContents/1", model="models/other")
    assert (inference.operation, inference.model, inference.choices, inference.affinity_key) == (
        "generate_content", "m", 2, "cachedContents/1",
    )  # fmt: skip
    assert (inference.max_output_tokens, inference.allowed_output) == (4_096, 9_000)
    assert inference.body["generationConfig"] == {"maxOutputTokens": 9_000, "candidateCount": 2, "topK": 40}
    assert "model" not in inference.body
    assert read(generationConfig={"maxOutputTokens": 7}).max_output_tokens == 7
    assert not read().makes_media
    assert not read(generationConfig={"responseModalities": ["TEXT"]}).makes_media
    assert read(generationConfig={"responseModalities": ["TEXT", "IMAGE"]}).makes_media


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["text", "inlineData", "fileData", "functionCall", "x"]), json_values, max_size=2
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_in_a_part_the_estimate_is_within_the_bound(parts: list[Any]) -> None:
    try:
        inference = read(contents=[{"parts": parts}])
    except InvalidRequest:
        return
    assert 0 <= estimate_prompt(inference) <= inference.max_prompt_tokens


@given(st.text(max_size=200))
def test_no_text_has_more_tokens_than_its_bound(text: str) -> None:
    inference = read(contents=[{"parts": [{"text": text}]}], systemInstruction={"parts": [{"text": text}]})
    assert inference.max_prompt_tokens >= 2 * len(text.encode())
    assert inference.prompt_chars == 2 * len(text)


# Into the common model.

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
SCHEMAS = st.sampled_from(
    [
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}},
    ]
)
TOOLS = st.lists(
    st.builds(chat.Tool, st.sampled_from("abc"), TEXTS, SCHEMAS), unique_by=lambda tool: tool.name, max_size=3
)
IMAGE = chat.MediaPart("image", "image/png", "aGk=")
SPOKEN = st.lists(st.builds(chat.TextPart, TEXTS) | st.just(IMAGE), min_size=1, max_size=3).map(tuple)
ARGUMENTS = st.dictionaries(TEXTS, st.integers(0, 9) | TEXTS, max_size=2).map(
    lambda value: orjson.dumps(value).decode()
)


@st.composite
def talks(draw: st.DrawFn) -> tuple[chat.Message, ...]:
    messages = [chat.Message("system", (chat.TextPart(draw(TEXTS)),))] if draw(st.booleans()) else []
    messages.append(chat.Message("user", draw(SPOKEN)))
    for turn in range(draw(st.integers(0, 2))):
        names = draw(st.lists(st.sampled_from("abc"), max_size=3))
        calls = [chat.ToolCallPart(f"c{turn}-{at}", name, draw(ARGUMENTS)) for at, name in enumerate(names)]
        messages.append(chat.Message("assistant", (chat.TextPart(draw(TEXTS)), *calls)))
        if calls:
            results = [
                chat.ToolResultPart(call.id, (chat.TextPart(draw(TEXTS)),), draw(st.booleans())) for call in calls
            ]
            messages.append(chat.Message("user", tuple(results)))
        else:
            messages.append(chat.Message("user", draw(SPOKEN)))
    return tuple(messages)


@st.composite
def requests(draw: st.DrawFn) -> chat.ChatRequest:
    tools = tuple(draw(TOOLS))
    choices: list[chat.ToolChoice | None] = [None]
    if tools:
        choices += ["auto", "none", "required", chat.ForcedTool(tools[0].name)]
    formats = [None, chat.ResponseFormat("json"), chat.ResponseFormat("schema", draw(SCHEMAS))]
    number = st.none() | st.floats(0, 1)
    return chat.ChatRequest(
        messages=draw(talks()),
        max_tokens=draw(st.none() | st.integers(1, 10_000)),
        temperature=draw(number),
        top_p=draw(number),
        top_k=draw(st.none() | st.integers(0, 100)),
        stop=tuple(draw(st.lists(TEXTS, max_size=5))),
        n=draw(st.integers(1, 8)),
        seed=draw(st.none() | st.integers(-(2**31), 2**31 - 1)),
        presence_penalty=draw(number),
        frequency_penalty=draw(number),
        tools=tools,
        tool_choice=draw(st.sampled_from(choices)),
        format=draw(st.sampled_from(formats)),
        thinking_tokens=draw(st.none() | st.integers(0, 24_576)),
    )


@given(requests())
def test_a_request_that_is_written_is_read_as_it_was(request: chat.ChatRequest) -> None:
    assert parse_chat_request(parse_generate_inference(build_body(request, MODEL), model="m").body) == request


def test_a_function_without_ids_is_answered_in_the_order_of_its_calls() -> None:
    calls = [{"functionCall": {"name": name, "args": {}}} for name in "aba"]
    results = [
        {"functionResponse": {"name": name, "response": {"result": text}}}
        for name, text in zip("aab", "123", strict=True)
    ]
    request = read_chat(contents=[USER, {"role": "model", "parts": calls}, {"role": "function", "parts": results}])
    _, asked, answered = request.messages
    ids = [part.id for part in asked.parts if isinstance(part, chat.ToolCallPart)]
    assert len(set(ids)) == 3
    found = [(part.id, part.parts) for part in answered.parts if isinstance(part, chat.ToolResultPart)]
    expected = [(ids[0], "1"), (ids[2], "2"), (ids[1], "3")]
    assert found == [(call, (chat.TextPart(text),)) for call, text in expected]


@table_rows(
    ("response", "text", "failed"),
    [
        ({"output": "sun"}, "sun", False),
        ({"result": "sun"}, "sun", False),
        ({"result": {"sky": "blue"}}, '{"sky":"blue"}', False),
        ({"error": "no city"}, "no city", True),
        ({"sky": "blue", "wind": 3}, '{"sky":"blue","wind":3}', False),
        ({}, "{}", False),
    ],
)
def test_a_result_is_text(response: dict[str, Any], text: str, failed: bool) -> None:
    parts = [{"functionCall": {"id": "c", "name": "f"}}]
    answer = {"functionResponse": {"id": "c", "name": "f", "response": response}}
    request = read_chat(contents=[USER, {"role": "model", "parts": parts}, {"parts": [answer]}])
    assert request.messages[-1].parts == (chat.ToolResultPart("c", (chat.TextPart(text),), failed),)


def test_the_pieces_of_a_stream_are_one_message_with_its_signature() -> None:
    signature = build_foreign("signed by Claude")
    pieces: list[dict[str, Any]] = [
        {"text": "Let me ", "thought": True},
        {"text": "look", "thought": True},
        {"thought": True, "thoughtSignature": signature},
        {"thought": True, "thoughtSignature": build_redacted("secret")},
        {"text": "It "},
        {"text": "rains", "thoughtSignature": "R2VtaW5p"},
        {"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}, "thoughtSignature": "R2VtaW5p"},
        {"text": ""},
    ]
    contents = [USER, *({"role": "model", "parts": [piece]} for piece in pieces)]
    (_, message) = read_chat(contents=contents).messages
    assert message.parts == (
        chat.ReasoningPart("Let me look", "signed by Claude"),
        chat.ReasoningPart("", None, "secret"),
        chat.TextPart("It rains"),
        chat.ToolCallPart("c", "f", '{"a":1}', "R2VtaW5p"),
    )


@table_rows(
    ("body", "field"),
    [
        ({"tools": [{"urlContext": {}}], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "tool_choice"),
        (
            {"contents": [{"parts": [{"fileData": {"fileUri": "https://www.youtube.com/watch?v=x"}}]}]},
            "contents[0].parts[0].fileData",
        ),
        (
            {"contents": [{"parts": [{"fileData": {"fileUri": "https://a.test/x", "mimeType": "video/mp4"}}]}]},
            "contents[0].parts[0].fileData",
        ),
        ({"cachedContent": "cachedContents/x"}, "cachedContent"),
        ({"serviceTier": ["flex"]}, "serviceTier"),
        ({"serviceTier": "PRIORITY"}, "serviceTier"),
        ({"generationConfig": {"responseLogprobs": [True]}}, "generationConfig.responseLogprobs"),
        ({"generationConfig": {"responseModalities": ["TEXT", "AUDIO"]}}, "generationConfig.responseModalities[1]"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"speechConfig": {"x": 1}}}, "generationConfig.speechConfig"),
        (
            {"generationConfig": {"thinkingConfig": {"thinkingLevel": "DEEP"}}},
            "generationConfig.thinkingConfig.thinkingLevel",
        ),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "toolConfig.functionCallingConfig.mode"),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames",
        ),
        ({"contents": [{"parts": [{"executableCode": {"code": "1"}}]}]}, "contents[0].parts[0].executableCode"),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "files/abc"}}]}]}, "contents[0].parts[0].fileData.fileUri"),
        ({"contents": [{"parts": [{"functionCall": {"name": "f"}}]}]}, "contents[0].parts[0]"),
    ],
)
def test_what_only_gemini_can_do_is_named(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_chat(**body)
    assert caught.value.param == field


def list_fields(kind: type[Any]) -> list[str]:
    """The fields of a type of Google's own library, as the API has them."""
    return [field.alias or name for name, field in kind.model_fields.items()]


@table_rows("tool", sorted({*list_fields(types.Tool)} - {"functionDeclarations"}))
def test_a_tool_that_google_runs_is_left_out_where_it_is_only_offered(tool: str) -> None:
    read = read_chat(tools=[{tool: {"x": 1}}, {"functionDeclarations": [{"name": "f"}]}])
    assert ([one.name for one in read.tools], read.adapted) == (["f"], (f"tools.{tool}",))


KNOWN_PARTS = {"text", "inlineData", "fileData", "functionCall", "functionResponse"}
MARKS = {"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata", "mediaProcessing"}


@table_rows("kind", sorted({*list_fields(types.Part), "somethingNew"} - KNOWN_PARTS - MARKS))
@table_rows("role", ["user", "model"])
def test_a_part_of_a_kind_that_only_google_has_is_text_in_a_history(kind: str, role: str) -> None:
    past = {"role": role, "parts": [{kind: {"code": "print(1)"}}]}
    read = read_chat(contents=[USER, past, {"role": "model", "parts": [{"text": "1"}]}, USER])
    assert read.adapted == (kind,)
    texts = [part.text for message in read.messages for part in message.parts if isinstance(part, chat.TextPart)]
    assert any(f"[{kind}] print(1)" in text for text in texts)


@table_rows(
    "file", [{"fileUri": "https://www.youtube.com/watch?v=x"}, {"fileUri": "files/abc", "mimeType": "image/png"}]
)
def test_a_file_that_only_google_reads_is_a_note_in_a_history(file: dict[str, str]) -> None:
    read = read_chat(
        contents=[{"role": "user", "parts": [{"fileData": file}]}, {"role": "model", "parts": [{"text": "1"}]}, USER]
    )
    assert read.adapted == ("fileData",)
    (note,) = read.messages[0].parts
    assert isinstance(note, chat.TextPart)


@table_rows(
    ("role", "part", "kind", "written"),
    [
        ("user", {"functionCall": {"name": "f", "args": {"x": 1}}}, "functionCall",
         '[functionCall] {"name":"f","args":{"x":1}}'),
        ("model", {"functionResponse": {"name": "f", "response": {"x": 1}}}, "functionResponse",
         '[functionResponse] {"name":"f","response":{"x":1}}'),
        ("user", {"functionResponse": {"name": "f", "parts": [{"fileData": {"fileUri": "files/x"}}]}}, "fileData",
         "[fileData: a file that is not available any more]"),
        ("user", {"functionResponse": {"name": "f", "parts": [{"somethingNew": {"x": "y"}}]}}, "somethingNew",
         "[somethingNew] y"),
        ("user", {"text": "Hm", "thought": True}, "thought", None),
    ],
)  # fmt: skip
def test_a_part_of_the_other_role_is_text_in_a_history(
    role: str, part: dict[str, Any], kind: str, written: str | None
) -> None:
    answer = {"role": "model", "parts": [{"text": "1"}]}
    read = read_chat(contents=[USER, {"role": role, "parts": [part]}, answer, USER])
    parts = [one for message in read.messages for one in message.parts]
    parts += [one for result in parts if isinstance(result, chat.ToolResultPart) for one in result.parts]
    texts = [one.text for one in parts if isinstance(one, chat.TextPart)]
    assert read.adapted == (kind,)
    assert written is None or any(text.startswith(written) for text in texts)
    assert "Hm" not in texts


@table_rows("kind", ["fileData", "functionCall", "somethingNew"])
def test_a_part_of_a_result_of_this_turn_is_named_if_only_google_reads_it(kind: str) -> None:
    inner = {"fileUri": "files/x", "name": "f"}
    result = {"functionResponse": {"name": "f", "parts": [{kind: inner}]}}
    with pytest.raises(InvalidRequest) as caught:
        read_chat(contents=[{"role": "user", "parts": [result]}])
    assert (caught.value.param or "").startswith(f"contents[0].parts[0].functionResponse.parts[0].{kind}")


def test_a_result_without_its_call_is_no_reason_to_refuse() -> None:
    result = {"functionResponse": {"name": "f", "response": {"result": "1"}}}
    (part,) = read_chat(contents=[{"role": "user", "parts": [result]}]).messages[0].parts
    assert isinstance(part, chat.ToolResultPart)


@table_rows(
    ("address", "media_type", "kind"),
    [
        ("https://a.test/x.png", None, "image"),
        ("https://a.test/x.pdf?v=1", None, "file"),
        ("https://a.test/x", "image/webp", "image"),
    ],
)
def test_the_kind_of_a_file_at_an_address_is_that_of_its_type_or_its_name(
    address: str, media_type: str | None, kind: str
) -> None:
    file = {"fileUri": address} | ({"mimeType": media_type} if media_type else {})
    (part,) = read_chat(contents=[{"role": "user", "parts": [{"fileData": file}]}]).messages[0].parts
    assert isinstance(part, chat.MediaPart)
    assert part.kind == kind


def test_functions_that_may_not_be_called_are_not_offered() -> None:
    tools = [{"functionDeclarations": [{"name": name} for name in "abc"]}]
    calling = {"mode": "any", "allowedFunctionNames": ["a", "c"]}
    request = read_chat(tools=tools, toolConfig={"functionCallingConfig": calling})
    assert (request.tool_choice, [tool.name for tool in request.tools]) == ("required", ["a", "c"])


@table_rows(
    ("thinking", "tokens", "effort"),
    [
        ({"thinkingBudget": 0}, 0, None),
        ({"thinkingBudget": -1, "includeThoughts": True}, None, None),
        ({"thinkingBudget": 512.0}, 512, None),
        ({"thinkingLevel": "low"}, None, "low"),
        ({}, None, None),
    ],
)
def test_thinking_is_a_number_or_a_word(thinking: dict[str, Any], tokens: int | None, effort: str | None) -> None:
    request = read_chat(generationConfig={"thinkingConfig": thinking})
    assert (request.thinking_tokens, request.effort) == (tokens, effort)


def test_a_schema_of_openapi_becomes_json_schema() -> None:
    assert build_json_schema(
        {
            "type": "OBJECT",
            "properties": {
                "Type": {"type": "STRING", "format": "enum", "enum": ["a", "b"], "nullable": True},
                "list": {"type": "ARRAY", "items": {"type": "INTEGER", "minimum": 1}, "maxItems": "3"},
                "either": {"anyOf": [{"type": "NUMBER"}, {"type": "BOOLEAN"}], "nullable": True},
                "any": {"type": "TYPE_UNSPECIFIED", "default": {"type": "OBJECT"}},
                "tree": {"ref": "#/$defs/tree"},
            },
            "defs": {"tree": {"type": "OBJECT"}},
            "required": ["list"],
            "propertyOrdering": ["list", "Type"],
        }
    ) == {
        "type": "object",
        "properties": {
            "Type": {"type": ["string", "null"], "enum": ["a", "b", None]},
            "list": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 3},
            "either": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "null"}]},
            "any": {"default": {"type": "OBJECT"}},
            "tree": {"$ref": "#/$defs/tree"},
        },
        "$defs": {"tree": {"type": "object"}},
        "required": ["list"],
    }


# For Gemini itself.


@given(TEXTS)
def test_a_foreign_signature_comes_back_in_either_alphabet(text: str) -> None:
    for build, expected in ((build_foreign, (text, None)), (build_redacted, (None, text))):
        signature = build(text)
        assert is_foreign(signature)
        for sent in (signature, signature.replace("+", "-").replace("/", "_"), signature.rstrip("=")):
            assert parse_foreign(sent) == expected
    assert not is_foreign("R2VtaW5p")


@table_rows(("model", "added"), [("gemini-2.5-flash", {}), ("gemini-3-pro", {"thoughtSignature": DUMMY_SIGNATURE})])
def test_gemini_gets_no_signature_of_others(model: str, added: dict[str, str]) -> None:
    foreign = build_foreign("signed by Claude")
    called = {"functionCall": {"name": "f"}}
    parts = [
        {"text": "hm", "thought": True, "thoughtSignature": foreign},
        {"text": "Yes", "thoughtSignature": foreign},
        called,
        {"functionCall": {"name": "g"}},
    ]
    inference = read(contents=[USER, {"role": "model", "parts": parts}])
    before = orjson.dumps(inference.body)
    body = build_passed_body(inference, model)
    assert body["contents"] == [
        USER,
        {"role": "model", "parts": [{"text": "Yes"}, called | added, {"functionCall": {"name": "g"}}]},
    ]
    assert orjson.dumps(inference.body) == before


@table_rows("empty", [{}, {"parts": []}, {"parts": None}, {"role": "system", "parts": []}, None])
def test_a_system_instruction_without_parts_is_none(empty: Any) -> None:
    assert read_chat(contents=[USER], systemInstruction=empty) == read_chat(contents=[USER])
    assert "systemInstruction" not in read(contents=[USER], systemInstruction=empty or {}).body


@table_rows("empty", [{"role": "model"}, {"role": "model", "parts": []}])
def test_an_empty_answer_of_a_history_is_no_reason_to_refuse(empty: dict[str, Any]) -> None:
    texts = [part for message in read_chat(contents=[USER, empty, USER]).messages for part in message.parts]
    assert [part.text for part in texts if isinstance(part, chat.TextPart) and part.text] == ["Hi", "Hi"]
    for content in ({"role": "user"}, {"role": "user", "parts": []}, {"role": "model", "parts": "x"}):
        with pytest.raises(InvalidRequest) as caught:
            read(contents=[content])
        assert caught.value.param == "contents[0].parts"
