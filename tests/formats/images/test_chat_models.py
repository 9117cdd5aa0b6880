"""Images from chat models: what only this image backend does. The rest: ``test_backends.py``."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.capability import UNKNOWN_CAPABILITY
from gateway.errors import ProviderBadResponse
from gateway.formats.images.chat_models import ChatImageBackend
from tests.support.chat_images import ChatImages
from tests.support.image_calls import image_call
from tests.support.table_rows import table_rows

MODEL = ChatImages.model


def begin() -> ChatImageBackend:
    image_backend = ChatImageBackend(image_call(), MODEL, "mark", UNKNOWN_CAPABILITY)
    image_backend.begin(1)
    return image_backend


def answer(content: Any = None, *, choice: Any = None, **message: Any) -> bytes:
    reported = {"role": "assistant", "content": content, **message}
    return orjson.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": reported, **(choice or {})}]})


@given(st.lists(st.sampled_from(["![", "](", "data:image/png;base64,", "AAAA", "=", "https://x", ")", "[", " "])))
def test_read_survives_any_text(pieces: list[str]) -> None:
    try:
        reported = begin().read(answer("".join(pieces)), ())
    except ProviderBadResponse:
        return
    assert reported.items


@table_rows(
    "text",
    [
        f"![a]({'data:image/png;base64,' + 'A' * 26_000_000})",
        "![](https://x " * 10 + "](" * 5_000_000,
        "](http://x" * 1_000_000,
        "data:image/png;base64" * 500_000,
        "![" * 5_000_000,
    ],
)
def test_read_reads_a_large_answer_once(text: str) -> None:
    """In time that grows with the size alone: what is quadratic would not end here."""
    raw = answer(text)
    try:
        reported = begin().read(raw, ())
    except ProviderBadResponse:
        return
    assert reported.items


def test_read_rejects_a_long_address() -> None:
    with pytest.raises(ProviderBadResponse, match="invalid address"):
        begin().read(answer(images=["https://cdn.example/" + "a" * 5000]), ())
