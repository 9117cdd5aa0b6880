"""How Gemini is told to answer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.chat.gemini.generation_config import build_config, parse_version, requires_signatures
from gateway.formats.chat.model import EFFORT_TOKENS, ChatRequest, ResponseFormat
from tests.support.table_rows import table_rows

FLASH = "gemini-2.5-flash"
PRO_3, FLASH_3, FLASH_38 = "gemini-3.1-pro-preview", "gemini-3-flash-preview", "gemini-3.8-flash"


def config(model: str = FLASH, **options: Any) -> dict[str, Any]:
    return build_config(ChatRequest((), **options), model)


def think(model: str, **options: Any) -> Any:
    return config(model, **options).get("thinkingConfig")


@table_rows(
    ("model", "version"),
    [
        ("gemini-2.5-flash", (2, 5)),
        ("models/gemini-2.5-pro", (2, 5)),
        ("gemini-3-pro-preview", (3, 0)),
        ("gemini-3.8-flash", (3, 8)),
        ("gemini-4-argon", (4, 0)),
        ("gemini-10.11-x", (10, 11)),
        ("gemini-flash-latest", (999, 0)),
        ("gemini-flash-lite-latest", (999, 0)),
        ("gemini-exp-1206", None),
        ("gemini-embedding-001", None),
        ("gemini-3.x", None),
        ("gemma-3-27b-it", None),
        ("tunedModels/mine", None),
        ("", None),
    ],
)
def test_a_version_is_read_from_the_name(model: str, version: tuple[int, int] | None) -> None:
    assert parse_version(model) == version
    assert requires_signatures(model) == (version is not None and version >= (3, 0))


def test_nothing_asked_is_nothing_said() -> None:
    assert config() == {}


def test_every_wish_has_its_name() -> None:
    assert config(
        max_tokens=5, temperature=0.0, top_p=0.5, top_k=3, stop=("a", "b"), n=2, seed=7,
        presence_penalty=1.0, frequency_penalty=-1.0,
    ) == {
        "maxOutputTokens": 5, "temperature": 0.0, "topP": 0.5, "topK": 3, "stopSequences": ["a", "b"],
        "candidateCount": 2, "seed": 7, "presencePenalty": 1.0, "frequencyPenalty": -1.0,
    }  # fmt: skip


def test_more_stop_sequences_than_gemini_takes_are_refused() -> None:
    assert config(stop=tuple("abcde"))["stopSequences"] == list("abcde")
    with pytest.raises(InvalidRequest) as caught:
        config(stop=tuple("abcdef"))
    assert caught.value.param == "stop"


@given(st.integers(-(2**70), 2**70))
def test_a_seed_fits_32_bits_and_stays_where_it_does(seed: int) -> None:
    folded = config(seed=seed)["seed"]
    assert -(2**31) <= folded < 2**31
    assert folded == seed or not -(2**31) <= seed < 2**31
    assert folded == config(seed=seed)["seed"]


def test_a_format_is_a_media_type_and_a_schema() -> None:
    assert config(format=ResponseFormat("json")) == {"responseMimeType": "application/json"}
    assert config(format=ResponseFormat("schema", {"type": "object", "$schema": "x"}, "n", strict=True)) == {
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object"},
    }


@table_rows(
    ("model", "effort", "expected"),
    [
        (FLASH, "none", {"thinkingBudget": 0}),
        (FLASH, "minimal", {"thinkingBudget": 1_024, "includeThoughts": True}),
        (FLASH, "high", {"thinkingBudget": 16_384, "includeThoughts": True}),
        (FLASH, "max", {"thinkingBudget": 24_576, "includeThoughts": True}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128}),
        ("gemini-2.5-pro", "max", {"thinkingBudget": 32_768, "includeThoughts": True}),
        (PRO_3, "none", {"thinkingLevel": "LOW"}),
        (PRO_3, "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        (PRO_3, "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        (PRO_3, "max", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        (FLASH_3, "none", {"thinkingLevel": "MINIMAL"}),
        (FLASH_38, "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-3.5-flash-lite", "minimal", {"thinkingLevel": "MINIMAL", "includeThoughts": True}),
        ("gemini-pro-latest", "low", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-2.0-flash", "high", None),
        ("gemma-3-27b-it", "high", None),
        ("gemini-2.5-flash-image", "high", None),
    ],
)
def test_an_effort_is_a_budget_or_a_level_by_family(model: str, effort: str, expected: Any) -> None:
    assert think(model, effort=effort) == expected


@table_rows(
    ("model", "tokens", "expected"),
    [
        (FLASH, 0, {"thinkingBudget": 0}),
        (FLASH, 300, {"thinkingBudget": 300, "includeThoughts": True}),
        (FLASH, 60_000, {"thinkingBudget": 24_576, "includeThoughts": True}),
        ("gemini-2.5-flash-lite", 0, {"thinkingBudget": 0}),
        ("gemini-2.5-flash-lite", 300, {"thinkingBudget": 512, "includeThoughts": True}),
        ("gemini-2.5-pro", 0, {"thinkingBudget": 128}),
        ("gemini-2.5-pro", 60_000, {"thinkingBudget": 32_768, "includeThoughts": True}),
        (PRO_3, 0, {"thinkingLevel": "LOW"}),
        (PRO_3, 2_000, {"thinkingLevel": "LOW", "includeThoughts": True}),
        (PRO_3, 8_192, {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        (PRO_3, 60_000, {"thinkingLevel": "HIGH", "includeThoughts": True}),
    ],
)
def test_a_number_of_tokens_is_a_budget_or_the_level_it_is_worth(model: str, tokens: int, expected: Any) -> None:
    assert think(model, thinking_tokens=tokens) == expected


def test_forbidding_wins_over_a_word_and_the_word_over_a_number_where_there_are_levels() -> None:
    assert think(PRO_3, thinking_tokens=0, effort="high") == {"thinkingLevel": "LOW"}
    assert think(PRO_3, thinking_tokens=500, effort="high")["thinkingLevel"] == "HIGH"
    assert think(FLASH, thinking_tokens=500, effort="high")["thinkingBudget"] == 500


@given(
    st.sampled_from([FLASH, "gemini-2.5-pro", "gemini-2.5-flash-lite", PRO_3, FLASH_3, FLASH_38, "gemini-2.0-flash"]),
    st.none() | st.sampled_from(sorted(EFFORT_TOKENS)),
    st.none() | st.integers(-5, 100_000),
)
def test_a_budget_and_a_level_never_come_together(model: str, effort: Any, tokens: int | None) -> None:
    thinking = think(model, effort=effort, thinking_tokens=tokens)
    if thinking is None:
        assert model == "gemini-2.0-flash" or (effort is None and tokens is None)
    else:
        assert ("thinkingLevel" in thinking) != ("thinkingBudget" in thinking)
        assert thinking.get("includeThoughts", True) is True
