"""The limits of a model, in tokens: they bound what a request can cost, and which requests fit."""

from functools import lru_cache

from gateway.domain.context_windows import find_context_window
from gateway.domain.model_description import UNDESCRIBED, ModelDescription
from gateway.domain.output_limits import find_longest_answer
from gateway.frozen import frozen


@frozen
class ModelLimits:
    """The limits of a model; 0: unknown.

    Attributes:
        context_window: the most tokens of a prompt together with its answer.
        max_output_tokens: the most tokens of an answer.
        configured_window: ``context_window`` if the configuration sets it; else 0.
        configured_output_tokens: the same for ``max_output_tokens``.
    """

    context_window: int = 0
    max_output_tokens: int = 0
    configured_window: int = 0
    configured_output_tokens: int = 0


@lru_cache(1_024)
def find_limits(model: str, configured: ModelDescription = UNDESCRIBED) -> ModelLimits:
    """Return the limits of ``model``, a provider's name. What is configured precedes the gateway's tables."""
    window, output_tokens = configured.context_window or 0, configured.max_output_tokens or 0
    return ModelLimits(
        window or find_context_window(model), output_tokens or find_longest_answer(model), window, output_tokens
    )
