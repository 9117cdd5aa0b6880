"""A sent body reads back as the body that was to be sent."""

import asyncio
import base64
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multipart import MultipartSegment, PushMultipartParser, parse_options_header

from gateway.domain.upload import Content, FilePiece, Upload
from gateway.errors import InvalidRequest
from gateway.formats.wire.request_body import JSON, Form, InlineUpload, build_data_url, build_payload
from tests.support.table_rows import table_rows
from tests.support.taken_memory import measure_bytes_each

MARK = "req_0123456789abcdef01234567"


@attrs.frozen
class Kept:
    """A file in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    async def read(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


def upload(data: bytes, filename: str = "a.png", media_type: str = "image/png") -> Upload:
    return Upload("image", filename, media_type, data[:512], Kept(data))


def data_of(file: Upload) -> bytes:
    return asyncio.run(file.spooled.read(0, file.size))


def write(content: bytes | Content) -> bytes:
    """The body as it goes out."""
    if isinstance(content, bytes):
        return content
    raw = b""
    for piece in content.pieces:
        if isinstance(piece, FilePiece):
            data = data_of(piece.upload)
            raw += base64.b64encode(data) if piece.base64 else data
        else:
            raw += piece
    assert len(raw) == content.length
    return raw


def read(content: bytes | Content, media_type: str) -> list[tuple[str, str | None, str | None, bytes]]:
    """Each part's name, filename, type and bytes."""
    kind, options = parse_options_header(media_type)
    assert kind == "multipart/form-data"
    parts: list[tuple[str, str | None, str | None, bytes]] = []
    with PushMultipartParser(options["boundary"], strict=True) as parser:
        for event in parser.parse(write(content)):
            if isinstance(event, MultipartSegment):
                parts.append((event.name, event.filename, event.content_type, b""))
            elif event is not None:
                parts[-1] = (*parts[-1][:3], parts[-1][3] + event)
    return parts


# A name with ``%22`` in it cannot be told from one with a quote: the HTML standard escapes no percent sign.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="%\\"), min_size=1, max_size=12)
FILENAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="%/\\"), min_size=1, max_size=12)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [f"--gateway-{MARK}", f"\r\n--gateway-{MARK}--\r\n", f"\r\n--gateway-{MARK}\r\n\r\n", f"{{{MARK}}}", "\x00", "\r\n"]
)
FIELDS = st.dictionaries(NAMES.filter(lambda name: not name.endswith("[]")), TEXTS, max_size=5)
FILES = st.lists(st.tuples(NAMES, FILENAMES, st.binary(max_size=60)), max_size=3)


@given(FIELDS, FILES)
def test_a_form_is_read_as_it_was_said(fields: dict[str, str], files: list[tuple[str, str, bytes]]) -> None:
    form = Form(fields, tuple((name, upload(data, filename)) for name, filename, data in files))
    reported = [(name, None, None, text.encode()) for name, text in fields.items()]
    assert read(*build_payload(form, MARK)) == reported + [
        (name, filename, "image/png", data) for name, filename, data in files
    ]


def test_numbers_flags_lists_and_objects_are_texts_and_nothing_is_left_out() -> None:
    fields: dict[str, Any] = {"n": 2, "x": 0.5, "on": True, "off": False, "l": ["a", 1], "o": {"a": [1]}, "no": None}
    found = read(*build_payload(Form(fields), MARK))
    assert [(name, data) for name, _, _, data in found] == [
        ("n", b"2"),
        ("x", b"0.5"),
        ("on", b"true"),
        ("off", b"false"),
        ("l[]", b"a"),
        ("l[]", b"1"),
        ("o", b'{"a":[1]}'),
    ]


def test_a_text_that_has_the_boundary_in_it_breaks_no_part() -> None:
    texts = {"prompt": f"a\r\n--gateway-{MARK}\r\nb", "user": f"--gateway-{MARK}-"}
    body, media_type = build_payload(Form(texts, (("image[]", upload(b"data")),)), MARK)
    assert [(name, data) for name, _, _, data in read(body, media_type)] == [
        ("prompt", texts["prompt"].encode()),
        ("user", texts["user"].encode()),
        ("image[]", b"data"),
    ]


def test_a_form_says_nothing_besides_its_parts() -> None:
    body, media_type = build_payload(Form({"model": "m"}, (("image[]", upload(b"PNG", 'a"b\r\n.png')),)), MARK)
    assert media_type == f"multipart/form-data; boundary=gateway-{MARK}"
    assert write(body).decode() == (
        f'--gateway-{MARK}\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
        f'--gateway-{MARK}\r\nContent-Disposition: form-data; name="image[]"; filename="a%22b%0D%0A.png"\r\n'
        f"Content-Type: image/png\r\n\r\nPNG\r\n--gateway-{MARK}--\r\n"
    )


def test_no_backslash_quotes_the_end_of_a_name() -> None:
    body, _ = build_payload(Form({"a\\": "1"}, (("b\\", upload(b"x", "c\\")),)), MARK)
    raw = write(body)
    assert b"\\" not in raw
    assert raw.count(b'"a%5C"') == raw.count(b'"b%5C"; filename="c%5C"') == 1


@table_rows("media_type", ["", "image", "image/png\r\nX: y", "Image/PNG", "a/b; c=d", "a" * 200 + "/b"])
def test_a_type_that_is_none_is_not_sent(media_type: str) -> None:
    (part,) = read(*build_payload(Form({}, (("image", upload(b"x", media_type=media_type)),)), MARK))
    assert part[2] == "application/octet-stream"


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
PLACED = st.recursive(
    JSONS | st.builds(lambda data, before: InlineUpload(upload(data), before), st.binary(max_size=40), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def unfold(value: Any) -> Any:
    """The same with its files in it as strings."""
    if isinstance(value, InlineUpload):
        return value.prefix + base64.b64encode(data_of(value.upload)).decode()
    if isinstance(value, dict):
        return {key: unfold(inner) for key, inner in value.items()}
    return [unfold(inner) for inner in value] if isinstance(value, list) else value


@given(st.dictionaries(TEXTS, PLACED, max_size=4))
def test_json_with_files_is_read_as_if_they_had_been_strings(answer: dict[str, Any]) -> None:
    body, media_type = build_payload(answer, MARK)
    assert media_type == JSON
    assert orjson.loads(write(body)) == unfold(answer)


@table_rows("text", [f"{{{MARK}}}", MARK, "\x00", "\\u0000", "\ud7ff\x00\ue000"])
def test_no_text_is_taken_for_the_place_of_a_file(text: str) -> None:
    answer = {text: text, "image": build_data_url(upload(b"one")), "more": [text, InlineUpload(upload(b"two!"))]}
    body, _ = build_payload(answer, MARK)
    assert isinstance(body, Content)
    assert [piece.length for piece in body.pieces if isinstance(piece, FilePiece)] == [4, 8]
    assert orjson.loads(write(body)) == {text: text, "image": "data:image/png;base64,b25l", "more": [text, "dHdvIQ=="]}


def test_json_without_files_is_bytes() -> None:
    assert build_payload({"a": 1}, MARK) == (b'{"a":1}', JSON)


def test_a_body_takes_little_more_memory_than_its_length() -> None:
    assert measure_bytes_each(lambda number: build_payload({"text": "x" * 400, "number": number}, MARK)) < 2_000


def test_what_is_no_json_is_the_callers_mistake() -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    for body in ({"x": deep}, {"x": "\ud800"}, {"x": 2**70}):
        with pytest.raises(InvalidRequest):
            build_payload(body, MARK)
