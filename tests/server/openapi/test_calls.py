"""What judges answers by the document finds fault with those that are not as it says."""

from typing import Any

import orjson

from tests.support.openapi_calls import Reader, exceed, spoil
from tests.support.table_rows import table_rows

READER = Reader()
CHAT = {
    "id": "c",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}
ERROR = {"error": {"message": "m", "type": "t", "param": None, "code": "c"}}
CHUNK = {"id": "c", "object": "chat.completion.chunk", "choices": []}
JSON, EVENTS = "application/json", "text/event-stream"


def write_event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


@table_rows(
    ("name", "status", "media_type", "raw"),
    [
        ("create_chat_completion", 200, JSON, orjson.dumps(CHAT)),
        ("create_chat_completion", 429, JSON, orjson.dumps(ERROR)),
        ("create_chat_completion", 200, EVENTS, write_event(CHUNK) + b"data: [DONE]\n\n"),
        ("list_models", 304, "application/octet-stream", b""),
        ("get_media", 206, "image/png", b"\x89PNG"),
    ],
)
def test_what_is_as_the_document_says_passes(name: str, status: int, media_type: str, raw: bytes) -> None:
    assert READER.judge(name, status, media_type, raw) == []


@table_rows(
    ("name", "status", "media_type", "raw", "message"),
    [
        ("create_chat_completion", 201, JSON, orjson.dumps(CHAT), "status 201"),
        ("create_chat_completion", 200, "text/html", b"<p>", "text/html"),
        ("create_chat_completion", 200, JSON, orjson.dumps({**CHAT, "object": "else"}), "$.object"),
        ("create_chat_completion", 200, JSON, orjson.dumps({**CHAT, "choices": [{}]}), "$.choices[0]"),
        ("create_chat_completion", 429, JSON, b"{}", "'error' is a required property"),
        ("create_message", 429, JSON, orjson.dumps(ERROR), "'type' is a required property"),
        ("create_chat_completion", 200, EVENTS, b": nothing\n\n", "without events"),
        ("create_chat_completion", 200, EVENTS, write_event(CHAT), "$.object"),
        ("list_models", 304, JSON, b"{}", "where the document has none"),
        ("get_media", 200, "image/png", b"", "nothing is answered"),
        ("admin_get_status", 200, JSON, b'{"version":"1","channels":1,"models":1,"more":1}', "'more' was unexpected"),
    ],
)
def test_what_is_not_is_named(name: str, status: int, media_type: str, raw: bytes, message: str) -> None:
    assert any(message in problem for problem in READER.judge(name, status, media_type, raw))


@table_rows(
    "schema",
    [
        {"type": "string"},
        {"type": ["number", "null"]},
        {"type": "array", "items": {}},
        {"type": "object"},
        {"type": ["object", "null"]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "string", "enum": ["a"]},
    ],
)
def test_a_spoiled_value_is_of_no_use(schema: dict[str, Any]) -> None:
    assert READER.find_problems(schema, spoil(schema))


@table_rows(
    ("schema", "beyond"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, [0, 10]),
        ({"type": "string", "maxLength": 2}, ["xxx"]),
        ({"type": "string", "enum": ["a"]}, ["no such word"]),
        ({"type": "array", "minItems": 1}, [[]]),
        ({"type": "string"}, []),
    ],
)
def test_what_is_just_beyond_a_limit_is_found(schema: dict[str, Any], beyond: list[Any]) -> None:
    assert exceed(schema) == beyond
    assert all(READER.find_problems(schema, value) for value in beyond)


def test_where_everything_is_welcome_nothing_can_be_spoiled() -> None:
    assert spoil({}) is None
