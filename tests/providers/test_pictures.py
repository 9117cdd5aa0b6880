"""What vendors of pictures can be asked for, and how the convention's words become theirs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.capability import UNKNOWN_CAPABILITY
from gateway.domain.image import ImageRequest
from gateway.domain.operation import OPERATIONS
from gateway.errors import InvalidRequest
from gateway.formats.images.aspect_ratios import (
    FIRST_GENERATION_SIZES,
    SMALL_SIZES,
    USUAL_SIZES,
    WIDE_SIZES,
    WIDEST_SIZES,
)
from gateway.formats.images.openai import parse_images_inference
from gateway.formats.images.openai_backend import OpenAiImageBackend
from gateway.formats.images.replicate import MODELS as REPLICATE_MODELS
from gateway.providers.base import Endpoint, Provider
from gateway.providers.dashscope import DASHSCOPE
from gateway.providers.gemini import GEMINI
from gateway.providers.openrouter import OPENROUTER
from gateway.providers.registry import PROVIDERS
from gateway.providers.replicate import REPLICATE
from tests.support.table_rows import table_rows

GENERATE = OPERATIONS["images"].formats
EDIT = OPERATIONS["image_edits"].formats


def find_images(provider: Provider, model: str) -> Endpoint | None:
    """Where the vendor takes the convention's generations."""
    return provider.find_endpoint(("openai_images",), model)


def send(slug: str, model: str, **asked: Any) -> Any:
    """What of a generation's body reaches the vendor, besides the model and the prompt."""
    provider = PROVIDERS[slug]
    endpoint = find_images(provider, model)
    assert endpoint is not None
    inference = parse_images_inference({"model": "m", "prompt": "a cat", **asked})
    assert inference.image is not None
    image_backend = OpenAiImageBackend(inference, model, "mark", provider.find_capability(model) or UNKNOWN_CAPABILITY)
    body = image_backend.begin(inference.image.count).body
    assert isinstance(body, dict)
    endpoint.apply_quirks(body, model)
    assert (body.pop("model"), body.pop("prompt")) == (model, "a cat")
    return body


def find_problem(slug: str, model: str, *, edit: bool = False, **asked: Any) -> str | None:
    """The field at fault, before anything is sent."""
    able = PROVIDERS[slug].find_capability(model) or UNKNOWN_CAPABILITY
    problem = able.find_problem(ImageRequest("a cat", **asked), edit=edit, fan_out=False)
    return problem[0] if problem else None


@table_rows(
    ("slug", "model", "asked", "body"),
    [
        ("openai", "gpt-image-1", {}, {}),
        ("openai", "gpt-image-1", {"n": 2, "size": "64x64", "response_format": "url"}, {"n": 2, "size": "64x64"}),
        ("azure_openai", "gpt-image-1", {"response_format": "b64_json"}, {}),
        ("azure_openai", "our-painter", {"response_format": "b64_json"}, {"response_format": "b64_json"}),
        ("xai", "grok-imagine-image", {"size": "auto", "aspect_ratio": "16:9"},
         {"aspect_ratio": "16:9", "response_format": "url"}),
        ("xai", "grok-2-image", {"response_format": "b64_json"}, {"response_format": "b64_json"}),
        ("together", "x/y", {"size": "1024x768"}, {"width": 1024, "height": 768, "response_format": "url"}),
        ("together", "x/y", {"response_format": "b64_json", "n": 3}, {"n": 3, "response_format": "base64"}),
        ("siliconflow", "Qwen/Qwen-Image", {"n": 1, "size": "928x1664", "response_format": "url"},
         {"image_size": "928x1664"}),
        ("siliconflow", "Qwen/Qwen-Image", {}, {"image_size": "1328x1328"}),
        ("siliconflow", "Kwai-Kolors/Kolors", {"n": 2}, {"batch_size": 2, "image_size": "1024x1024"}),
        ("siliconflow", "Qwen/Qwen-Image-Edit", {"image": "https://host/1.png"}, {"image": "https://host/1.png"}),
        ("zhipu", "glm-image", {"n": 1, "size": "1280x1280", "response_format": "b64_json", "user": "someone"},
         {"size": "1280x1280", "user_id": "someone"}),
        ("zai", "cogview-4-250304", {"response_format": "url"}, {}),
        ("ollama", "x/z-image-turbo", {"n": 1, "size": "64x64", "user": "u"},
         {"size": "64x64", "response_format": "b64_json"}),
        ("vllm", "Qwen/Qwen-Image", {"n": 2, "response_format": "url"}, {"n": 2, "response_format": "b64_json"}),
        ("custom", "any", {"response_format": "url", "n": 1, "seed": 7}, {"response_format": "url", "n": 1, "seed": 7}),
        ("custom", "any", {}, {}),
    ],
)  # fmt: skip
def test_a_vendor_is_asked_in_its_own_words(slug: str, model: str, asked: Any, body: Any) -> None:
    assert send(slug, model, **asked) == body


def test_what_was_checked_is_what_siliconflow_hears() -> None:
    (endpoint,) = (one for one in PROVIDERS["siliconflow"].endpoints if one.wire == "openai_images")
    body = {"n": 2, "batch_size": 4, "size": "64x64", "image_size": "2048x2048"}
    endpoint.apply_quirks(body, "Kwai-Kolors/Kolors")
    assert body == {"batch_size": 2, "image_size": "64x64"}


@table_rows("slug", ["openai", "together", "siliconflow", "zhipu", "ollama", "vllm", "custom"])
@table_rows("field", ["image_size", "width", "aspect_ratio"])
def test_vendors_are_told_a_size_in_no_other_words(slug: str, field: str) -> None:
    model = {"openai": "gpt-image-2", "zhipu": "cogview-4"}.get(slug, "m")
    with pytest.raises(InvalidRequest) as refused:
        send(slug, model, **{field: 1024})
    assert refused.value.param == field


@table_rows(
    ("slug", "model", "asked", "param"),
    [
        ("openai", "gpt-image-1", {"size": "1024x1024", "count": 10}, None),
        ("openai", "gpt-image-1", {"size": "512x512"}, "size"),
        ("openai", "gpt-image-1.5", {"size": "1920x1088"}, "size"),
        ("openai", "gpt-image-2", {"size": "1920x1088"}, None),
        ("openai", "gpt-image-2.5-flare", {"count": 11}, "n"),
        ("openai", "gpt-image-1-mini", {"edit": True, "masked": True, "sources": 16}, None),
        ("openai", "gpt-image-1-mini", {"edit": True, "sources": 17}, "image"),
        ("azure_openai", "gpt-image-1", {"size": "512x512"}, "size"),
        ("azure_openai", "our-painter", {"size": "512x512"}, None),
        ("xai", "grok-2-image", {"size": "1024x1024"}, "size"),
        ("xai", "grok-2-image", {"count": 10}, None),
        ("together", "x/y", {"count": 5}, "n"),
        ("siliconflow", "Qwen/Qwen-Image", {"count": 2}, "n"),
        ("siliconflow", "Kwai-Kolors/Kolors", {"count": 4}, None),
        ("zhipu", "cogview-4", {"count": 2}, "n"),
        ("zai", "glm-image", {"count": 2, "size": "1x1"}, "n"),
        ("ollama", "x/z-image-turbo", {"count": 2}, "n"),
        ("custom", "any", {"count": 10, "size": "1x1", "sources": 16, "masked": True, "edit": True}, None),
    ],
)
def test_what_a_model_cannot_do_is_known_before(slug: str, model: str, asked: Any, param: str | None) -> None:
    assert find_problem(slug, model, **asked) == param


@table_rows(
    ("slug", "model"),
    [("openai", "gpt-4.1-mini"), ("xai", "grok-4"), ("zhipu", "glm-4.6"), ("zai", "glm-4.6"), ("deepseek", "x")],
)
def test_a_model_that_only_talks_is_not_asked_for_images(slug: str, model: str) -> None:
    assert PROVIDERS[slug].find_endpoint(GENERATE, model) is None
    assert PROVIDERS[slug].find_endpoint(EDIT, model) is None


@table_rows(
    ("slug", "model"),
    [("openai", "gpt-image-1"), ("openai", "chatgpt-image-x"), ("azure_openai", "x"), ("custom", "x"), ("vllm", "x")],
)  # fmt: skip
def test_who_edits_over_the_conventions_form(slug: str, model: str) -> None:
    endpoint = PROVIDERS[slug].find_endpoint(EDIT, model)
    assert endpoint is not None
    assert (endpoint.wire, endpoint.path) == ("openai_edits", "/images/edits")


def test_only_gpt_images_are_known_to_stream() -> None:
    streaming = {
        (slug, entry.name)
        for slug, provider in PROVIDERS.items()
        for entry in provider.capabilities
        if slug != "demo" and entry.streams and provider.find_endpoint(("openai_images",), entry.name)
    }
    assert streaming == {
        (slug, name)
        for slug in ("openai", "azure_openai")
        for name in ("gpt-image-*", "gpt-image-1*", "chatgpt-image-*")
    }


NAMES = st.sampled_from(["model", "prompt", "n", "size", "response_format", "user", "image_size", "batch_size"])
VALUES = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "auto", "64x64", "x", "b64_json"])
WORDS = {"width", "height", "image_size", "batch_size", "user_id"}


QUIRKY = [
    pytest.param(endpoint, id=slug)
    for slug, found in PROVIDERS.items()
    for endpoint in found.endpoints
    if endpoint.wire == "openai_images" and endpoint.quirks
]


@pytest.mark.parametrize("endpoint", QUIRKY)
@given(body=st.dictionaries(NAMES, VALUES | st.lists(VALUES, max_size=2)), model=st.sampled_from(["m", "x/Qwen-Image"]))
def test_a_vendors_words_are_found_for_anything_and_for_the_same_once(
    endpoint: Endpoint, body: Any, model: str
) -> None:
    shaped = dict(body)
    endpoint.apply_quirks(shaped, model)
    assert set(shaped) - set(body) <= WORDS
    again = dict(shaped)
    endpoint.apply_quirks(again, model)
    assert again == shaped


# ---- models of the providers with an image format of their own


def test_dashscope_edits_with_some_of_its_models() -> None:
    assert DASHSCOPE.find_capability("qwen-plus") is None
    found = {model: DASHSCOPE.find_capability(model) for model in ("qwen-image", "qwen-image-edit", "wan2.7-image")}
    assert {model: (able.edits, able.max_n) for model, able in found.items() if able} == {
        "qwen-image": (False, 1),
        "qwen-image-edit": (True, 1),
        "wan2.7-image": (True, 4),
    }


def test_replicate_has_every_model_in_every_version() -> None:
    for name, model in REPLICATE_MODELS.items():
        for called in (name, f"{name}:0123abcd"):
            able = REPLICATE.find_capability(called)
            assert able is not None
            assert (able.max_n, able.edits, able.masks) == (model.max_images, model.source_field is not None, False)
    unknown = REPLICATE.find_capability("somebody/flux-schnell")
    assert unknown is not None
    assert (unknown.name, unknown.max_n, unknown.edits) == ("*", 1, False)


@table_rows(
    ("model", "sizes", "sources"),
    [
        ("gemini-2.5-flash-image", FIRST_GENERATION_SIZES, 3),
        ("gemini-3-pro-image", USUAL_SIZES, 14),
        ("gemini-3-pro-image-preview", USUAL_SIZES, 14),
        ("gemini-3.1-flash-image", WIDEST_SIZES, 14),
        ("gemini-3.1-flash-lite-image", SMALL_SIZES, 14),
        ("gemini-nano-banana-2.1", WIDE_SIZES, 14),
        ("gemini-9-flash-image", None, None),
    ],
)
def test_gemini_has_every_image_model(model: str, sizes: Any, sources: Any) -> None:
    capability = GEMINI.find_capability(model)
    assert capability is not None
    assert (capability.sizes, capability.max_sources) == (sizes, sources)
    assert (capability.max_n, capability.edits, capability.masks, capability.streams) == (1, True, False, False)
    endpoint = GEMINI.find_endpoint(("gemini_images",), model)
    assert endpoint is not None
    assert endpoint.path == "/models/{model}:generateContent"


def test_gemini_has_no_images_from_chat_models() -> None:
    assert GEMINI.find_endpoint(("gemini_images",), "gemini-2.5-flash") is None
    assert GEMINI.find_capability("gemini-2.5-flash") is None


@table_rows(
    ("model", "generated", "edited"),
    [
        ("google/gemini-2.5-flash-image", "chat_images", "chat_images"),
        ("google/gemini-nano-banana-2.1", "chat_images", "chat_images"),
        ("openai/gpt-5-image-mini", "openai_images", "chat_images"),
        ("openai/gpt-image-2", "openai_images", None),
        ("black-forest-labs/flux.2-pro", "openai_images", None),
        ("openai/gpt-5", None, None),
        ("google/gemini-3-flash", None, None),
    ],
)
def test_openrouter_has_images_where_its_models_make_them(model: str, generated: Any, edited: Any) -> None:
    found = (OPENROUTER.find_endpoint(OPERATIONS[operation].formats, model) for operation in ("images", "image_edits"))
    assert [endpoint and endpoint.wire for endpoint in found] == [generated, edited]
    capability = OPENROUTER.find_capability(model)
    assert (capability is None) == (generated is None)
    assert capability is None or (capability.edits, capability.masks) == (edited is not None, False)


def test_openrouter_has_the_sizes_of_gemini_without_the_smallest() -> None:
    direct, served = (
        GEMINI.find_capability("gemini-3.1-flash-image"),
        OPENROUTER.find_capability("google/gemini-3.1-flash-image"),
    )
    assert direct is not None
    assert served is not None
    assert set(direct.sizes or ()) > set(served.sizes or ()) > set(SMALL_SIZES)
    assert "512x512" not in (served.sizes or ())
