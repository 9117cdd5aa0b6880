"""Fields of JSON that are not kept."""

import orjson
import pytest

from gateway.domain.kept_body import BodyPart
from gateway.formats.redaction.body import redact_part
from gateway.formats.redaction.left_out import NOTE, are_paths
from gateway.formats.redaction.redactor import Redactor

BODY = {"metadata": {"patient": "Ann", "ward": 3}, "messages": [{"name": "Ann", "content": "hi"}, {"content": "ho"}]}


def keep(content: bytes, *paths: str, media_type: str = "application/json") -> BodyPart:
    part = BodyPart("request", content, media_type, len(content))
    return redact_part(part, Redactor(frozenset(), left_out=paths), 10_000)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.patient", {**BODY, "metadata": {"patient": NOTE, "ward": 3}}),
        ("metadata", {**BODY, "metadata": NOTE}),
        ("metadata.*", {**BODY, "metadata": {"patient": NOTE, "ward": NOTE}}),
        ("messages.*.name", {**BODY, "messages": [{"name": NOTE, "content": "hi"}, {"content": "ho"}]}),
        ("messages.1", {**BODY, "messages": [{"name": "Ann", "content": "hi"}, NOTE]}),
        ("messages.7", BODY),
        ("nothing.at.all", BODY),
    ],
)
def test_what_the_paths_name_is_left_out(path: str, expected: object) -> None:
    part = keep(orjson.dumps(BODY), path)
    assert orjson.loads(part.content) == expected
    assert part.redacted is (expected != BODY)


def test_a_field_that_occurs_twice_is_left_out_whole() -> None:
    part = keep(b'{"metadata": {"patient": "Ann"}, "metadata": {}}', "metadata.patient")
    assert b"Ann" not in part.content
    assert part.redacted is False or b"patient" not in part.content


def test_it_is_left_out_of_every_event() -> None:
    stream = b"".join(b'data: {"choices":[{"delta":{"content":"Ann %d"}}]}\n\n' % number for number in range(3))
    part = keep(stream, "choices.*.delta.content", media_type="text/event-stream")
    assert b"Ann" not in part.content
    assert part.content.count(NOTE.encode()) == 3
    assert part.redacted


def test_paths_are_checked() -> None:
    assert are_paths(["a", "a.b.*"])
    assert not are_paths(["a..b"])
    assert not are_paths([""])
    assert not are_paths(["a"] * 101)
