"""Legacy completions in the OpenAI API format: checks of a request, and the body for a provider.

The chunks of a stream have the shape of a whole answer, and the end mark is that of a chat stream.
"""

from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import CHARS_PER_TOKEN, MAX_TOKENS
from gateway.errors import InvalidRequest
from gateway.formats.chat.openai.chat import (
    ChatPassthrough,
    build_chat_body,
    check_sampling,
    find_affinity_key,
    parse_stream,
)
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT, bound_text
from gateway.formats.wire.fields import MAX_CHOICES, Body, name_json_type, parse_integer, parse_model, read_text

CompletionsPassthrough = ChatPassthrough
"""Passthrough of completion streams, which differ from chat streams only in the place of the text."""


def parse_completions_inference(body: Body) -> InferenceRequest:
    """Check a parsed body and return the request. Raises ``InvalidRequest``. Each prompt gets ``n`` answers."""
    model = parse_model(body)
    prompts = _list_prompts(body.get("prompt"))
    chars = sum(_count_prompt_chars(prompt, param) for prompt, param in prompts)
    stream, include_usage = parse_stream(body)
    check_sampling(body)
    read_text(body, "user")
    suffix = read_text(body, "suffix") or ""
    answer_count = parse_integer(body, "n", 1, MAX_CHOICES) or 1
    return InferenceRequest(
        operation="completions",
        model=model,
        body=body,
        stream=stream,
        choices=answer_count * len(prompts),
        include_usage=include_usage,
        prompt_chars=chars + len(suffix),
        max_prompt_tokens=sum(_bound_prompt(prompt) for prompt, _ in prompts) + bound_text(suffix),
        max_output_tokens=_bound_output(body, answer_count),
        affinity_key=find_affinity_key(body),
    )


def _list_prompts(prompts: object) -> list[tuple[Any, str]]:
    """Return each prompt with its path in the body. A missing prompt counts as an empty one, which models complete.

    Raises ``InvalidRequest`` naming the prompt.
    """
    if prompts is None or isinstance(prompts, str):
        return [(prompts or "", "prompt")]
    if not isinstance(prompts, list):
        raise InvalidRequest(f"'prompt' must be a string or an array, not {name_json_type(prompts)}", param="prompt")
    if not prompts:
        raise InvalidRequest("'prompt' must not be an empty array", param="prompt")
    if all(type(token) is int for token in prompts):
        return [(prompts, "prompt")]
    return [(prompt, f"prompt[{index}]") for index, prompt in enumerate(prompts)]


def _count_prompt_chars(prompt: object, param: str) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return len(prompt) * CHARS_PER_TOKEN
    raise InvalidRequest(f"'{param}' must be a string or a non-empty array of token ids", param=param)


def _bound_prompt(prompt: Any) -> int:
    """Return an upper bound of a checked prompt's tokens: its token ids or bytes, plus one for the start mark."""
    return 1 + (bound_text(prompt) if isinstance(prompt, str) else len(prompt))


def _bound_output(body: Body, answer_count: int) -> int:
    """Return the tokens to reserve per returned answer, including a share of the discarded ``best_of`` tries.

    Without ``max_tokens`` the maximum is reserved: OpenAI's default is 16, but many servers fill the context. Raises
    ``InvalidRequest``.
    """
    max_tokens = parse_integer(body, "max_tokens", 0, MAX_TOKENS)
    try_count = max(parse_integer(body, "best_of", 0, MAX_CHOICES) or 0, answer_count)
    max_answer_tokens = MAX_RESERVED_OUTPUT if max_tokens is None else min(max_tokens, MAX_RESERVED_OUTPUT)
    return -(-max_answer_tokens * try_count // answer_count)


def build_completions_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body with the provider's name for the model. A stream requests a usage frame."""
    return build_chat_body(inference, model)
