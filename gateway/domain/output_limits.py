"""The longest answers of well-known models, in tokens, to bound the cost of a request without an output limit.

From the vendors' model pages: platform.openai.com/docs/models, docs.claude.com/en/docs/about-claude/models/overview,
ai.google.dev/gemini-api/docs/models and api-docs.deepseek.com/quick_start/pricing.
"""

from fnmatch import fnmatchcase
from functools import lru_cache

from gateway.domain.model_name import normalize_name

_MAX_OUTPUT_TOKENS = (
    ("gpt-3-5*", 4_096),
    ("gpt-4o*", 16_384),
    ("gpt-4-1*", 32_768),
    ("gpt-5*", 128_000),
    ("o1*", 100_000),
    ("o3*", 100_000),
    ("o4-mini*", 100_000),
    ("claude-haiku-3-5*", 8_192),
    ("claude-sonnet-3-5*", 8_192),
    ("claude-sonnet-3-7*", 64_000),
    ("claude-haiku-4*", 64_000),
    ("claude-sonnet-4*", 64_000),
    ("claude-opus-4-5*", 64_000),
    ("claude-opus-4-[6-9]*", 128_000),
    ("claude-opus-4*", 32_000),
    ("gemini-2-0*", 8_192),
    ("gemini-2-5*", 65_536),
    ("gemini-3*", 65_536),
    ("deepseek-chat*", 8_192),
    ("deepseek-reasoner*", 65_536),
)
"""Maximum tokens of an answer, by a glob of normalized names (``model_name.py``); the first match counts."""


@lru_cache(1_024)
def find_longest_answer(model: str) -> int:
    """Return the maximum number of tokens in one answer of ``model``; 0 if unknown."""
    name = normalize_name(model)
    return next((tokens for glob, tokens in _MAX_OUTPUT_TOKENS if fnmatchcase(name, glob)), 0)
