"""Pictures and files, as Anthropic takes them."""

import base64
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.chat.anthropic.media_blocks import build_media_block
from gateway.formats.chat.model import MediaPart
from tests.support.table_rows import table_rows


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


PNG = b64(b"\x89PNG\r\n\x1a\n" + b"x" * 40)
PDF = b64(b"%PDF-1.7 and so on")


@table_rows(
    ("head", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"GIF87a", "image/gif"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "image/webp"),
    ],
)
@table_rows("stated", [None, "image/png", "image/bmp"])
def test_a_image_is_what_its_first_bytes_say(head: bytes, media_type: str, stated: str | None) -> None:
    data = b64(head + b"x" * 40)
    source = {"type": "base64", "media_type": media_type, "data": data}
    assert build_media_block(MediaPart("image", stated, data)) == {"type": "image", "source": source}


@table_rows(("stated", "media_type"), [("image/jpg", "image/jpeg"), ("image/webp", "image/webp")])
def test_where_they_say_nothing_it_is_what_it_is_called(stated: str, media_type: str) -> None:
    assert build_media_block(MediaPart("image", stated, "AAAA"))["source"]["media_type"] == media_type


@table_rows(
    ("blob", "block"),
    [
        (MediaPart("image", url="https://x/y"), {"type": "image", "source": {"type": "url", "url": "https://x/y"}}),
        (
            MediaPart("image", url=f"data:image/png;base64,{PNG}"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        ),
        (
            MediaPart("image", data=f"DATA:image/gif;base64,{PNG}"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        ),
        (
            MediaPart("file", "application/pdf", PDF, name="a.pdf"),
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                "title": "a.pdf",
            },
        ),
        (
            MediaPart("file", None, PDF),
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
        ),
        (
            MediaPart("file", "application/pdf", url="https://x/y.pdf"),
            {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}},
        ),
        (
            MediaPart("file", "text/markdown; charset=utf-8", b64("é".encode())),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "é"}},
        ),
    ],
)
def test_what_is_written(blob: MediaPart, block: dict[str, Any]) -> None:
    assert build_media_block(blob) == block


@table_rows(
    ("blob", "why"),
    [
        (MediaPart("audio", "audio/wav", "AAAA"), "no audio"),
        (MediaPart("image", "image/bmp", "AAAA"), "PNG, JPEG, GIF or WebP"),
        (MediaPart("image", None, "AAAA"), "PNG, JPEG, GIF or WebP"),
        (MediaPart("image"), "neither"),
        (MediaPart("file", url=""), "neither"),
        (MediaPart("file", "application/msword", "AAAA"), "PDF and text"),
        (MediaPart("file", None, "AAAA"), "PDF and text"),
        (MediaPart("file", "text/plain", b64(b"\xff")), "UTF-8"),
        (MediaPart("image", url="data:image/svg+xml,<svg/>"), "base64"),
        (MediaPart("image", url="data:"), "base64"),
    ],
)
def test_what_cannot_be_said_is_refused_and_says_why(blob: MediaPart, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        build_media_block(blob)
    assert caught.value.param == "messages"


@given(
    st.sampled_from(["image", "audio", "file"]),
    st.none() | st.sampled_from(["image/png", "text/plain", "application/pdf", "é"]) | st.text(),
    st.none() | st.text() | st.binary().map(b64),
    st.none() | st.text() | st.text().map("data:".__add__),
)
def test_garbage_is_written_or_refused_and_nothing_else(
    kind: Literal["image", "audio", "file"], media_type: str | None, data: str | None, url: str | None
) -> None:
    try:
        block = build_media_block(MediaPart(kind, media_type, data, url))
    except InvalidRequest:
        return
    assert block["type"] in {"image", "document"}
