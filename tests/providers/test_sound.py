"""Who hears and who speaks, and what of a call for it is changed on its way."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.api_format import Wire
from gateway.domain.operation import OPERATIONS
from gateway.providers.base import Endpoint
from gateway.providers.registry import PROVIDERS
from tests.support.table_rows import table_rows

SPEAKS: dict[Wire, set[str]] = {
    "openai_transcriptions": {
        "openai", "azure_openai", "custom", "groq", "mistral", "model_gateway", "siliconflow", "together", "vllm",
    },
    "openai_translations": {"openai", "azure_openai", "custom", "groq", "model_gateway", "together", "vllm"},
    "openai_speech": {
        "openai", "azure_openai", "custom", "groq", "model_gateway", "openrouter", "siliconflow", "together",
    },
}  # fmt: skip
FORM: dict[str, Any] = {
    "model": "m", "language": "en", "prompt": "hi", "temperature": 0.2, "stream": True, "response_format": "srt",
    "timestamp_granularities": ["word"], "include": ["logprobs"],
}  # fmt: skip


def find(slug: str, wire: Wire) -> Endpoint:
    endpoint = PROVIDERS[slug].find_endpoint((wire,), "m")
    assert endpoint is not None
    return endpoint


def shape(slug: str, fields: dict[str, Any], wire: Wire = "openai_transcriptions") -> dict[str, Any]:
    shaped = dict(fields)
    find(slug, wire).apply_quirks(shaped, "m")
    return shaped


@table_rows("wire", SPEAKS)
def test_who_hears_and_who_speaks(wire: Wire) -> None:
    found = {slug for slug, provider in PROVIDERS.items() if provider.find_endpoint((wire,), "m")}
    assert found - {"demo"} == SPEAKS[wire]


@table_rows("slug", ["openai", "azure_openai", "custom"])
def test_the_convention_is_sent_as_it_is(slug: str) -> None:
    assert shape(slug, FORM) == FORM


@table_rows("slug", ["groq", "together", "vllm"])
def test_subtitles_are_asked_for_as_times_and_what_does_not_stream_is_asked_for_whole(slug: str) -> None:
    asked = {name: value for name, value in FORM.items() if name != "stream"}
    assert shape(slug, FORM) == asked | {"response_format": "verbose_json"}
    assert shape(slug, {"response_format": "vtt"}, "openai_translations") == {"response_format": "verbose_json"}
    assert shape(slug, {"response_format": "text"}) == {"response_format": "text"}


@table_rows(
    ("fields", "sent"),
    [
        (FORM, {"model": "m", "temperature": 0.2, "timestamp_granularities": "word"}),
        ({"model": "m", "language": "en", "response_format": "json"}, {"model": "m", "language": "en"}),
        ({"language": "en", "response_format": "vtt"}, {"timestamp_granularities": "segment"}),
        ({"timestamp_granularities": ["word", "segment"]}, {"timestamp_granularities": "segment"}),
        ({"language": "en", "context_bias": "x", "diarize": "true"}, None),
    ],
)
def test_mistral_is_sent_what_it_knows_and_a_language_or_times(
    fields: dict[str, Any], sent: dict[str, Any] | None
) -> None:
    assert shape("mistral", fields) == (fields if sent is None else sent)


def test_azures_sound_is_in_its_preview() -> None:
    for operation in ("transcriptions", "translations", "speech"):
        endpoint = PROVIDERS["azure_openai"].find_endpoint(OPERATIONS[operation].formats, "m")
        assert endpoint is not None
        assert endpoint.path.endswith("?api-version=preview")


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=2)


@pytest.mark.parametrize("slug", ["groq", "together", "vllm", "mistral", "siliconflow"])
@given(fields=st.dictionaries(st.sampled_from([*FORM, "odd"]), JSON | st.just({}), max_size=6))
def test_any_fields_are_shaped_once_and_for_all(slug: str, fields: dict[str, Any]) -> None:
    once = shape(slug, fields)
    assert shape(slug, once) == once
