"""Calls for tests that look at what comes of them."""

from gateway.domain.inference_request import InferenceRequest


def call_of(chars: int) -> InferenceRequest:
    """A chat whose prompt is one word of so many letters."""
    return InferenceRequest(
        "chat", "m", {"messages": [{"role": "user", "content": "a" * chars}]}, max_prompt_tokens=chars
    )
