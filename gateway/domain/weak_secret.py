"""Secrets that an attacker tries first: words of examples, runs of digits, one repeated character."""

import re

MIN_DISTINCT_CHARS = 5
"""The minimum number of different characters in a strong secret."""
_COMMON_RUNS = (
    *("0123456789" * 4, "9876543210" * 4, "0123456789abcdef" * 4),
    *("abcdefghijklmnopqrstuvwxyz", "qwertyuiopasdfghjklzxcvbnm"),
)
_COMMON_WORDS = sorted(
    (
        "a", "abc", "account", "admin", "anthropic", "api", "bar", "baz", "change", "default", "demo", "dev",
        "development", "dummy", "example", "fake", "foo", "gateway", "gemini", "here", "hello", "insert", "it",
        "key", "live", "llm", "local", "localhost", "master", "me", "model", "my", "not", "of", "only", "openai",
        "paste", "password", "placeholder", "prod", "proj", "provider", "replace", "root", "sample", "secret",
        "some", "test", "testing", "the", "this", "to", "todo", "token", "user", "with", "world", "your",
    ),
    key=len,
    reverse=True,
)  # fmt: skip
# Possessive: a long secret is scanned once, whatever it contains.
_ONLY_WORDS_PATTERN = re.compile(rf"(?:{'|'.join(_COMMON_WORDS)}|[0-9]{{1,4}}+(?![0-9])|(.)\1{{3,}}+|[-_. x])++\Z")


def is_weak(secret: str) -> bool:
    """Return whether ``secret`` (a key's with or without its ``sk-``) is weak."""
    text = secret.lower().removeprefix("sk-")
    remainder = re.sub(r"[-_. ]", "", text)
    if len(set(remainder)) < MIN_DISTINCT_CHARS or any(remainder in run for run in _COMMON_RUNS):
        return True
    return _ONLY_WORDS_PATTERN.match(re.sub(r"[0-9]{5,}", _drop_run, text)) is not None


def _drop_run(match: re.Match[str]) -> str:
    return "" if any(match[0] in run for run in _COMMON_RUNS) else match[0]
