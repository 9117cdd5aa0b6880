"""Recognize a provider's errors about an output token limit that is too high, and lower the limit in a body.

Coding agents use one limit for all models (Claude Code: 32,000 tokens); vendors reject a limit above the model's own.
"""

import re
from collections.abc import Collection
from typing import Any

from gateway.domain.inference_request import OUTPUT_LIMITS
from gateway.formats.wire.json_values import as_object

Body = dict[str, Any]

_MIN_LIMIT = 16
"""Smallest number accepted as a model's limit: a smaller one in a message means something else."""
_MAX_SEARCHED_CHARS = 1_000
_MIN_BUDGET_TOKENS = 1_024
_LIMIT_NUMBER = r"[`' ]*(?P<limit>[0-9][0-9,]{0,11})"
_LIMIT_FIELD = r"max_?(?:completion|output|new)?_?tokens"
_LIMIT_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"supports at most{_LIMIT_NUMBER} completion tokens",  # OpenAI, Azure OpenAI
        rf"{_LIMIT_FIELD}: [0-9]+ >{_LIMIT_NUMBER}, which is the maximum allowed number of output tokens",  # Anthropic
        rf"range of [`']?{_LIMIT_FIELD}[`']? (?:should be|is) [\[(][0-9]+,{_LIMIT_NUMBER}\]",  # DashScope, DeepSeek
        rf"maximum tokens you requested exceeds the model limit of{_LIMIT_NUMBER}",  # Bedrock
        rf"[`']?{_LIMIT_FIELD}[`']? must be (?:less than or equal to|at most|<=){_LIMIT_NUMBER}",  # Groq, Cohere
        (
            rf"{_LIMIT_FIELD} value of [0-9]+ but the supported range is from 1 \(inclusive\) to{_LIMIT_NUMBER}"
            r" \((?P<over>exclusive)"
        ),
    )
)
"""The last pattern is Vertex AI's. Its number is exclusive: the lowest value that is too large."""


def find_output_limit(message: str) -> int | None:
    """Return a model's maximum output tokens according to a provider's error; None if the message has no limit."""
    for pattern in _LIMIT_PATTERNS:
        match = pattern.search(message[:_MAX_SEARCHED_CHARS])
        if match is not None:
            limit = int(match["limit"].replace(",", "")) - ("over" in match.groupdict())
            return limit if limit >= _MIN_LIMIT else None
    return None


def lower_limits(body: Body, limit: int) -> bool:
    """Lower the output token limits in ``body`` to ``limit``, in place; return whether any was higher.

    A reasoning budget is lowered with them.
    """
    is_lowered = _lower_fields(body, OUTPUT_LIMITS, limit)
    for name in ("generationConfig", "inferenceConfig"):
        config = dict(as_object(body.get(name)))
        if _lower_fields(config, (*OUTPUT_LIMITS, "maxTokens"), limit):
            body[name], is_lowered = config, True
    if is_lowered:
        _lower_budget(body, limit)
        extra_fields = dict(as_object(body.get("additionalModelRequestFields")))
        if _lower_budget(extra_fields, limit):
            body["additionalModelRequestFields"] = extra_fields
    return is_lowered


def _lower_fields(body: Body, names: Collection[str], limit: int) -> bool:
    high_names = [name for name in names if type(body.get(name)) is int and body[name] > limit]
    body.update(dict.fromkeys(high_names, limit))
    return bool(high_names)


def _lower_budget(body: Body, limit: int) -> bool:
    """Lower Anthropic's thinking budget if it is not below ``limit``, as the API requires; return whether it changed.

    The new budget is half of ``limit``, but at least the API's minimum.
    """
    thinking = as_object(body.get("thinking"))
    budget = thinking.get("budget_tokens")
    if type(budget) is not int or budget < limit:
        return False
    body["thinking"] = {**thinking, "budget_tokens": max(limit // 2, _MIN_BUDGET_TOKENS)}
    return True
