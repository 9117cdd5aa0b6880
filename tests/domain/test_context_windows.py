"""The context windows of models, by every spelling of their names, and the script that writes the table."""

import sys

import pytest

from gateway.domain.context_windows import find_context_window
from scripts import update_context_windows
from tests.support.table_rows import table_rows


@table_rows(
    ("model", "tokens"),
    [
        ("gpt-4o-mini", 128_000),
        ("openai/gpt-4o-2024-08-06", 128_000),
        ("gpt-5.1-codex", 400_000),
        ("gpt-5-nano-2025-08-07", 400_000),
        ("anthropic/claude-sonnet-4.5:free", 1_000_000),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", 200_000),
        ("claude-haiku-4-5@20251001", 200_000),
        ("models/gemini-2.5-pro", 1_048_576),
        ("accounts/fireworks/models/kimi-k2p5", 262_144),
        ("deepseek-chat", 1_000_000),
        ("text-embedding-3-small", 8_192),
        ("gpt-4", 8_192),
        ("gpt-4-of-ours", 0),
        ("a-model-of-ours", 0),
        ("", 0),
    ],
)
def test_a_model_has_one_context_window_under_every_spelling(model: str, tokens: int) -> None:
    assert find_context_window(model) == tokens


@pytest.mark.slow
def test_the_table_is_what_the_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["update_context_windows", "--check"])
    with pytest.raises(SystemExit) as ended:
        update_context_windows.main()
    assert ended.value.code is None
