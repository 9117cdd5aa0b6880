"""Values as people read them, and the nearest match of a misspelt name."""

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.wording import did_you_mean, find_nearest, mask_keys, write_number, write_value
from tests.support.table_rows import table_rows

FIELDS = ("max_tokens", "messages", "model", "temperature")


@table_rows(
    ("word", "near"),
    [
        ("max_token", "max_tokens"),
        ("MAX_TOKENS", "max_tokens"),
        ("mesages", "messages"),
        ("temprature", "temperature"),
        ("quite other", None),
        ("", None),
        ("m" * 100_000, None),
    ],
)
def test_the_nearest_name_is_found_in_any_case_and_none_that_is_far(word: str, near: str | None) -> None:
    assert find_nearest(word, FIELDS) == near
    assert did_you_mean(word, FIELDS) == ("" if near is None else f"; did you mean '{near}'?")


def test_of_many_names_those_of_the_nearest_length_are_compared() -> None:
    names = [f"{'x' * 40}-{number}" for number in range(5_000)]
    assert find_nearest("gpt-5-mni", [*names, "gpt-5-mini"]) == "gpt-5-mini"


@table_rows(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ([], ""),
        (["a", 1, None], "a, 1, null"),
        ({"a": [1, 2], "b": False}, "a=1, 2, b=false"),
        (1e-05, "0.00001"),
        (1e22, "10000000000000000000000"),
        (Decimal("2.50"), "2.5"),
        (60.0, "60"),
        ("it's", "it's"),
    ],
)
def test_a_value_is_written_as_json_spells_it_and_without_brackets(value: Any, text: str) -> None:
    assert write_value(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_written_without_an_exponent_and_exactly(number: float) -> None:
    text = write_number(number)
    assert "e" not in text.lower()
    assert float(text) == number


@table_rows(
    "key",
    [
        "rk-0123456789abcdef", "rk_0123456789abcdef",
        "sk-hunter2-hunter2", "sk-proj-a_B.c-0123456789", "sk-ant-api03-0123456789abcdef", "AIzaSyA0123456789abcdef",
        "gsk_0123456789abcdef", "xai-0123456789abcdef", "r8_0123456789abcdef", "hf_0123456789abcdef",
        "ek_0123456789abcdef", "pplx-0123456789abcdef", "nvapi-0123456789abcdef", "csk-0123456789abcdef",
        "fw_0123456789abcdef", "tgp_v1_0123456789abcdef", "ghp_0123456789abcdef", "github_pat_0123456789abcdef",
        "jina_0123456789abcdef0123456789abcdef", "ABSK0123456789abcdef", "ya29.0123456789abcdef",
    ],
)  # fmt: skip
def test_a_key_is_masked_wherever_it_stands(key: str) -> None:
    for text in ("{}", "/v1/models/{}", "'{}'", '{{"path":"/{}","status":404}}', "a={}&b", "/{}/{}"):
        assert mask_keys(text.format(key, key)) == text.format("[masked]", "[masked]")


@table_rows(
    "text", ["", "task-0123456789abcdef", "risk_0123456789abcdef", "sk-…", "sk-short", "/v1/models/gpt-5-mini", "hf_x"]
)
def test_what_is_no_key_stays(text: str) -> None:
    assert mask_keys(text) == text
