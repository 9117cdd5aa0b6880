"""Token counts: strict integers with caps, or an estimate."""

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import CHARS_PER_TOKEN, MAX_TOKENS, Usage, UsageDetails, estimate_tokens, parse_usage
from tests.support.table_rows import table_rows

COUNTS = st.integers(0, MAX_TOKENS)
BAD = [-1, -(2**63), MAX_TOKENS + 1, 2**70, 1.0, 1.5, float("nan"), float("inf"), "5", "", True, False, [], {}, [5]]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "prompt_tokens",
                    "completion_tokens",
                    "prompt_tokens_details",
                    "cached_tokens",
                    "cache_write_tokens",
                    "prompt_cache_hit_tokens",
                ]
            ),
            inner,
        )
    ),
    max_leaves=8,
)


@given(COUNTS, COUNTS)
def test_integers_in_range_are_believed(prompt: int, completion: int) -> None:
    usage = parse_usage({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": -7})
    assert usage == Usage(prompt, completion, 0, "upstream")


@table_rows("bad", BAD, ids=repr)
@table_rows("name", ["prompt_tokens", "completion_tokens"])
def test_anything_else_is_refused_whole(name: str, bad: object) -> None:
    assert parse_usage({"prompt_tokens": 5, "completion_tokens": 5} | {name: bad}) is None


@table_rows("raw", [None, [], "usage", 5, {}, {"completion_tokens": 5}, {"total_tokens": 5}, [1, 2]])
def test_missing_usage_is_none(raw: object) -> None:
    assert parse_usage(raw) is None


def test_images_and_seconds_stand_behind_what_was_there_before() -> None:
    assert attrs.astuple(Usage(1, 2, 3, "upstream", 4, 5)) == (1, 2, 3, "upstream", 4, 5, 0, 0, 0, "", None, 0)
    assert (Usage(1, 2).images, Usage(1, 2).duration_ms) == (0, 0)


def test_an_embedding_has_no_completion() -> None:
    assert parse_usage({"prompt_tokens": 5, "total_tokens": 5}) == Usage(5, 0, 0, "upstream")


@given(COUNTS, COUNTS)
def test_cached_tokens_are_part_of_the_prompt(prompt: int, cached: int) -> None:
    usage = parse_usage({"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}})
    assert usage is not None
    assert usage.cached_tokens == min(cached, prompt)


@table_rows("details", [None, [], 5, {}, *({"cached_tokens": bad} for bad in BAD)], ids=repr)
def test_details_that_cannot_be_believed_are_no_discount_and_no_failure(details: object) -> None:
    assert parse_usage({"prompt_tokens": 5, "prompt_tokens_details": details}) == Usage(5, 0, 0, "upstream")


@table_rows("details", [None, {}, "x", {"cached_tokens": None}, {"audio_tokens": 0}], ids=repr)
@table_rows("name", ["prompt_cache_hit_tokens", "cached_tokens"])
def test_what_came_from_a_cache_is_read_where_deepseek_and_moonshot_say_it(name: str, details: object) -> None:
    raw = {"prompt_tokens": 9, "prompt_tokens_details": details, name: 4}
    assert parse_usage(raw) == Usage(9, 0, 4, "upstream")


def test_the_details_word_on_a_cache_comes_first() -> None:
    raw = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}, "prompt_cache_hit_tokens": 4}
    assert parse_usage(raw) == Usage(9, 0, 1, "upstream")


@given(COUNTS, COUNTS, COUNTS)
def test_what_went_into_a_cache_is_a_part_of_the_prompt_that_came_from_none(
    prompt: int, cached: int, written: int
) -> None:
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    usage = parse_usage({"prompt_tokens": prompt, "prompt_tokens_details": details})
    assert usage is not None
    assert usage.written_tokens == min(written, prompt - usage.cached_tokens)


@given(JSON)
def test_whatever_a_provider_says_no_count_is_out_of_range(raw: Any) -> None:
    usage = parse_usage(raw)
    if usage is not None:
        assert 0 <= usage.cached_tokens <= usage.prompt_tokens <= MAX_TOKENS
        assert 0 <= usage.written_tokens <= usage.prompt_tokens - usage.cached_tokens
        assert 0 <= usage.completion_tokens <= MAX_TOKENS


@given(COUNTS, COUNTS, st.sampled_from(["total_tokens", "cached_tokens", "prompt_tokens_details"]), st.booleans())
def test_what_nobody_knows_beside_it_changes_nothing(prompt: int, completion: int, third: str, completes: bool) -> None:
    """The plain usage is read at a look, that with more in it step by step."""
    values: dict[str, Any] = {
        "total_tokens": prompt + completion,
        "cached_tokens": prompt // 2,
        "prompt_tokens_details": {"cached_tokens": prompt // 3},
    }
    raw = {"prompt_tokens": prompt, "completion_tokens": completion, third: values[third]}
    usage = parse_usage(raw, completes=completes)
    assert usage == parse_usage(raw | {"queue_time": 0.5}, completes=completes)
    if completes and not prompt:  # a chat has a prompt
        assert usage is None
        return
    assert usage is not None
    assert usage.cached_tokens == {"cached_tokens": prompt // 2, "prompt_tokens_details": prompt // 3}.get(third, 0)


def test_three_fields_of_which_one_is_of_a_cache_are_not_the_plain_three() -> None:
    reported = {"prompt_tokens": 5, "total_tokens": 5, "cached_tokens": 2}
    assert parse_usage(reported) == Usage(5, 0, 2, "upstream")
    assert parse_usage(reported, completes=True) is None


@given(st.integers(-(10**6), 10**12))
def test_an_estimate_is_rounded_up_and_never_negative(chars: int) -> None:
    tokens = estimate_tokens(chars)
    assert tokens >= 0
    assert (tokens - 1) * CHARS_PER_TOKEN < max(chars, 1) <= max(tokens, 1) * CHARS_PER_TOKEN


@table_rows(
    ("total", "reasoning", "completion"),
    [
        (14_428, 2_809, 4_308),  # xAI: beside the completion
        (11_619, 1_000, 1_499),  # the convention: part of it
        (14_428, None, 1_499),
        (14_428, "2809", 1_499),
        (None, 2_809, 1_499),
        (14_428.0, 2_809, 4_308),
        (14_427, 2_809, 1_499),
    ],
)
def test_reasoning_that_is_counted_beside_the_completion_is_charged_with_it(
    total: object, reasoning: object, completion: int
) -> None:
    details = {"reasoning_tokens": reasoning}
    reported = {"prompt_tokens": 10_120, "completion_tokens": 1_499, "total_tokens": total}
    usage = parse_usage({**reported, "completion_tokens_details": details})
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (10_120, completion)


def test_audio_tokens_are_a_part_of_both_sides() -> None:
    raw = {
        "prompt_tokens": 20,
        "completion_tokens": 9,
        "total_tokens": 29,
        "prompt_tokens_details": {"audio_tokens": 12, "cached_tokens": 4},
        "completion_tokens_details": {"audio_tokens": 7, "reasoning_tokens": 0},
    }
    assert parse_usage(raw) == Usage(20, 9, 4, "upstream", details=UsageDetails(12, 0, 7))


@table_rows("bad", [99, -1, 1.5, "7", True])
def test_more_audio_than_tokens_counts_as_far_as_it_is_plausible(bad: object) -> None:
    raw = {"prompt_tokens": 5, "completion_tokens": 5, "prompt_tokens_details": {"audio_tokens": bad}}
    usage = parse_usage(raw)
    assert usage is not None
    assert usage.details == (UsageDetails(5) if bad == 99 else None)
