"""Formatting of values for messages: masked keys, suggestions for misspelt names, readable values."""

import difflib
import heapq
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any

MAX_NAME_CHARS = 128
"""Longest name that is matched, in characters: the cost of a match grows with its length."""
_MAX_NAMES = 200
"""Number of names compared, those of the nearest length first: a match blocks the event loop for some milliseconds."""
_MIN_SIMILARITY = 0.7
KEY_MARKS = (
    "sk-", "sk_", "rk-", "rk_", "ek_", "AIza", "xai-", "pplx-", "nvapi-", "r8_", "hf_", "fw_", "jina_", "tgp_v1_",
    "ghp_", "github_pat_", "ABSK", "ya29.",
)  # fmt: skip
"""Every key that ``_KEY`` matches contains one of these. Text without them needs no masking."""
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|rk)[-_]|(?:gsk|r8|hf|ek|fw|tgp_v1|ghp|github_pat)_|(?:xai|pplx|nvapi|csk)-|AIza|ABSK|ya29\.)"
    r"[A-Za-z0-9._-]{13,}|(?<![A-Za-z0-9])jina_[A-Za-z0-9]{30,}[A-Za-z0-9._-]*"
)


def mask_keys(text: str) -> str:
    """Return ``text`` with keys of known forms masked: clients sometimes put keys where a path or a name belongs."""
    return _KEY.sub("[masked]", text) if any(key_mark in text for key_mark in KEY_MARKS) else text


@lru_cache(1_024)
def mask_name(name: str) -> str:
    """Return ``mask_keys`` of a path or a name, cached: most requests repeat an earlier value."""
    return mask_keys(name)


def find_nearest(word: str, words: Iterable[str], *, min_similarity: float = _MIN_SIMILARITY) -> str | None:
    """Return the entry of ``words`` nearest to ``word``; None if all similarities are below ``min_similarity``.

    None, too, for a word of fewer than two or more than ``MAX_NAME_CHARS`` characters. Only the ``_MAX_NAMES`` entries
    of the nearest length are compared.
    """
    if not 1 < len(word) <= MAX_NAME_CHARS:
        return None
    candidates = heapq.nsmallest(_MAX_NAMES, words, key=lambda candidate: abs(len(candidate) - len(word)))
    by_folded_name = {candidate.casefold(): candidate for candidate in candidates}
    nearest = difflib.get_close_matches(word.casefold(), by_folded_name, n=1, cutoff=min_similarity)
    return by_folded_name[nearest[0]] if nearest else None


def fold_name(name: str) -> str:
    """Return a field's name as a tolerant server may compare it: without case, separators and wide characters.

    Servers written in Go and C# compare names without case (Go's also takes the long s), those of Google with and
    without ``_``.
    """
    return _fold(name[:MAX_NAME_CHARS])


@lru_cache(maxsize=4_096)
def _fold(name: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", name).casefold()))


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a hint with the nearest of ``words``; empty if none is near."""
    nearest = find_nearest(word, words)
    return "" if nearest is None else f"; did you mean '{nearest}'?"


def write_value(value: Any) -> str:
    """Return a JSON value in readable form: ``null``, ``true``, items separated by commas, fields as ``name=value``."""
    if isinstance(value, list | tuple):
        return ", ".join(map(write_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={write_value(item)}" for name, item in value.items())
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return write_number(value) if isinstance(value, float | Decimal) else str(value)


def write_number(value: float | Decimal) -> str:
    """Return a number without an exponent, and without trailing zeros after the decimal point."""
    text = f"{Decimal(str(value)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
