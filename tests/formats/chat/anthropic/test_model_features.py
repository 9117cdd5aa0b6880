"""What each generation of Claude accepts."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.chat.anthropic.model_features import (
    DEFAULT_MAX_TOKENS,
    MIN_BUDGET_TOKENS,
    ClaudeFeatures,
    build_sampling,
    build_thinking,
    parse_claude_features,
)
from gateway.formats.chat.model import EFFORT_TOKENS, ChatRequest
from tests.support.table_rows import table_rows

OLD, MIDDLE, NEW = "claude-haiku-4-5", "claude-sonnet-4-6", "claude-opus-5-5"
LOW = {"effort": "low"}
ADAPTIVE = {"type": "adaptive", "display": "summarized"}


def think(model: str, *, may_budget: bool = True, **body: Any) -> dict[str, Any]:
    return build_thinking(ChatRequest((), **body), parse_claude_features(model), may_budget=may_budget)


def dial(model: str, *, thinks: bool = False, **body: Any) -> dict[str, Any]:
    return build_sampling(ChatRequest((), **body), parse_claude_features(model), thinks=thinks)


@table_rows(
    ("name", "family", "version"),
    [
        ("claude-opus-4-6", "opus", (4, 6)),
        ("claude-haiku-4-5-20251001", "haiku", (4, 5)),
        ("claude-3-7-sonnet-20250219", "sonnet", (3, 7)),
        ("claude-3-opus-latest", "opus", (3, 0)),
        ("claude-opus-4-20250514", "opus", (4, 0)),
        ("claude-opus-4@20250514", "opus", (4, 0)),
        ("claude-opus-4-0", "opus", (4, 0)),
        ("anthropic/claude-sonnet-4.5", "sonnet", (4, 5)),
        ("anthropic/claude-4.6-opus", "opus", (4, 6)),
        ("us.anthropic.claude-opus-4-6-v1:0", "opus", (4, 6)),
        ("anthropic.claude-sonnet-5-v1:0", "sonnet", (5, 0)),
        ("Claude-Fable-5-1", "fable", (5, 1)),
        ("claude-mythos-preview", "mythos", None),
        ("claude-instant-1.2", None, (1, 2)),
    ],
)
def test_a_name_tells_family_and_version_in_any_spelling(
    name: str, family: str | None, version: tuple[int, int] | None
) -> None:
    assert parse_claude_features(name) == ClaudeFeatures(is_claude=True, family=family, version=version)


def test_a_name_without_claude_is_another_vendors() -> None:
    assert parse_claude_features("deepseek-v4-5") == ClaudeFeatures()


ALL = {"thinks_adaptively", "takes_budget", "takes_sampling", "takes_prefill", "takes_schema", "allows_forced_tool"}


@table_rows(
    ("model", "can", "off"),
    [
        ("kimi-k2", ALL - {"thinks_adaptively", "takes_schema"}, "disabled"),
        ("claude-sonnet-4-0", ALL - {"thinks_adaptively", "takes_schema"}, "disabled"),
        ("claude-opus-4-5", ALL - {"thinks_adaptively"}, "disabled"),
        ("claude-sonnet-4-6", ALL - {"takes_prefill"}, "disabled"),
        ("claude-opus-4-7", {"thinks_adaptively", "takes_schema", "allows_forced_tool"}, "disabled"),
        ("claude-opus-5", {"thinks_adaptively", "takes_schema", "allows_forced_tool"}, "disabled"),
        ("claude-haiku-5-5", {"thinks_adaptively", "takes_schema", "allows_forced_tool"}, "disabled"),
        ("claude-sonnet-5-5", {"thinks_adaptively", "takes_schema"}, "between_tools"),
        ("claude-opus-5-5", {"thinks_adaptively", "takes_schema"}, None),
        ("claude-opus-6", {"thinks_adaptively", "takes_schema"}, None),
        ("claude-fable-5", {"thinks_adaptively", "takes_schema", "allows_forced_tool"}, None),
        ("claude-fable-5-1", {"thinks_adaptively", "takes_schema"}, None),
        ("claude-mythos-preview", {"thinks_adaptively", "takes_schema", "allows_forced_tool"}, None),
    ],
)
def test_what_a_generation_can(model: str, can: set[str], off: str | None) -> None:
    seen = parse_claude_features(model)
    assert {name for name in ALL if getattr(seen, name)} == can
    assert seen.off_type == off


@table_rows(
    ("model", "body", "written"),
    [
        (OLD, {}, {"max_tokens": DEFAULT_MAX_TOKENS}),
        (OLD, {"max_tokens": 5}, {"max_tokens": 5}),
        (NEW, {}, {"max_tokens": DEFAULT_MAX_TOKENS + EFFORT_TOKENS["high"]}),
        (OLD, {"effort": "none", "max_tokens": 5}, {"max_tokens": 5, "thinking": {"type": "disabled"}}),
        (NEW, {"thinking_tokens": 0, "max_tokens": 5}, {"max_tokens": 5, "output_config": LOW}),
        (
            "claude-sonnet-5-5",
            {"effort": "none"},
            {"max_tokens": DEFAULT_MAX_TOKENS, "thinking": {"type": "between_tools"}},
        ),
        (
            OLD,
            {"effort": "low"},
            {
                "max_tokens": EFFORT_TOKENS["low"] + DEFAULT_MAX_TOKENS,
                "thinking": {"type": "enabled", "budget_tokens": EFFORT_TOKENS["low"]},
            },
        ),
        (
            MIDDLE,
            {"thinking_tokens": 5000, "max_tokens": 20_000},
            {"max_tokens": 20_000, "thinking": {"type": "enabled", "budget_tokens": 5000}},
        ),
        (
            MIDDLE,
            {"effort": "xhigh", "max_tokens": 20_000},
            {"max_tokens": 20_000, "thinking": ADAPTIVE, "output_config": {"effort": "high"}},
        ),
        (
            MIDDLE,
            {"effort": "max", "max_tokens": 20_000},
            {"max_tokens": 20_000, "thinking": ADAPTIVE, "output_config": {"effort": "max"}},
        ),
        (NEW, {"effort": "minimal", "max_tokens": 9}, {"max_tokens": 9, "thinking": ADAPTIVE, "output_config": LOW}),
        (
            NEW,
            {"thinking_tokens": 31_999},
            {
                "max_tokens": DEFAULT_MAX_TOKENS + EFFORT_TOKENS["xhigh"],
                "thinking": ADAPTIVE,
                "output_config": {"effort": "xhigh"},
            },
        ),
        (NEW, {"thinking_tokens": 1, "max_tokens": 9}, {"max_tokens": 9, "thinking": ADAPTIVE, "output_config": LOW}),
    ],
)
def test_thinking_is_said_in_the_models_words(model: str, body: dict[str, Any], written: dict[str, Any]) -> None:
    assert think(model, **body) == written


@given(st.integers(1, 200_000), st.none() | st.integers(1, 200_000))
def test_a_budget_keeps_to_the_apis_rules_and_to_the_callers_max_tokens(budget: int, max_tokens: int | None) -> None:
    written = think(OLD, thinking_tokens=budget, max_tokens=max_tokens)
    if max_tokens is not None:
        assert written["max_tokens"] == max_tokens
    if "thinking" in written:
        assert MIN_BUDGET_TOKENS <= written["thinking"]["budget_tokens"] < written["max_tokens"]
        assert written["thinking"]["budget_tokens"] <= max(budget, MIN_BUDGET_TOKENS)
    else:
        assert max_tokens is not None
        assert max_tokens < 2 * MIN_BUDGET_TOKENS


def test_a_model_that_may_not_count_in_this_turn_adapts_where_it_can_and_else_does_not_think() -> None:
    assert think(OLD, may_budget=False, effort="high", max_tokens=9_000) == {"max_tokens": 9_000}
    assert think(MIDDLE, may_budget=False, thinking_tokens=8_192, max_tokens=9_000)["thinking"] == ADAPTIVE


@table_rows(
    ("model", "thinks", "body", "written"),
    [
        (OLD, False, {"temperature": 1.7, "top_k": 4}, {"temperature": 1.0, "top_k": 4}),
        (OLD, False, {"temperature": 0.0, "top_p": 0.5}, {"temperature": 0.0}),
        (OLD, False, {"top_p": 0.5}, {"top_p": 0.5}),
        ("kimi-k2", False, {"temperature": 0.3, "top_p": 0.5}, {"temperature": 0.3, "top_p": 0.5}),
        (OLD, True, {"temperature": 0.3, "top_p": 0.5, "top_k": 4}, {}),
        (OLD, True, {"temperature": 0.3, "top_p": 0.97}, {"top_p": 0.97}),
        (NEW, False, {"temperature": 0.3, "top_p": 0.5, "top_k": 4}, {}),
    ],
)
def test_dials_that_a_model_refuses_are_dropped(
    model: str, thinks: bool, body: dict[str, Any], written: dict[str, Any]
) -> None:
    assert dial(model, thinks=thinks, **body) == written
