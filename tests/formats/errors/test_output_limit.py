"""The limit of output tokens of a model: found in every vendor's words, and set in every format's body."""

from typing import Any

from gateway.formats.errors.output_limit import find_output_limit, lower_limits
from tests.support.table_rows import table_rows


@table_rows(
    ("message", "limit"),
    [
        ("max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you", 16_384),
        ("max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for claude-x", 8_192),
        ("<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 65536]", 65_536),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8_192),
        ("The maximum tokens you requested exceeds the model limit of 10000. Try again with a lower value.", 10_000),
        ("`max_completion_tokens` must be less than or equal to `8192`, the maximum value for this model", 8_192),
        ("max_output_tokens must be at most 4,096", 4_096),
        ("a maxOutputTokens value of 32000 but the supported range is from 1 (inclusive) to 8193 (exclusive).", 8_192),
        ("This model supports at most 0 completion tokens", None),
        ("Range of max_tokens should be [1, 15]", None),
        ("Range of input length should be [1, 30720]", None),
        ("`temperature` must be less than or equal to 2", None),
        ("batchSize value of 300 but the supported range is from 1 (inclusive) to 251 (exclusive)", None),
        ("x" * 2_000 + "Range of max_tokens should be [1, 65536]", None),
        ("", None),
    ],
)
def test_a_limit_is_found_in_a_vendors_words(message: str, limit: int | None) -> None:
    assert find_output_limit(message) == limit


def think(budget: int) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


@table_rows(
    ("body", "lowered"),
    [
        ({"max_tokens": 9_000}, {"max_tokens": 8_192}),
        ({"max_completion_tokens": 9_000, "max_tokens": 7}, {"max_completion_tokens": 8_192, "max_tokens": 7}),
        ({"max_output_tokens": 9_000}, {"max_output_tokens": 8_192}),
        ({"generationConfig": {"maxOutputTokens": 9_000}}, {"generationConfig": {"maxOutputTokens": 8_192}}),
        ({"inferenceConfig": {"maxTokens": 9_000}}, {"inferenceConfig": {"maxTokens": 8_192}}),
        ({"max_tokens": 9_000, **think(8_999)}, {"max_tokens": 8_192, **think(4_096)}),
        ({"max_tokens": 9_000, **think(2_000)}, {"max_tokens": 8_192, **think(2_000)}),
        (
            {"inferenceConfig": {"maxTokens": 9_000}, "additionalModelRequestFields": think(8_999)},
            {"inferenceConfig": {"maxTokens": 8_192}, "additionalModelRequestFields": think(4_096)},
        ),
        ({"max_tokens": 8_192}, None),
        ({"max_tokens": None, "generationConfig": None, "inferenceConfig": {}}, None),
        ({"max_tokens": True, **think(9_000)}, None),
        ({}, None),
    ],
)
def test_a_limit_is_lowered_in_a_body(body: dict[str, Any], lowered: dict[str, Any] | None) -> None:
    assert lower_limits(body, 8_192) is (lowered is not None)
    if lowered is not None:
        assert body == lowered


def test_objects_of_the_clients_body_stay() -> None:
    settings = {"maxOutputTokens": 9_000}
    assert lower_limits({"generationConfig": settings}, 100)
    assert settings == {"maxOutputTokens": 9_000}
