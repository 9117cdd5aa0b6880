"""Upper bounds of a request's usage: limits for reservations, and for the provider's counts that are charged.

A prompt has at most as many tokens as its model's context window, a completion as many as the model's longest answer.
The body's length is a bound only if the context window is unknown and the provider reads no further input. Even then a
provider may add its own text to a prompt, count an image as many tokens, and think beyond ``max_tokens``.
"""

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.model_limits import ModelLimits, find_limits
from gateway.domain.operation import OPERATIONS
from gateway.domain.usage import Usage
from gateway.formats.references.provider_reads import ProviderReads, find_reads, searches

MAX_CONTEXT_TOKENS = 10_000_000
"""The longest documented context window (Llama 4 Scout), assumed for unknown models."""
MAX_ANSWER_TOKENS = 262_144
"""The longest answer, or thinking, that any provider documents; most allow at most half of this."""
ADDED_TOKENS = 32_768
"""Tokens that a provider may add to a prompt: its own system prompt, descriptions of tools."""
IMAGE_TOKENS = 65_536
"""Upper bound for an image at any provider: GPT-4o mini counts up to 48,169 tokens ("Images and vision")."""
MAX_TOOL_ROUNDS = 10
"""Maximum number of times that a provider which runs tools reads the prompt: Anthropic pauses a turn after ten rounds
("Server tools"). The reported prompt tokens are the sum over all rounds."""
_OVERSHOOT_TOKENS = 16
"""Tokens by which an answer may exceed its limit: the end mark, and tokens that cannot be split."""
_LIMIT_FIELDS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens")


def bound_prompt(
    inference: InferenceRequest, reads: ProviderReads, model: str, limits: ModelLimits | None = None
) -> int:
    """Return the maximum tokens that ``model`` (the provider's name) can read for one answer to ``inference``.

    ``limits`` are those of the model; None for those in the gateway's tables, here and in the functions below.
    """
    limits = limits or find_limits(model)
    window = (limits.context_window if OPERATIONS[inference.operation].output_limit else 0) or MAX_CONTEXT_TOKENS
    if reads.tools or _has_built_in_search(inference, model):
        return max(inference.max_prompt_tokens, min(MAX_TOOL_ROUNDS * window, MAX_CONTEXT_TOKENS))
    if reads.unbounded:
        return max(inference.max_prompt_tokens, window)
    other_tokens = IMAGE_TOKENS * reads.images + reads.earlier_tokens
    return max(inference.max_prompt_tokens, min(window, inference.max_prompt_tokens + other_tokens))


def bound_answer(reads: ProviderReads, model: str, limits: ModelLimits | None = None) -> int:
    """Return the maximum tokens of an answer of ``model`` if the client sets no limit.

    A model that runs tools or searches may write several texts, so four times its longest answer is assumed.
    """
    limits = limits or find_limits(model)
    return (limits.max_output_tokens or MAX_ANSWER_TOKENS) * (4 if reads.tools or searches(model) else 1)


def limit_usage(usage: Usage, inference: InferenceRequest, model: str, limits: ModelLimits | None = None) -> Usage:
    """Return the reported ``usage`` if its counts are possible, else a capped one with the source ``bound``."""
    prompt_tokens, completion_tokens = usage.prompt_tokens, usage.completion_tokens
    if prompt_tokens > inference.max_prompt_tokens * inference.choices:
        prompt_tokens = _limit_prompt(prompt_tokens, inference, model, limits or find_limits(model))
    if completion_tokens > inference.max_output_tokens * inference.choices:
        completion_tokens = _limit_completion(usage, inference, model, limits or find_limits(model))
    if (prompt_tokens, completion_tokens) == (usage.prompt_tokens, usage.completion_tokens):
        return usage
    cached_tokens = min(usage.cached_tokens, prompt_tokens)
    written_tokens = min(usage.written_tokens, prompt_tokens - cached_tokens)
    return attrs.evolve(
        usage,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
        written_tokens=written_tokens,
        written_long_tokens=min(usage.written_long_tokens, written_tokens),
        source="bound",
    )


def _has_built_in_search(inference: InferenceRequest, model: str) -> bool:
    return bool(OPERATIONS[inference.operation].output_limit) and (searches(model) or searches(inference.model))


def _limit_prompt(reported_tokens: int, inference: InferenceRequest, model: str, limits: ModelLimits) -> int:
    reads = find_reads(inference)
    if reads.earlier_tokens:  # another model may count the earlier conversation differently
        reads = attrs.evolve(reads, unbounded=True)
    bound = bound_prompt(inference, reads, model, limits) * inference.choices
    if reads.unbounded or reads.tools or _has_built_in_search(inference, model):
        return min(reported_tokens, bound)
    if OPERATIONS[inference.operation].windowed and (window := limits.context_window):
        return min(reported_tokens, max(window, inference.max_prompt_tokens) * inference.choices)
    return (
        reported_tokens
        if reported_tokens <= 2 * bound + ADDED_TOKENS
        else inference.max_prompt_tokens * inference.choices
    )


def _limit_completion(usage: Usage, inference: InferenceRequest, model: str, limits: ModelLimits) -> int:
    reported_tokens = usage.completion_tokens
    if not OPERATIONS[inference.operation].output_limit:
        bound = inference.max_output_tokens * inference.choices
        return reported_tokens if reported_tokens <= 4 * bound + _OVERSHOOT_TOKENS * inference.choices else bound
    settings = inference.settings
    client_limits = [value for name in _LIMIT_FIELDS if type(value := settings.get(name)) is int]
    try_count = max(inference.choices, inference.choices * (inference.body.get("best_of") or 1))
    max_answer_tokens = max(client_limits) if client_limits else bound_answer(find_reads(inference), model, limits)
    reasoning_tokens = usage.reasoning_tokens if client_limits else 0
    thinking = inference.body.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    bound = (
        max_answer_tokens * try_count
        + min(reasoning_tokens, MAX_ANSWER_TOKENS * try_count)
        + (budget if type(budget) is int else 0)
    )
    return reported_tokens if reported_tokens <= bound + _OVERSHOOT_TOKENS * try_count else bound
