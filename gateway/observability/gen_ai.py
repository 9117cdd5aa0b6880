"""Names and histogram bounds of OpenTelemetry's semantic conventions for generative AI, for metrics and traces.

Source: the "Gen AI" pages of the semantic conventions. Names that they list must be used; all other names are the
gateway's own.
"""

from collections.abc import Mapping

OPERATIONS: Mapping[str, str] = {
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "count_content_tokens": "count_tokens",
    "embed_contents": "embeddings",
}
PROVIDERS: Mapping[str, str] = {
    "azure_openai": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
FIRST_TOKEN_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
OUTPUT_TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Bounds of the histograms in seconds, from the conventions."""


def name_operation(operation: str) -> str:
    """Return the ``gen_ai.operation.name`` of an operation of the gateway."""
    return OPERATIONS.get(operation, operation)


def name_provider(provider: str) -> str:
    """Return the ``gen_ai.provider.name`` of a provider of the gateway."""
    return PROVIDERS.get(provider, provider)
