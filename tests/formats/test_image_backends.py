"""Which painter speaks which language: every one there is, and all of them in the same way."""

from collections.abc import Mapping
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.api_format import WIRES, Wire
from gateway.domain.capability import UNKNOWN
from gateway.domain.image import Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.upload import Upload
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.gemini.images import GeminiImageBackend
from gateway.formats.image_backend import ProviderCall
from gateway.formats.image_backends import make_image_backend
from gateway.formats.openai.chat_images import ChatImageBackend
from gateway.formats.openai.image_backend import OpenAiImageBackend
from gateway.formats.request_body import build_payload
from gateway.formats.vendors.dashscope_images import DashScopeImageBackend
from gateway.formats.vendors.replicate_images import ReplicateImageBackend
from tests.support.image_calls import image_call, upload
from tests.support.image_providers import draw

MODELS: Mapping[Wire, str] = {
    "openai_images": "org/painter",
    "openai_edits": "org/painter",
    "gemini_pictures": "gemini-2.5-flash-image",
    "chat_pictures": "google/gemini-2.5-flash-image",
    "dashscope_pictures": "wan2.2-t2i-flash",
    "replicate_pictures": "black-forest-labs/flux-kontext-pro",
}
IMAGE_BACKENDS: Mapping[Wire, type] = {
    "openai_images": OpenAiImageBackend,
    "openai_edits": OpenAiImageBackend,
    "gemini_pictures": GeminiImageBackend,
    "chat_pictures": ChatImageBackend,
    "dashscope_pictures": DashScopeImageBackend,
    "replicate_pictures": ReplicateImageBackend,
}
SOURCE: Upload = upload(draw())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "images", "error", "output", "status", "id", "candidates", "choices", "task_id"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def open_image_backend(wire: Wire, **fields: Any) -> tuple[Any, InferenceRequest]:
    files = (SOURCE,) if wire in {"openai_edits", "replicate_pictures"} else ()
    call = image_call(files=files, **fields)
    return make_image_backend(wire, call, MODELS[wire], "mark", UNKNOWN), call


def test_every_language_of_images_has_a_image_backend_and_no_other_one_has() -> None:
    paintable = {*WIRES["images"], *WIRES["image_edits"]}
    assert IMAGE_BACKENDS.keys() == MODELS.keys() == paintable
    for wire in set(get_args(Wire)) - paintable:
        with pytest.raises(KeyError):
            make_image_backend(wire, image_call(), "m", "mark", UNKNOWN)


@pytest.mark.parametrize("wire", IMAGE_BACKENDS)
def test_a_language_is_spoken_by_its_own_image_backend(wire: Wire) -> None:
    image_backend, _ = open_image_backend(wire)
    assert type(image_backend) is IMAGE_BACKENDS[wire]


@pytest.mark.parametrize("wire", IMAGE_BACKENDS)
def test_the_first_ask_has_the_prompt_in_it_and_can_be_written(wire: Wire) -> None:
    image_backend, call = open_image_backend(wire)
    before = dict(call.body)
    ask = image_backend.begin(1)
    assert ask.body is not None
    assert (ask.method, ask.passing, ask.wait_s) == ("POST", False, 0)
    body, _ = build_payload(ask.body, "mark")
    pieces = [body] if isinstance(body, bytes) else [piece for piece in body.pieces if isinstance(piece, bytes)]
    assert b"a cat" in b"".join(pieces)
    assert call.body == before


@pytest.mark.parametrize("wire", IMAGE_BACKENDS)
def test_what_was_not_begun_has_nothing_to_be_stopped(wire: Wire) -> None:
    image_backend, _ = open_image_backend(wire)
    assert image_backend.abandon() is None


@pytest.mark.parametrize("wire", IMAGE_BACKENDS)
def test_two_calls_are_two_image_backends(wire: Wire) -> None:
    """What one of them remembers of its task is nothing to the other."""
    one, two = open_image_backend(wire)[0], open_image_backend(wire)[0]
    one.begin(1)
    two.begin(1)
    with pytest.raises(ProviderBadResponse):
        one.read(b"{}", ())
    assert one is not two
    assert two.abandon() is None


@pytest.mark.parametrize("wire", IMAGE_BACKENDS)
@given(told=JSON | st.binary(max_size=20))
def test_whatever_comes_is_images_or_another_ask_or_a_failure(wire: Wire, told: Any) -> None:
    image_backend, _ = open_image_backend(wire)
    image_backend.begin(1)
    raw = told if isinstance(told, bytes) else orjson.dumps(told)
    try:
        read = image_backend.read(raw, ("hunter2",))
    except ProviderError as fault:
        assert fault.message  # noqa: PT017 - what is read instead is looked at, too
    else:
        assert isinstance(read, Images | ProviderCall)
