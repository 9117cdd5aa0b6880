"""Files that a prompt names by ids of the gateway, and the parts with the files in them."""

import base64
from typing import Any

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.formats.references.prompt_files import NamedFile, find_type, inline_file, list_files
from tests.support.table_rows import table_rows

ID = f"file-{'0a' * 16}"
PDF = base64.b64encode(b"%PDF-1.7").decode()
TEXT = base64.b64encode("füllig".encode()).decode()


def put(holder: dict[str, Any], media_type: str, data: str = PDF) -> dict[str, Any]:
    inline_file(NamedFile(holder, "input[0].file_id"), "a.pdf", media_type, data)
    return holder


def test_every_part_that_names_a_file_is_found_and_nothing_else() -> None:
    arguments = {"type": "tool_use", "id": "t", "name": "f", "input": {"file_id": ID}}
    body = {
        "file_id": ID,
        "messages": [
            {"role": "user", "content": [{"type": "file", "file": {"file_id": ID}}]},
            {"role": "assistant", "content": [arguments]},
            {"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": ID}}]},
            {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-abc"}}]},
        ],
        "input": [
            {"role": "user", "content": [{"type": "input_file", "file_id": ID}]},
            {"type": "function_call", "arguments": orjson.dumps({"file_id": ID}).decode()},
        ],
        "tools": [{"type": "code_interpreter", "container": {"file_id": ID}}],
    }
    assert {named.param for named in list_files(body)} == {
        "messages[0].content[0].file.file_id",
        "messages[2].content[0].source.file_id",
        "input[0].content[0].file_id",
    }


@table_rows(
    ("holder", "media_type", "data", "expected"),
    [
        (
            {"file_id": ID},
            "application/pdf",
            PDF,
            {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        ),
        (
            {"type": "input_file", "file_id": ID},
            "text/csv",
            TEXT,
            {"type": "input_file", "filename": "a.pdf", "file_data": f"data:text/csv;base64,{TEXT}"},
        ),
        (
            {"type": "input_image", "file_id": ID, "detail": "low"},
            "image/png",
            "AAAA",
            {"type": "input_image", "detail": "low", "image_url": "data:image/png;base64,AAAA"},
        ),
        (
            {"type": "file", "file_id": ID},
            "application/pdf",
            PDF,
            {"type": "base64", "media_type": "application/pdf", "data": PDF},
        ),
        (
            {"type": "file", "file_id": ID},
            "text/csv",
            TEXT,
            {"type": "text", "media_type": "text/plain", "data": "füllig"},
        ),
    ],
)
def test_the_id_is_replaced_by_the_file(
    holder: dict[str, Any], media_type: str, data: str, expected: dict[str, Any]
) -> None:
    assert put(holder, media_type, data) == expected


@table_rows(
    ("holder", "media_type", "data"),
    [({"type": "input_image"}, "application/pdf", PDF), ({"type": "file"}, "text/plain", "/w==")],
)
def test_a_file_that_the_part_cannot_have_is_refused(holder: dict[str, Any], media_type: str, data: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        put(holder | {"file_id": ID}, media_type, data)
    assert caught.value.param == "input[0].file_id"


@table_rows(
    ("filename", "head", "expected"),
    [
        ("a", b"%PDF-1.7", "application/pdf"),
        ("a.pdf", b"\x89PNG\r\n\x1a\n", "image/png"),
        ("a.csv", b"a,b", "text/csv"),
        ("a", b"words", "text/plain"),
        ("a", b"\x00\x01", "application/octet-stream"),
    ],
)
def test_the_type_of_a_file_is_found(filename: str, head: bytes, expected: str) -> None:
    assert find_type(filename, head) == expected
